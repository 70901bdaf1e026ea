import errno
import os
import shutil
import signal
import stat
from pathlib import Path
from unittest.mock import ANY

import pytest

from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, SpaceError, UsageError
from deployer.contract.base.tarformat import FILE, FILES, FOLDER, FOLDERS, LINKS, MTIME, REST, TarEntry, encode
from deployer.contract.site import plan
from deployer.site.install import content
from deployer.site.install import install as installing
from deployer.site.install.remove import remove
from deployer.site.storage import store as stores
from deployer.site.storage.store import Store
from deployer.system import workers
from tests import bundles
from tests.unit.contract.site.test_plan import PLAN


def write(tmp_path, data, name="b.tar"):
    path = tmp_path / name
    path.write_bytes(data)
    return str(path)


def read(path):
    return Path(path).read_bytes()


def test_the_tree_is_what_the_layer_says(tmp_path, store):
    image = installing.install(write(tmp_path, bundles.build()), store).image
    tool = os.path.join(image.rootfs, "bin", "tool")
    assert read(tool) == b"#!/bin/sh"
    assert stat.S_IMODE(os.stat(tool).st_mode) == 0o755
    assert os.path.samefile(tool, os.path.join(image.rootfs, "bin", "same"))
    assert os.readlink(os.path.join(image.rootfs, "etc", "out")) == "/nowhere"
    assert os.path.getsize(os.path.join(os.fsencode(image.rootfs), b"etc/odd\xff\nname")) == 600
    times = {os.lstat(os.path.join(image.rootfs, name)).st_mtime for name in ("bin", "bin/tool", "etc/out", ".")}
    assert times == {MTIME}


def test_app_plans_and_receipt(tmp_path, store):
    extra = [("deployer/app/sub/train.py", b"pass"), ("deployer/plans/lab.json", json_records.dumps(PLAN.record()))]
    path = write(tmp_path, bundles.build(extra=extra, jobs=[bundles.JOB]))
    image = installing.install(path, store).image
    assert read(os.path.join(image.app, "sub", "train.py")) == b"pass"
    assert image.plan() == PLAN
    assert image.manifest().jobs == [bundles.JOB]
    assert image.receipt.digest.startswith("sha256:")
    assert store.find("tiny") == store.find("tiny:1.0") == image


def test_a_members_mode_is_no_more_than_rights(tmp_path, store):
    data = bundles.reseal(
        bundles.build(extra=[("deployer/app/tool", b"x")]),
        lambda record: [m.update(mode=0o6755) for m in record["members"] if m["name"] == "deployer/app/tool"],
    )
    path = write(tmp_path, data)
    try:
        image = installing.install(path, store).image
    except IntegrityError:
        return
    assert stat.S_IMODE(os.stat(os.path.join(image.app, "tool")).st_mode) == 0o555


def test_a_job_cannot_change_a_file_of_the_app_by_mistake(tmp_path, store):
    """The next job would run the changed one. Whoever shares the root folder can still remove the image."""
    path = write(tmp_path, bundles.build(extra=[("deployer/app/src/train.py", b"pass")]))
    image = installing.install(path, store).image
    folder = os.path.join(image.app, "src")
    assert stat.S_IMODE(os.stat(os.path.join(folder, "train.py")).st_mode) & 0o777 & ~0o044 == 0o400
    assert os.stat(folder).st_mode & stat.S_IWUSR
    shutil.rmtree(image.app)


def test_the_second_install_is_known(tmp_path, store):
    path = write(tmp_path, bundles.build())
    first = installing.install(path, store)
    before = os.stat(first.image.folder).st_ino
    second = installing.install(path, store)
    assert (first.known, second.known) == (False, True)
    assert os.stat(second.image.folder).st_ino == before


