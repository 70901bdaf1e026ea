"""Images with the same layer share one rootfs: who needs it keeps it, and whoever is killed leaves nothing for long."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, UsageError
from deployer.contract.base.tarformat import FILE, TarEntry
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.install import bytecode, content, gc, remove
from deployer.site.install import install as installing
from deployer.site.storage import inventory, layers, unfinished
from deployer.site.storage.store import Store
from deployer.system.trust import verify
from tests import bundles, wheels
from tests.trees import described

OTHER = [(TarEntry(FILE, b"other", 0o644, 1), b"x")]


def bundle(tmp_path, version="1", more=(), **options):
    """Return the path of a bundle of the same layer as the others, with an app of its own."""
    extra = [("deployer/app/v", version.encode()), *more]
    return str(bundles.write(tmp_path / (version + ".tar"), extra=extra, version=version, **options))


@pytest.fixture
def images(tmp_path, store):
    """Return two images that share their layer."""
    return [installing.install(bundle(tmp_path, version), store).image for version in ("1", "2")]


def lose(image):
    os.unlink(os.path.join(image.rootfs, "bin", "tool"))


def own_form(image):
    """Change an image into that of an older deployer, with a rootfs of its own."""
    os.unlink(image.rootfs + "/../inventory")
    os.unlink(image.folder + "/inventory")
    moved = image.layers[0]
    os.unlink(image.rootfs)
    os.rename(moved + "/rootfs", image.rootfs)
    shutil.rmtree(moved)
    inventory.write_inventory(image.folder)


def test_one_rootfs_and_the_rest_is_each_ones_own(store, images):
    first, second = images
    assert first.layers[0] == second.layers[0]
    assert os.listdir(store.layers) == [os.path.basename(first.layers[0])]
    assert os.path.samefile(first.rootfs, second.rootfs)
    assert described(second.rootfs) == described(first.layers[0] + "/rootfs")
    for image in images:
        assert Path(image.app + "/v").read_text() == image.receipt.version
        assert (image.receipt.files, image.receipt.bytes) == (len(bundles.ENTRIES) + 1, 609 + 1)
    assert inventory.check(second).missing == 0


def test_the_layer_goes_with_the_last_image(store, images):
    remove.remove(store, images[0], force=True)
    assert inventory.gone(images[1]).missing == 0
    remove.remove(store, images[1], force=True)
    assert os.listdir(store.layers) == os.listdir(store.images) == []


def test_a_root_folder_that_moved(tmp_path, store, images):
    os.rename(store.root, str(tmp_path / "moved"))
    for image in Store(str(tmp_path / "moved")).installed():
        assert inventory.gone(image).missing == 0


def test_gc_lists_and_removes_the_layer_that_only_its_garbage_needs(tmp_path, store, images, monkeypatch):
    monkeypatch.setattr(installing.time, "time", lambda: 2e9)
    other = installing.install(bundle(tmp_path, "3", pieces=bundles.whole(OTHER)), store).image
    assert len(gc.find(store, 2)) == 1  # the other image needs their layer
    garbage = gc.find(store, 1)
    assert [item.path for item in garbage][2:] == [images[0].layers[0]]
    gc.collect(garbage)
    assert [image.folder for image in store.installed()] == [other.folder]
    assert os.listdir(store.layers) == [os.path.basename(other.layers[0])]


def test_a_remove_that_was_killed_leaves_a_layer_for_gc_and_for_the_next_install(tmp_path, store, images, monkeypatch):
    layer = images[0].layers[0]
    for image in images:
        unfinished.discard(image.folder)
    assert [(item.path, item.reason) for item in gc.find(store, 1)] == [(layer, "no image needs this layer")]
    inode = os.stat(layer).st_ino
    assert os.stat(installing.install(bundle(tmp_path), store).image.layers[0]).st_ino == inode
    remove.remove(store, store.find("tiny"), force=True)
    assert os.listdir(store.layers) == []


def test_an_install_under_way_keeps_the_layer(tmp_path, store, images, monkeypatch):
    """While it goes on, the other images are removed, and gc runs."""

    def meanwhile(*_):
        for image in images:
            remove.remove(store, image, force=True)
        gc.collect(gc.find(store, 1))

    monkeypatch.setattr(installing.kit, "prepare", meanwhile)
    image = installing.install(bundle(tmp_path, "3"), store).image
    assert store.installed() == [image]
    assert inventory.gone(image).missing == 0


def test_who_takes_a_layer_gives_it_back_if_an_image_came_meanwhile(tmp_path, store, images):
    layer = images[0].layers[0]
    inode = os.stat(layer).st_ino
    layers.discard(layer)
    assert os.stat(layer).st_ino == inode
    assert os.listdir(store.layers) == [os.path.basename(layer)]


def test_a_layer_that_was_made_anew_meanwhile_is_kept(tmp_path):
    path = tmp_path / "layer"
    path.mkdir()

    def needed():
        (path / "new").mkdir(parents=True)
        return True

    unfinished.discard(str(path), needed)
    assert os.listdir(str(tmp_path)) == ["layer"]
    assert os.listdir(str(path)) == ["new"]


def test_a_layer_that_was_removed_before_it_was_claimed_is_made(tmp_path, store, images, monkeypatch):
    real = layers.claimed

    def late(*arguments):
        for image in images:
            remove.remove(store, image, force=True)
        return real(*arguments)

    monkeypatch.setattr(layers, "claimed", late)
    image = installing.install(bundle(tmp_path, "3"), store).image
    assert inventory.gone(image).missing == 0


def test_lost_files_are_repaired_once_for_all(tmp_path, store, images):
    tree = described(images[0].rootfs)
    lose(images[0])
    for image in images:
        assert inventory.gone(image)[1:3] == (1, ["rootfs/bin/tool"])
    assert not installing.install(bundle(tmp_path, "2"), store).known
    assert [inventory.gone(image).missing for image in images] == [0, 0]
    assert described(images[0].rootfs) == tree
    assert installing.install(bundle(tmp_path, "1"), store).known
    assert len(os.listdir(store.layers)) == 1


@pytest.mark.parametrize("lost", ["layer.json", "inventory", "rootfs"])
def test_a_layer_without_its_record_list_or_rootfs(tmp_path, store, images, lost):
    path = os.path.join(images[0].layers[0], lost)
    (shutil.rmtree if lost == "rootfs" else os.unlink)(path)
    if lost == "inventory":  # then only the number of files is known
        assert [inventory.gone(image).missing for image in images] == [0, 0]
        lose(images[0])
    assert all(inventory.gone(image).missing for image in images)
    installing.install(bundle(tmp_path, "3"), store)
    assert [inventory.gone(image).missing for image in images] == [0, 0]


@pytest.mark.parametrize("way", ["owner", "link", "file"])
def test_what_another_user_put_in_a_layer_s_place_is_not_used(tmp_path, store, images, way):
    """It has all that a complete layer has, and other programs."""
    layer = images[0].layers[0]
    tree = described(images[0].rootfs)
    bundles.overwrite(layer + "/rootfs/bin/tool", b"evil")
    if way != "owner":
        os.rename(layer, str(tmp_path / "theirs"))
        (os.symlink if way == "link" else shutil.copy)(str(tmp_path / "theirs" / "layer.json"), layer)
        with pytest.raises(DeployerError, match="Not a directory"):
            installing.install(bundle(tmp_path, "3"), store)
        assert len(os.listdir(store.images)) == 2
        return
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(layer, 12345, -1)
    third = installing.install(bundle(tmp_path, "3"), store).image
    assert described(third.rootfs) == tree
    assert os.lstat(third.layers[0]).st_uid == os.geteuid()
    assert os.listdir(store.layers) == [os.path.basename(layer)]


def test_a_file_system_with_owners_of_its_own(tmp_path, store, monkeypatch):
    """As of an NFS server that gives all files to one account."""
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    first, second = (installing.install(bundle(tmp_path, version), store).image for version in ("1", "2"))
    assert first.layers == second.layers
    before = os.stat(first.rootfs).st_ino
    installing.install(bundle(tmp_path, "3"), store)
    assert os.stat(first.rootfs).st_ino == before
    assert os.listdir(store.layers) == [os.path.basename(first.layers[0])]


def test_a_job_of_any_image_keeps_a_damaged_layer(tmp_path, store, images, monkeypatch):
    lose(images[0])

    def used(_, image):
        if image == images[0]:
            raise Refused("job x uses tiny:1")

    monkeypatch.setattr(remove, "check_unused", used)
    with pytest.raises(Refused, match="job x"):
        installing.install(bundle(tmp_path, "3"), store)
    assert os.path.isdir(images[0].rootfs)
    os.unlink(os.path.join(images[0].folder, "receipt.json"))
    monkeypatch.setattr(remove, "check_rest", lambda _, folder: used(_, images[0]))
    with pytest.raises(Refused, match="job x"):
        installing.install(bundle(tmp_path, "3"), store)


def test_the_layer_of_an_image_without_a_receipt_stays_as_long_as_the_image(store, images):
    remove.remove(store, images[1], force=True)
    os.unlink(os.path.join(images[0].folder, "receipt.json"))
    layers.release(store)
    assert os.path.isdir(images[0].rootfs)
    gc.collect(gc.find(store, 1))
    assert os.listdir(store.layers) == os.listdir(store.images) == []


def test_a_shared_layer_is_verified_in_each_bundle(tmp_path, store, images):
    path = bundle(tmp_path, "3")
    data = bytearray(Path(path).read_bytes())
    for frame in images[0].manifest().segments:  # that of the others is at the same place
        if frame.kind == "frame" and frame.holds == "files":
            data[frame.offset + 20] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(IntegrityError, match="does not match its digest"):
        installing.install(path, store)
    assert len(store.installed()) == len(os.listdir(store.images)) == 2
    assert inventory.gone(images[0]).missing == 0


def test_the_bytes_of_a_known_layer_do_not_come_back_from_the_workers(tmp_path, store, images, monkeypatch):
    read, answers, results = [], [], content.workers.Pool.results

    def recorded(pool):
        for task, answer in results(pool):
            answers.append(*set(answer))  # a message has an answer for each segment: all are equal
            yield task, answer

    monkeypatch.setattr(content.workers.Pool, "results", recorded)
    monkeypatch.setattr(content.Content, "_passed", lambda self, segment: read.append(segment))
    with verify.opened(bundle(tmp_path, "3")) as stream:
        told = content.Content(verify.begin(stream, "b"), [], content.EVERYTHING, 2, None)
        told.check(told.layer * 9)
    assert sorted(read) == sorted(told.layer * 9)
    assert set(answers) == {None}
    assert len(answers) < len(read)


def test_a_bundle_cannot_claim_the_layer_of_another(tmp_path, store, images):
    """install does not hash the layer as a whole, so what the manifest says of it proves nothing."""
    digest = images[0].manifest().image.layer_digest
    liar = bundle(tmp_path, "3", pieces=bundles.whole(OTHER), layer_digest=digest)
    image = installing.install(liar, store).image
    assert image.layers[0] != images[0].layers[0]
    assert os.listdir(image.rootfs) == ["other"]


def test_a_failed_install_leaves_no_layer(tmp_path, store, monkeypatch):
    monkeypatch.setattr(content.Verification, "left", lambda self: [])
    with pytest.raises(AssertionError, match="never checked"):
        installing.install(bundle(tmp_path), store)
    assert os.listdir(store.layers) == os.listdir(store.images) == []


def test_images_that_are_elsewhere_without_their_layers_are_refused(tmp_path, store):
    """The links of an image lead to the folder beside the real folder of images."""
    other = tmp_path / "other"
    (other / "images").mkdir(parents=True)
    os.makedirs(store.root)
    os.symlink(str(other / "images"), store.images)
    with pytest.raises(UsageError, match=r"leads to .*/other/images, but .*/root/layers does not lead to") as caught:
        installing.install(bundle(tmp_path), store)
    assert "make it a link" in caught.value.hint
    assert os.listdir(store.root) == ["images"]
    assert os.listdir(store.images) == []
    os.symlink(str(other / "layers"), store.layers)  # as the hint says; the folder is made
    image = installing.install(bundle(tmp_path), store).image
    assert inventory.check(image).missing == 0
    assert os.listdir(str(other / "layers")) == [os.path.basename(image.layers[0])]


def test_another_umask_has_a_rootfs_of_its_own(tmp_path, store, images):
    before = os.umask(0o077)
    try:
        image = installing.install(bundle(tmp_path, "3"), store).image
    finally:
        os.umask(before)
    assert image.layers[0] != images[0].layers[0]
    assert stat.S_IMODE(os.stat(image.rootfs + "/bin").st_mode) == 0o700


def test_an_image_of_an_older_deployer(tmp_path, store):
    image = installing.install(bundle(tmp_path, "1"), store).image
    tree = described(image.rootfs)
    own_form(image)
    assert (image.layers, inventory.check(image).missing) == ([], 0)
    assert installing.install(bundle(tmp_path, "1"), store).known
    second = installing.install(bundle(tmp_path, "2"), store).image
    assert described(second.rootfs) == described(image.rootfs) == tree
    lose(image)
    assert inventory.gone(image).missing == 1
    installing.install(bundle(tmp_path, "1"), store)
    assert image.layers[0] == second.layers[0]
    assert inventory.gone(image).missing == 0


# ---------------------------------------------------------------- overlays


def with_wheels(tmp_path, version, module=b"x = 1"):
    found = [("deployer/wheels/" + wheels.file_name("one"), wheels.wheel({"one/m.py": module}, "one"))]
    found.append(("deployer/variants/openmpi/" + wheels.file_name("two"), wheels.wheel({"two/m.py": b""}, "two")))
    return bundle(tmp_path, version, found, python="/usr/bin/python3")


@pytest.fixture
def compiled(monkeypatch):
    """Pretend that containers can be started; return the folders that were compiled, as often as they were."""
    calls = []

    def run(runtime, *_):
        (module,) = [word[7:].partition(":")[0] for word in runtime if word.startswith("--bind=")]
        calls.append(module)
        os.mkdir(module + "/lib/__pycache__")
        Path(module + "/lib/__pycache__/m.pyc").write_text("compiled")

    monkeypatch.setattr(bytecode, "is_possible", lambda _: True)
    monkeypatch.setattr(bytecode, "_runtime", lambda _: RUNTIMES["charliecloud"])
    monkeypatch.setattr(bytecode.process, "run", lambda words, *_, **more: run(words))
    return calls


def test_the_same_wheels_are_unpacked_and_compiled_once(tmp_path, store, compiled):
    first, second = [installing.install(with_wheels(tmp_path, version), store).image for version in ("1", "2")]
    assert len(compiled) == 2  # the wheelhouse and a variant
    assert first.layers == second.layers
    assert len(second.layers) == len(os.listdir(store.layers)) == 2
    assert os.path.samefile(first.wheels, second.wheels)
    assert os.path.samefile(first.variant("openmpi"), second.variant("openmpi"))
    assert (first.receipt.files, first.receipt.bytes) == (second.receipt.files, second.receipt.bytes)
    assert Path(second.wheels + "/lib/__pycache__/m.pyc").read_text() == "compiled"
    bytecode.restore(second.folder, str(tmp_path / "node"))
    assert os.path.isfile(str(tmp_path / "node/variants/openmpi/lib/__pycache__/m.pyc"))
    remove.remove(store, first, force=True)
    assert inventory.check(second).missing == 0
    remove.remove(store, second, force=True)
    assert os.listdir(store.layers) == []


def test_other_wheels_have_overlays_of_their_own_beside_the_same_rootfs(tmp_path, store, compiled):
    first = installing.install(with_wheels(tmp_path, "1"), store).image
    second = installing.install(with_wheels(tmp_path, "2", b"x = 2"), store).image
    assert first.layers[0] == second.layers[0]
    assert first.layers[1] != second.layers[1]
    assert len(compiled) == 4


def test_bytecode_is_made_where_a_container_starts_though_the_same_wheels_lack_it(
    tmp_path, store, compiled, monkeypatch
):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(bytecode, "is_possible", lambda _: False)
        elsewhere.setattr(bytecode, "_runtime", lambda _: None)
        first = installing.install(with_wheels(tmp_path, "1"), store).image
    second = installing.install(with_wheels(tmp_path, "2"), store).image
    assert [bytecode.size(image.folder) > 0 for image in (first, second)] == [False, True]
    assert first.layers[0] == second.layers[0]


def test_overlays_with_bytecode_are_shared_without_a_look_for_a_runtime(tmp_path, store, compiled, monkeypatch):
    first = installing.install(with_wheels(tmp_path, "1"), store).image
    looked = []
    monkeypatch.setattr(bytecode, "is_possible", looked.append)  # None: no container can start
    second = installing.install(with_wheels(tmp_path, "2"), store).image
    assert (second.layers, looked) == (first.layers, [])
    os.unlink(first.wheels + "/lib/one/m.py")
    third = installing.install(with_wheels(tmp_path, "3"), store).image
    assert len(looked) == 1
    assert third.layers[1] != first.layers[1]


def test_lost_overlays_are_repaired_and_damaged_wheels_are_refused(tmp_path, store, compiled):
    first, second = [installing.install(with_wheels(tmp_path, version), store).image for version in ("1", "2")]
    os.unlink(first.wheels + "/lib/one/m.py")
    assert [inventory.gone(image).missing for image in (first, second)] == [1, 1]
    assert not installing.install(with_wheels(tmp_path, "2"), store).known
    assert [inventory.gone(image).missing for image in (first, second)] == [0, 0]
    path = with_wheels(tmp_path, "3")
    with verify.opened(path) as stream:
        place = verify.begin(stream, path).member_segments("deployer/overlays/wheels.tar")[1].offset
    bundles.overwrite(path, b"!!", place + 40)
    with pytest.raises(IntegrityError, match="does not match its digest"):
        installing.install(path, store)
    assert len(os.listdir(store.layers)) == 2


# ---------------------------------------------------------------- other users and forms


def test_a_stray_file_among_the_layers_is_no_images_bytecode(tmp_path, store, images):
    """In a root folder of a group others can put one there; nodes would unpack it over the image."""
    with open(os.path.join(store.layers, "bytecode.tar"), "wb"):
        pass
    third = installing.install(bundle(tmp_path, "3"), store).image
    assert "bytecode.tar" not in os.listdir(third.folder)
