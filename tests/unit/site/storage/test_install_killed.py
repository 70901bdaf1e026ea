"""install is killed at any point: what is there is an image or nothing, and the next install ends whole."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, SYMLINK, TarEntry
from deployer.site.install import gc
from deployer.site.install.install import install
from deployer.site.install.remove import remove
from deployer.site.storage import unfinished
from deployer.site.storage.store import Store
from tests import bundles, forked, wheels
from tests.trees import cut, described, expected

pytestmark = pytest.mark.thorough

SEED = 20261121


def layer():
    """Return the entries and the pieces of a layer of many frames, so that there is time to be killed in."""
    chance = random.Random(SEED)
    entries = [(TarEntry(FOLDER, b"d%d" % n, 0o755), b"") for n in range(20)]
    for n in range(300):
        content = bytes(bytearray(chance.getrandbits(8) for _ in range(chance.randrange(3000))))
        entries.append((TarEntry(FILE, b"d%d/f%d" % (n % 20, n), 0o644, len(content)), content))
    entries.append((TarEntry(FILE, b"d0/large", 0o755, 90001), b"large" * 18000 + b"!"))
    entries += [(TarEntry(HARDLINK, b"d1/l%d" % n, 0o777, 0, b"d0/f0"), b"") for n in range(20)]
    entries += [(TarEntry(SYMLINK, b"d2/l%d" % n, 0o777, 0, b"/nowhere"), b"") for n in range(20)]
    return entries, cut(entries, chance, 20000)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Return the path of a bundle and the tree that it holds."""
    entries, pieces = layer()
    path = tmp_path_factory.mktemp("bundle") / "b.tar"
    extra = [("deployer/app/a.py", b"pass"), ("deployer/plans/x.json", b"{}")]
    for name in ("one", "two"):
        modules = {"%s/m%d.py" % (name, n): b"x = %d" % n for n in range(8)}
        extra.append(("deployer/wheels/" + wheels.file_name(name), wheels.wheel(modules, name)))
    path.write_bytes(bundles.build(pieces, extra=extra))
    return str(path), expected(entries)


