"""Files of unchanged frames are linked from another layer, but only those that are what install made of the frame."""

import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from deployer.contract.base.errors import IntegrityError, SpaceError
from deployer.contract.base.tarformat import (
    FILE,
    FILES,
    FOLDER,
    FOLDERS,
    HARDLINK,
    LINKS,
    MTIME,
    REST,
    TarEntry,
    encode,
)
from deployer.site.install import donor, gc, remove
from deployer.site.install import install as installing
from deployer.site.storage import frames, inventory
from deployer.site.storage.store import Store
from tests import bundles, forked
from tests.trees import described

LARGE = b"large" * 40000


def pieces(changed=b"old"):
    """Return a layer of five frames of files, of which the second has ``changed`` and the last two a large file."""
    entries = [(TarEntry(FOLDER, b"d", 0o755), b"")]
    groups = [[(b"d/a", b"a" * 900), (b"d/b", b"")], [(b"d/c", changed)], [(b"d/tool", b"#!")]]
    found = [(FOLDERS, encode(entries[0][0]))]
    for group in groups:
        files = [(TarEntry(FILE, path, 0o755 if path == b"d/tool" else 0o644, len(data)), data) for path, data in group]
        found.append((FILES, b"".join(encode(entry) + data + bytes(-len(data) % 512) for entry, data in files)))
    large = encode(TarEntry(FILE, b"d/large", 0o644, len(LARGE))) + LARGE + bytes(-len(LARGE) % 512)
    found += [(FILES, large[:70000]), (REST, large[70000:140000]), (REST, large[140000:])]
    links = encode(TarEntry(HARDLINK, b"d/same", 0o777, 0, b"d/a"))
    return [*found, (LINKS, links + bytes(1024))]


def bundle(tmp_path, version, changed=b"old", **options):
    return str(bundles.write(tmp_path / (version + ".tar"), pieces(changed), version=version, **options))


@pytest.fixture
def first(tmp_path, store):
    return installing.install(bundle(tmp_path, "1"), store).image


@pytest.fixture
def fresh(tmp_path):
    """Return the tree of the second bundle, installed where nothing can be linked."""
    elsewhere = Store(str(tmp_path / "elsewhere"))
    return described(installing.install(bundle(tmp_path, "2", b"new"), elsewhere).image.rootfs)


def second(tmp_path, store):
    return installing.install(bundle(tmp_path, "2", b"new"), store).image


def shared(one, other):
    """Return the names in ``d`` that are the same file in both images."""
    names = os.listdir(one.rootfs + "/d")
    return {name for name in names if os.path.samefile(*(image.rootfs + "/d/" + name for image in (one, other)))}


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Return the units that were compared by content, each with its first file; workers note them in a file."""
    notes = tmp_path / "compared"
    real = donor._Linking._is_same

    def noted(self, unit, found):
        same = real(self, unit, found)
        with notes.open("a") as stream:
            stream.write(f"{found[0].path.decode()} {same}\n")
        return same

    monkeypatch.setattr(donor._Linking, "_is_same", noted)
    return lambda: sorted(notes.read_text().splitlines()) if notes.exists() else []


def test_unchanged_frames_are_linked_and_the_tree_is_the_same(tmp_path, store, first, fresh):
    image = second(tmp_path, store)
    assert described(image.rootfs) == fresh
    assert shared(first, image) == {"a", "b", "tool", "large", "same"}
    assert image.receipt.bytes == first.receipt.bytes
    assert image.receipt.files == first.receipt.files
    assert inventory.gone(image).missing == 0
    assert listed_and_walked(image)
    assert Path(first.rootfs + "/d/c").read_text() == "old"


def listed_and_walked(image):
    """Return whether the lists of an image's layer have what is on disk, although install does not read it again."""
    layer = image.layers[0]
    folders = {
        os.path.relpath(folder, layer + "/rootfs").encode(): os.lstat(folder).st_ino
        for folder, _, _ in os.walk(layer + "/rootfs")
    }
    folders[b""] = folders.pop(b".")
    walked = sorted(inventory._walk(os.fsencode(layer), []))
    return inventory._read(layer) == walked and frames.read(layer).folders == folders


def test_the_new_layer_is_a_donor_as_well(tmp_path, store, first):
    image = second(tmp_path, store)
    remove.remove(store, first, force=True)
    third = installing.install(bundle(tmp_path, "3", b"third"), store).image
    assert shared(image, third) == {"a", "b", "tool", "large", "same"}


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.truncate(path, 3),
        lambda path: os.utime(path, (1, 1)),
        lambda path: os.chmod(path, 0o600),
        os.unlink,
        lambda path: (os.unlink(path), os.symlink("/etc/passwd", path)),
        lambda path: (os.unlink(path), os.mkfifo(path)),
        lambda path: (os.unlink(path), os.mkdir(path)),
    ],
    ids=["size", "time", "mode", "gone", "link", "pipe", "folder"],
)
@pytest.mark.parametrize("name", ["b", "large"])
def test_a_file_that_does_not_look_as_installed_is_not_linked(tmp_path, store, first, fresh, name, change):
    change(os.path.join(first.rootfs, "d", name))
    image = second(tmp_path, store)
    assert described(image.rootfs) == fresh
    assert os.lstat(image.rootfs + "/d/" + name).st_ino != getattr(
        os.lstat(first.rootfs + "/d/" + name) if os.path.lexists(first.rootfs + "/d/" + name) else None, "st_ino", 0
    )