def test_large_files_go_on_in_the_next_frame(tmp_path, store):
    content = bytes(bytearray(range(256))) * 40
    folder, header = encode(TarEntry(FOLDER, b"d", 0o755)), encode(TarEntry(FILE, b"d/big", 0o644, len(content)))
    pieces = [
        (FOLDERS, folder), (FILES, header + content[:3000]), (REST, content[3000:7000]), (REST, content[7000:]),
        (LINKS, bundles.END),
    ]  # fmt: skip
    image = installing.install(write(tmp_path, bundles.build(pieces)), store).image
    assert read(os.path.join(image.rootfs, "d", "big")) == content


def test_no_space_is_said_before_anything_is_written(tmp_path, store, monkeypatch):
    def full(folder, size, entries):
        assert os.listdir(folder) == []
        raise SpaceError("%d bytes in %d files" % (size, entries))

    monkeypatch.setattr(installing.space, "check", full)
    path = write(tmp_path, bundles.build(extra=[("deployer/app/a", b"x" * 1000)]))
    raw = sum(len(piece) for _, piece in bundles.whole(bundles.ENTRIES))
    with pytest.raises(SpaceError, match="%d bytes" % (raw + 1000)):
        installing.install(path, store)
    assert os.listdir(store.images) == []


def test_the_tool_that_comes_with_the_first_image_counts(tmp_path, store, monkeypatch):
    tool = tmp_path / "deployer.pyz"
    tool.write_bytes(b"x" * 5000)
    path, sizes = write(tmp_path, bundles.build()), []
    monkeypatch.setattr(installing.space, "check", lambda folder, size, entries: sizes.append(size))
    monkeypatch.setattr(stores, "running_archive", lambda: str(tool))
    for _ in range(2):
        installing.install(path, store)
        remove(store, store.find("tiny"))
        store.bring_tool()
    assert sizes[0] - sizes[1] == 5000


def test_a_bundle_that_will_be_copied_counts(tmp_path, store, monkeypatch):
    sizes = []
    monkeypatch.setattr(installing.space, "check", lambda folder, size, entries: sizes.append(size))
    path = write(tmp_path, bundles.build())
    real = os.fstat
    installing.install(path, store, kept=True)
    remove(store, store.find("tiny"))

    def elsewhere(descriptor):
        state = list(real(descriptor)[:10])
        return os.stat_result([*state[:2], state[2] + 1, *state[3:]])

    monkeypatch.setattr(installing.os, "fstat", elsewhere)
    installing.install(path, store, kept=True)
    assert sizes[1] - sizes[0] == os.path.getsize(path)


def test_an_install_that_fails_leaves_nothing(tmp_path, store, monkeypatch):
    def full(frames, source, root, *_):
        open(os.path.join(root, "half"), "w").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(content, "unpack", full)
    with pytest.raises(SpaceError):
        installing.install(write(tmp_path, bundles.build()), store)
    assert os.listdir(store.images) == []


def test_a_killed_worker_is_said_and_leaves_nothing(tmp_path, store, monkeypatch):
    parent, real = os.getpid(), content.codec.decompressor

    def decompressor(codec):
        decompress = real(codec)

        def deadly(frame, size):
            if os.getpid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return decompress(frame, size)

        return deadly

    monkeypatch.setattr(content.codec, "decompressor", decompressor)
    path = write(tmp_path, bundles.build())
    installing.install(path, Store(str(tmp_path / "one")), jobs=2)  # one group of frames needs no worker
    monkeypatch.setattr(workers, "_SMALL", 1)
    more = (FILES, bundles.stream([(TarEntry(FILE, b"more", 0o644, 1), b"x")]))
    pieces = bundles.whole(bundles.ENTRIES)
    pieces.insert([holds for holds, _ in pieces].index(FILES), more)
    with pytest.raises(DeployerError, match="killed by signal 9"):
        installing.install(write(tmp_path, bundles.build(pieces)), store, jobs=2)
    assert os.listdir(store.images) == []


def test_a_segment_that_was_never_checked_makes_no_image(tmp_path, store, monkeypatch):
    monkeypatch.setattr(content.Verification, "left", lambda self: [])
    with pytest.raises(AssertionError, match="never checked"):
        installing.install(write(tmp_path, bundles.build()), store)
    assert os.listdir(store.images) == []