def end(pid):
    """Return how a process ended: its exit code, or the negative number of a signal."""
    _, status = os.waitpid(pid, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def layers_of(store):
    return (
        {os.path.join(store.layers, name) for name in os.listdir(store.layers)}
        if os.path.isdir(store.layers)
        else set()
    )


def check_whole_or_nothing(store, tree):
    assert {layer for image in store.installed() for layer in image.layers} <= layers_of(store)
    for image in store.installed():
        assert described(image.rootfs) == tree
        assert os.path.isfile(os.path.join(image.app, "a.py"))
        for name in ("one", "two"):
            assert len(os.listdir(os.path.join(image.wheels, "lib", name))) == 8
            assert os.path.isfile(os.path.join(image.wheels, "lib", name + "-1.0.dist-info", "RECORD"))
    names = os.listdir(store.images) if os.path.isdir(store.images) else []
    assert len([name for name in names if not name.startswith(".")]) == len(store.installed())


def check_ends_whole(bundle, store):
    path, tree = bundle
    check_whole_or_nothing(store, tree)
    assert described(install(path, store, jobs=2).image.rootfs) == tree
    until = time.time() + 30  # a worker may have been at its last file while the next install reaped
    folders = (store.images, store.layers)
    while any(unfinished.stale(folder) for folder in folders) and time.time() < until:
        for folder in folders:
            unfinished.reap(folder)
    assert [len(os.listdir(folder)) for folder in folders] == [1, 2]  # the rootfs and the overlays


def test_killed_at_30_random_points(tmp_path, bundle):
    """Points of the work, not of the clock: under load an install would be over, or not begun."""
    path, _ = bundle
    steps = []
    install(path, Store(str(tmp_path / "first")), lambda count, total: steps.append(count), jobs=2)
    chance = random.Random(SEED)
    for number in range(30):
        store = Store(str(tmp_path / str(number)))
        last = chance.choice(steps)

        def deadly(count, total, last=last):
            if count >= last:
                os.kill(os.getpid(), signal.SIGKILL)

        pid = forked.fork(lambda store=store, deadly=deadly: install(path, store, deadly, jobs=2))
        assert end(pid) == -signal.SIGKILL
        check_ends_whole(bundle, store)


@pytest.mark.timeout(180)  # up to 31 s at rest
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", ["mkdir", "open", "rename", "symlink"])
def test_killed_at_each_step_of_publishing(tmp_path, bundle, function, when):
    """os.open makes app, plans, manifest and receipt in the temporary folder; os.symlink claims the layer; os.rename
    publishes layer and image."""
    path, _ = bundle
    points = 0
    while True:
        store = Store(str(tmp_path / str(points)))

        def install_until(count=points, store=store):
            real, installer = getattr(os, function), os.getpid()
            calls = []

            def deadly(*arguments, **more):
                calls.append(1)
                deadline = os.getpid() == installer and len(calls) > count
                if deadline and when == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                result = real(*arguments, **more)
                if deadline:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            setattr(os, function, deadly)
            install(path, store, jobs=2)

        code = end(forked.fork(install_until))
        check_ends_whole(bundle, store)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        points += 1
    # images/, layers/, a folder in each, rootfs/, 20 folders, app/ and plans/; rootfs, the quota's file, app, plan,
    # manifest, receipt
    assert points >= {"mkdir": 27, "open": 5, "rename": 2, "symlink": 1}[function]


def test_two_images_of_one_layer_and_one_is_removed_by_who_is_killed(tmp_path, bundle):
    """At each rename and each removal of a file."""
    first, tree = bundle
    second = str(tmp_path / "second.tar")
    Path(second).write_bytes(bundles.build(layer()[1], version="2"))
    points = 0
    store = Store(str(tmp_path / "root"))
    while True:
        install(second, store, jobs=2)
        image = install(first, store, jobs=2).image

        def remove_until(count=points, image=image):
            calls = []

            def deadly(real):
                def either(*arguments, **more):
                    calls.append(1)
                    if len(calls) > count:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*arguments, **more)

                return either

            for name in ("rename", "unlink", "rmdir"):
                setattr(os, name, deadly(getattr(os, name)))
            remove(store, image)
            remove(store, store.find("tiny:2"))

        code = end(forked.fork(remove_until))
        for left in store.installed():
            assert described(left.rootfs) == tree
        if code == 0:
            break
        assert code == -signal.SIGKILL
        gc.collect(gc.find(store, 2))
        assert layers_of(store) == {layer for left in store.installed() for layer in left.layers}
        points += 1 if points < 40 else 97  # most are files of the layer
    assert os.listdir(store.layers) == os.listdir(store.images) == []


def test_two_at_once_end_in_one_image(tmp_path, bundle):
    path, tree = bundle
    store = Store(str(tmp_path / "root"))
    pids = [forked.fork(lambda: install(path, store, jobs=2)) for _ in range(4)]
    assert [end(pid) for pid in pids] == [0, 0, 0, 0]
    assert len(os.listdir(store.images)) == 1
    assert described(store.find("tiny").rootfs) == tree


def test_four_bundles_of_one_layer_at_once_while_others_are_removed(tmp_path):
    store = Store(str(tmp_path / "root"))
    entries, pieces = layer()
    paths = [str(tmp_path / ("%d.tar" % number)) for number in range(5)]
    for number, path in enumerate(paths):
        Path(path).write_bytes(bundles.build(pieces, version=str(number)))

    def come_and_go():
        for _ in range(5):
            remove(store, install(paths[4], store, jobs=1).image)
            gc.collect(gc.find(store, 9))

    works = [lambda path=path: install(path, store, jobs=1) for path in paths[:4]]
    pids = [forked.fork(work) for work in (come_and_go, *works)]
    assert [end(pid) for pid in pids] == [0] * 5
    assert sorted(image.receipt.version for image in store.installed()) == ["0", "1", "2", "3"]
    for image in store.installed():
        assert described(image.rootfs) == expected(entries)
    assert len(os.listdir(store.layers)) == 1


def test_interrupted_leaves_nothing(tmp_path, bundle):
    def interrupt(count, total):
        raise KeyboardInterrupt

    store = Store(str(tmp_path / "root"))
    with pytest.raises(KeyboardInterrupt):
        install(bundle[0], store, interrupt, jobs=2)
    assert os.listdir(store.images) == os.listdir(store.layers) == []