@pytest.mark.parametrize(("name", "at"), [("a", 5), ("large", 5), ("large", 100000), ("large", len(LARGE) - 1)])
def test_other_content_of_the_same_size_and_time_is_not_linked(tmp_path, store, first, fresh, compared, name, at):
    """As after `cp -p` of another version over it: all files of images have the same time."""
    path = first.rootfs + "/d/" + name
    bundles.overwrite(path, b"!", at)
    os.utime(path, (MTIME, MTIME))
    image = second(tmp_path, store)
    assert described(image.rootfs) == fresh
    assert not os.path.samefile(path, image.rootfs + "/d/" + name)
    assert compared() == [f"d/{name} False"]


def replaced(tmp_path, store, put):
    """Return the first image, with another ``d``: of an older image, with other content of the same size."""
    old = installing.install(bundle(tmp_path, "0"), Store(str(tmp_path / "older"))).image.rootfs + "/d"
    bundles.overwrite(old + "/a", b"!")
    os.utime(old + "/a", (MTIME, MTIME))
    image = installing.install(bundle(tmp_path, "1"), store).image
    os.rename(image.rootfs + "/d", str(tmp_path / "aside"))
    put(old, image.rootfs + "/d")
    return image


def test_files_of_a_folder_that_was_moved_there_are_compared(tmp_path, store, fresh, compared):
    """A move leaves the ctime of what is in the folder."""
    image = replaced(tmp_path, store, os.rename)
    made = second(tmp_path, store)
    assert described(made.rootfs) == fresh
    assert shared(image, made) == {"tool", "large"}
    assert compared() == ["d/a False", "d/large True", "d/tool True"]


def test_files_below_a_link_are_not_linked(tmp_path, store, fresh, compared):
    image = replaced(tmp_path, store, os.symlink)
    made = second(tmp_path, store)
    assert described(made.rootfs) == fresh
    assert (shared(image, made), compared()) == (set(), [])


def test_layers_of_others_give_nothing_and_may_be_closed(tmp_path, store, first):
    """A path in a folder without permission cannot be looked at; for root, one below a file cannot."""
    theirs = os.path.join(store.layers, "0" * 32 + "-%d" % (os.geteuid() + 1))
    with open(theirs, "wb"):
        pass
    os.symlink(first.layers[0], os.path.join(store.layers, "0" * 32 + "-%d" % os.geteuid()))
    assert donor._newest(store) == first.layers
    assert shared(first, second(tmp_path, store)) == {"a", "b", "tool", "large", "same"}


def test_a_touched_file_with_the_right_content_is_compared_and_linked(tmp_path, store, first, fresh, compared):
    for name in ("a", "large"):
        os.utime(first.rootfs + "/d/" + name, (MTIME, MTIME))
    image = second(tmp_path, store)
    assert described(image.rootfs) == fresh
    assert shared(first, image) == {"a", "b", "tool", "large", "same"}
    assert compared() == ["d/a True", "d/large True"]


def test_a_changed_file_in_one_image_is_seen_before_it_is_shared_with_the_next(tmp_path, store, first):
    """The two images share it; a third gets its own from the bundle."""
    image = second(tmp_path, store)
    bundles.overwrite(image.rootfs + "/d/a", b"!")
    third = installing.install(bundle(tmp_path, "3", b"third"), store).image
    assert Path(third.rootfs + "/d/a").read_bytes() == b"a" * 900


def test_frames_are_checked_though_their_files_are_linked(tmp_path, store, first):
    path = bundle(tmp_path, "2", b"new")
    data = bytearray(Path(path).read_bytes())
    for frame in first.manifest().segments:
        if frame.kind == "frame" and frame.holds == "files" and (frame.raw or 0) > 60000:
            data[frame.offset + 20] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(IntegrityError, match="does not match its digest"):
        installing.install(path, store)
    assert len(os.listdir(store.layers)) == len(os.listdir(store.images)) == 1
    assert inventory.gone(first).missing == 0


@pytest.mark.parametrize("error", [OSError(31, "Too many links"), OSError(18, "Invalid cross-device link")])
def test_where_links_fail_the_rest_is_unpacked(tmp_path, store, first, fresh, monkeypatch, error):
    real = os.link

    def limited(source, target, **options):
        if options.get("follow_symlinks") is False and source in (b"d/b", b"d/large"):
            raise error
        real(source, target, **options)

    monkeypatch.setattr(os, "link", limited)
    image = second(tmp_path, store)
    assert described(image.rootfs) == fresh
    assert shared(first, image) == {"tool"}