def test_another_install_that_was_first_is_as_good(tmp_path, store, monkeypatch):
    path = write(tmp_path, bundles.build())
    real = content.unpack
    nested = []

    def slow(*arguments):
        if not nested:  # while the first unpacks, the second runs from start to end
            nested.append(True)
            installing.install(path, store)
        return real(*arguments)

    monkeypatch.setattr(content, "unpack", slow)
    installing.install(path, store)
    assert len(os.listdir(store.images)) == 1


def test_the_rest_of_an_image_without_a_receipt_is_replaced(tmp_path, store):
    path = write(tmp_path, bundles.build())
    image = installing.install(path, store).image
    os.unlink(os.path.join(image.folder, "receipt.json"))
    assert installing.install(path, store).image == image._replace(receipt=image.receipt._replace(installed=ANY))
    assert len(os.listdir(store.images)) == 1


def test_an_image_under_construction_is_not_listed(tmp_path, store):
    image = installing.install(write(tmp_path, bundles.build()), store).image
    os.rename(image.folder, os.path.join(store.images, ".installing-host-1-1-ab"))
    assert store.installed() == []


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o002, 0o755, 0o2755), (0o077, 0o700, 0o2700)])
def test_the_umask_and_a_shared_group_hold(tmp_path, umask, file, folder):
    root = tmp_path / "root"
    root.mkdir()
    group = 12345 if os.getuid() == 0 else os.getgid()
    os.chown(str(root), -1, group)
    os.chmod(str(root), 0o2775)
    extra = [("deployer/app/train.py", b"pass")]
    path = write(tmp_path, bundles.build(extra=extra))
    before = os.umask(umask)
    try:
        image = installing.install(path, Store(str(root))).image
    finally:
        os.umask(before)
    for where, _, names in os.walk(os.path.join(str(root), "images")):
        for name in [".", *names]:
            state = os.lstat(os.path.join(where, name))
            assert state.st_gid == group
            assert stat.S_ISLNK(state.st_mode) or not state.st_mode & umask
    assert stat.S_IMODE(os.stat(os.path.join(image.rootfs, "bin", "tool")).st_mode) == file
    assert stat.S_IMODE(os.stat(os.path.join(image.rootfs, "bin")).st_mode) == folder
    readable = 0o660 & ~umask
    assert stat.S_IMODE(os.stat(os.path.join(image.folder, "receipt.json")).st_mode) & 0o660 == readable


def test_a_umask_against_oneself_is_refused(tmp_path, store):
    path = write(tmp_path, bundles.build())
    os.makedirs(store.images)
    before = os.umask(0o222)
    try:
        with pytest.raises(UsageError, match="umask"):
            installing.install(path, store)
    finally:
        os.umask(before)
    assert os.listdir(store.images) == []


def test_keep_gives_the_bundle_its_place(tmp_path, store):
    path = write(tmp_path, bundles.build())
    outcome = installing.install(path, store)
    kept = installing.keep(path, store, outcome.image)
    assert kept == os.path.join(store.bundles, "tiny-1.0.tar")
    assert not os.path.exists(path)
    assert installing.keep(kept, store, outcome.image) == kept


def test_keep_copies_from_another_file_system(tmp_path, store, monkeypatch):
    path = write(tmp_path, bundles.build())
    image = installing.install(path, store).image
    real, data = os.replace, read(path)

    def replace(source, target):
        if source == path:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, target)

    monkeypatch.setattr(installing.os, "replace", replace)
    assert read(installing.keep(path, store, image)) == data
    assert not os.path.exists(path)
    assert os.listdir(store.bundles) == ["tiny-1.0.tar"]


def test_no_bundle(tmp_path, store):
    with pytest.raises(UsageError, match="cannot open"):
        installing.install(str(tmp_path / "nothing.tar"), store)


def test_mount_points_are_absolute():
    assert all(path.startswith("/deployer/") for path in plan.MOUNT_FOLDERS[:3] + plan.MOUNT_FILES)