def test_a_donor_that_is_removed_meanwhile(tmp_path, store, first, fresh, monkeypatch):
    real = donor._Linking._link

    def late(self, found):
        if os.path.isdir(first.folder):
            remove.remove(store, first, force=True)
        return real(self, found)

    monkeypatch.setattr(donor._Linking, "_link", late)
    image = second(tmp_path, store)
    assert described(image.rootfs) == fresh
    assert len(os.listdir(store.layers)) == 1


def test_a_donor_that_was_removed_after_it_was_chosen(tmp_path, store, first, fresh, monkeypatch):
    real = installing._write_image

    def late(*arguments):
        remove.remove(store, first, force=True)
        return real(*arguments)

    monkeypatch.setattr(installing, "_write_image", late)
    assert described(second(tmp_path, store).rootfs) == fresh


def test_each_image_is_removed_and_repaired_by_itself(tmp_path, store, first, fresh):
    image = second(tmp_path, store)
    os.unlink(first.rootfs + "/d/large")
    assert (inventory.gone(first).missing, inventory.gone(image).missing) == (1, 0)
    inode = os.stat(first.rootfs + "/d/a").st_ino
    first = installing.install(bundle(tmp_path, "1"), store).image
    assert inventory.gone(first).missing == 0
    assert os.stat(first.rootfs + "/d/a").st_ino != inode  # a repair takes everything from the bundle
    remove.remove(store, first, force=True)
    gc.collect(gc.find(store, 1))
    assert described(image.rootfs) == fresh


@pytest.mark.parametrize("damage", [b"", b"no list", None])
def test_a_layer_without_its_list_gives_nothing_and_is_whole(tmp_path, store, first, fresh, damage):
    path = os.path.join(first.layers[0], frames.LIST)
    os.unlink(path)
    if damage is not None:
        Path(path).write_bytes(damage)
    assert inventory.gone(first).missing == 0
    image = second(tmp_path, store)
    assert described(image.rootfs) == fresh
    assert shared(first, image) == set()


def test_another_umask_or_read_only_files_are_not_shared(tmp_path, store, first):
    before = os.umask(0o077)
    try:
        image = second(tmp_path, store)
    finally:
        os.umask(before)
    assert shared(first, image) == set()
    assert stat.S_IMODE(os.stat(image.rootfs + "/d/a").st_mode) == 0o600
    assert donor.choose(store, "new", image.manifest().segments, True) is None


def test_space_is_needed_only_for_what_is_not_linked(tmp_path, store, first, monkeypatch):
    asked = []
    monkeypatch.setattr(installing.space, "check", lambda where, size, entries: asked.append((size, entries)))
    second(tmp_path, store)
    other = Store(str(tmp_path / "other"))
    installing.install(bundle(tmp_path, "2", b"new"), other)
    (little, few), (much, many) = asked
    assert little < much - len(LARGE)
    assert few == many - 4

    def full(*_):
        raise SpaceError("full")

    monkeypatch.setattr(installing.space, "check", full)
    with pytest.raises(SpaceError):
        installing.install(bundle(tmp_path, "3", b"third"), store)
    assert len(os.listdir(store.layers)) == 2


def test_a_path_of_a_list_that_leads_out_is_not_linked(tmp_path, store, first, fresh, monkeypatch):
    """The list is this user's own file; still nothing is made outside."""
    outside = store.root + "/out"
    shutil.copy2(first.rootfs + "/d/tool", outside)
    real = frames.FrameNote.files

    def files(self):
        return [file._replace(path=b"../../../out") if file.path == b"d/tool" else file for file in real(self)]

    monkeypatch.setattr(frames.FrameNote, "files", files)
    assert described(second(tmp_path, store).rootfs) == fresh


# ---------------------------------------------------------------- several processes


@pytest.mark.thorough
def test_killed_at_each_link(tmp_path, store, first, fresh):
    tree, points = described(first.rootfs), 0
    path = bundle(tmp_path, "2", b"new")
    while True:

        def install_until(count=points):
            real, calls = os.link, []

            def deadly(*arguments, **options):
                calls.append(1)
                if len(calls) > count:
                    os.kill(os.getppid() if os.getpid() != installer else os.getpid(), signal.SIGKILL)
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            installer = os.getpid()
            os.link = deadly
            installing.install(path, store, jobs=1)

        _, status = os.waitpid(forked.fork(install_until), 0)
        assert described(first.rootfs) == tree
        image = installing.install(path, store).image
        assert described(image.rootfs) == fresh
        assert shared(first, image) == {"a", "b", "tool", "large", "same"}
        remove.remove(store, image, force=True)
        if status == 0:
            break
        points += 1
    assert points == 4  # files; the first is also the hard link of the layer itself, which another process makes


@pytest.mark.thorough
def test_two_installs_at_once_from_one_donor(tmp_path, store, first, fresh):
    paths = [bundle(tmp_path, version, b"new") for version in ("2", "3", "4", "5")]
    pids = [forked.fork(lambda path=path: installing.install(path, store, jobs=2)) for path in paths]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    for image in store.installed():
        if image.receipt.version != "1":
            assert described(image.rootfs) == fresh
            assert shared(first, image) == {"a", "b", "tool", "large", "same"}
    assert len(os.listdir(store.layers)) == 2
