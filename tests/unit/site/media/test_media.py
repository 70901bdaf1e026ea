"""receive of several media, in any order, plain and encrypted with the real age; and of hostile ones."""

import json
import os
import subprocess

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import IntegrityError, MissingTool, SpaceError, UsageError
from deployer.contract.bundle import delta
from deployer.site.install import incoming
from deployer.site.install.receive import receive
from deployer.site.media import media
from deployer.site.storage.store import Store
from tests import bundles
from tests.unit.site.install.test_receive import as_stream, shipment

EXTRA = [("deployer/wheels/%d" % number, os.urandom(90000)) for number in range(6)]
needs_age = pytest.mark.needs("age")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(delta, "PART_SIZE", 100000)


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "root"))


@pytest.fixture(scope="module")
def data():
    return bundles.build(extra=EXTRA)


@pytest.fixture
def key(tmp_path):
    """Return a function that makes a key and returns its path."""

    def make(name="key", kind="ed25519"):
        path = str(tmp_path / name)
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)
        return path

    return make


def write(folder, data, total=3, keys=()):
    """Write a bundle to media as push does, and return their folders."""
    _, (ending, *parts) = shipment(data)
    share = -(-len(parts) // total)
    made = []
    for number in range(1, total + 1):
        place = folder / str(number)
        place.mkdir(parents=True)
        made.append(str(place))
        (place / (delta.MEDIUM % (number, total))).touch()
        items = [ending, *parts[(number - 1) * share : number * share]]
        if keys:
            for count, pair in enumerate([items[:2], [ending, *items[2:]]]):
                encrypt(place / ("%04d.age" % count), as_stream(pair).read(), keys)
        else:
            for name, content in items:
                (place / name).write_bytes(content)
    return made


def encrypt(path, content, keys):
    recipients = [word for each in keys for word in ("-R", each + ".pub")]
    with open(str(path), "wb") as target:
        subprocess.run(["age", "--encrypt", *recipients], input=content, stdout=target, check=True)


def take(store, folders, key="", program="age"):
    return media.gather(list(folders), store, key, program, lambda count, total: None)


def first_part(folder):
    return sorted(path for path in map(str, folder.iterdir()) if path.endswith(".part"))[0]


def names(store):
    return sorted(os.listdir(store.incoming)) if os.path.isdir(store.incoming) else []


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_media_in_any_order(tmp_path, store, data, order):
    folders = write(tmp_path / "media", data)
    left = [delta.MEDIUM % (number, 3) for number in (1, 2, 3)]
    for number in order:
        left.remove(delta.MEDIUM % (number + 1, 3))
        folder, missing = take(store, [folders[number]])
        assert missing == left
    image = receive(folder, store).image
    with open(store.bundle(image.receipt), "rb") as stream:
        assert stream.read() == data
    assert names(store) == []
    assert len(os.listdir(folders[0])) == 4  # media are left alone


def test_all_media_at_once_and_again(tmp_path, store, data, capsys):
    folders = write(tmp_path / "media", data)
    assert main.main(["receive", *folders[1:], "--root", store.root]) == 0
    said = capsys.readouterr()
    assert "missing: medium 1 of 3" in said.out
    assert "receive --root {} DIR".format(store.root) in said.err
    assert main.main(["receive", folders[1], "--root", store.root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": None, "missing": ["medium-1-of-3"]}
    for _ in range(2):
        assert main.main(["receive", *folders, "--root", store.root]) == 0
    assert "is already installed" in capsys.readouterr().out


def test_marks_stay_as_long_as_the_parts(tmp_path, store, data):
    folder, _ = take(store, write(tmp_path / "media", data)[:1])
    for name in ("medium-1-of-3", "medium-x"):
        with open(os.path.join(folder, name), "a"):
            os.utime(os.path.join(folder, name), (1, 1))
    assert [os.path.basename(path) for path in incoming.stale(store)] == ["medium-x"]


def test_a_folder_without_marks_is_not_copied(tmp_path, store, data):
    (folder,) = write(tmp_path / "media", data, total=1)
    os.unlink(os.path.join(folder, "medium-1-of-1"))
    assert take(store, [folder]) == (folder, [])
    assert names(store) == []


def test_an_interrupted_copy_continues(tmp_path, store, data, monkeypatch):
    folders = write(tmp_path / "media", data, total=1)
    copied = []
    real = media._take

    def dies(parcel, part, stream, what):
        if len(copied) == 3:
            raise KeyboardInterrupt
        copied.append(part)
        real(parcel, part, stream, what)

    monkeypatch.setattr(media, "_take", dies)
    with pytest.raises(KeyboardInterrupt):
        take(store, folders)
    monkeypatch.setattr(media, "_take", real)
    monkeypatch.setattr(media.receive, "undamaged", lambda *args: copied.append(args) or args[2] + 10**9)
    folder, missing = take(store, folders)
    assert missing == []
    assert len(copied) == 3 + len([name for name in os.listdir(folder) if name.endswith(".part")]) - 3


def test_space_is_asked_for_first(tmp_path, store, data, monkeypatch):
    folders = write(tmp_path / "media", data)
    real = os.statvfs

    class Full:
        f_bavail, f_frsize, f_files, f_favail = len(data) * 2 // 512 - 200, 512, 0, 0

    monkeypatch.setattr(os, "statvfs", lambda path: Full)
    with pytest.raises(SpaceError, match="are needed"):
        take(store, folders[:1])
    assert names(store) == []
    monkeypatch.setattr(os, "statvfs", real)
    take(store, folders[:1])


@pytest.mark.parametrize("damage", ["changed", "cut", "longer", "fifo", "gone", "dangling"])
def test_a_damaged_part_is_named_and_nothing_is_lost(tmp_path, store, data, damage):
    folders = write(tmp_path / "media", data)
    take(store, folders[:1])
    path = first_part(tmp_path / "media" / "2")
    with open(path, "rb") as stream:
        good = stream.read()
    os.unlink(path)
    if damage == "fifo":
        os.mkfifo(path)
    elif damage == "dangling":
        os.symlink("/nowhere", path)
    elif damage != "gone":
        bad = {"changed": b"x" + good[1:], "cut": good[:-1], "longer": good + b"x"}[damage]
        with open(path, "wb") as stream:
            stream.write(bad)
    before = set(os.listdir(os.path.join(store.incoming, names(store)[0])))
    if damage == "gone":
        folder, missing = take(store, folders[1:])
        assert missing == []
        with pytest.raises(UsageError, match="are neither in"):
            receive(folder, store)
    else:
        assert main.main(["receive", *folders[1:], "--root", store.root]) in (1, 4)
        if damage not in ("fifo", "dangling"):
            with pytest.raises(IntegrityError, match=os.path.basename(path)):
                take(store, folders[1:])
    assert before <= set(os.listdir(os.path.join(store.incoming, names(store)[0])))
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "wb") as stream:
        stream.write(good)
    folder, missing = take(store, folders[1:])
    assert receive(folder, store).image
    assert missing == []


def test_media_of_two_bundles(tmp_path, store, data):
    other = bundles.build(extra=EXTRA, version="2")
    ours, theirs = write(tmp_path / "a", data), write(tmp_path / "b", other)
    with pytest.raises(UsageError, match="parts of another bundle"):
        take(store, [ours[0], theirs[1]])
    ending = next(name for name in os.listdir(theirs[0]) if name.endswith(".end"))
    os.rename(os.path.join(theirs[0], ending), os.path.join(ours[0], ending))
    with pytest.raises(IntegrityError, match=r"\.part is damaged, or of another bundle"):
        take(store, ours)
    os.rename(os.path.join(ours[0], ending), os.path.join(ours[0], "1-2.end"))
    with pytest.raises(IntegrityError, match=r"1-2\.end does not have the size"):
        take(store, ours)


@pytest.mark.parametrize(
    ("lie", "missing"),
    [
        ("medium-9-of-3", []),
        ("medium-1-of-999", None),
        ("medium-0-of-3", []),
        ("medium-1-of-3\n", []),
        ("medium-1-of-99999", []),
    ],
)
def test_numbers_that_lie_only_change_messages(tmp_path, store, data, lie, missing):
    folders = write(tmp_path / "media", data)
    os.rename(os.path.join(folders[2], "medium-3-of-3"), os.path.join(folders[2], lie))
    take(store, folders[:1])
    folder, named = take(store, folders[1:])
    assert named == []  # everything is here
    assert receive(folder, store).image


@pytest.mark.parametrize("name", ["../../evil.part", "0-5.part/", "..", "00-5.part", "1-2-3.part", "README.txt"])
def test_other_names_are_ignored(name):
    assert delta.read_name(name) is None


@pytest.mark.thorough
@needs_age
@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_encrypted_media(tmp_path, store, data, key, kind):
    folders = write(tmp_path / "media", data, keys=[key("other"), key(kind=kind)])
    mine = str(tmp_path / "key")
    assert take(store, folders[2:], mine)[1] == ["medium-1-of-3", "medium-2-of-3"]
    folder, missing = take(store, folders, mine)
    assert missing == []
    with open(store.bundle(receive(folder, store).image.receipt), "rb") as stream:
        assert stream.read() == data


@pytest.mark.thorough
@needs_age
@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        ("cut", IntegrityError, r"0001\.age is damaged: age: error: "),
        ("empty", IntegrityError, r"0001\.age is damaged: age: error: "),
        ("changed", IntegrityError, r"0001\.age is damaged: age: error: "),
        ("header", IntegrityError, r"0001\.age is damaged: age: error: "),
        ("swapped", UsageError, r"0001\.age has parts of another bundle"),
        ("unsealed", IntegrityError, r"0001\.age is damaged: it has"),
    ],
)
def test_encrypted_files_that_were_changed(tmp_path, store, data, key, damage, error, words):
    mine = key()
    folders = write(tmp_path / "media", data, keys=[mine])
    path = tmp_path / "media" / "1" / "0001.age"
    good = path.read_bytes()
    if damage == "cut":
        path.write_bytes(good[:-1])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage in ("changed", "header"):
        at = len(good) - 100 if damage == "changed" else 70
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    elif damage == "swapped":
        encrypt(path, as_stream(shipment(bundles.build(version="2"))[1]).read(), [mine])
    else:
        encrypt(path, as_stream([("0-5.part", b"abcd")]).read(), [mine])
    with pytest.raises(error, match=words):
        take(store, folders, mine)
    assert any(name.endswith(".part") for name in os.listdir(os.path.join(store.incoming, names(store)[0])))
    path.write_bytes(good)
    folder, missing = take(store, folders, mine)
    assert (missing, bool(receive(folder, store).image)) == ([], True)


@needs_age
def test_keys_and_programs_that_do_not_fit(tmp_path, store, data, key, capsys):
    folders = write(tmp_path / "media", data, total=1, keys=[key()])
    with pytest.raises(UsageError, match="no identity matched"):
        take(store, folders, key("other"))
    for wrong in (str(tmp_path / "none"), str(tmp_path / "key.pub"), key("ec", "ecdsa")):
        with pytest.raises(UsageError, match="does not open"):
            take(store, folders, wrong)
    with pytest.raises(MissingTool):
        take(store, folders, str(tmp_path / "key"), str(tmp_path / "no-age"))
    assert names(store) == []
    words = ["receive", folders[0], "--root", store.root]
    assert main.main([*words, "--identity", str(tmp_path / "other")]) == 2
    assert main.main(["inspect", folders[0]]) == 2
    assert "it is encrypted" in capsys.readouterr().err
    os.unlink(os.path.join(folders[0], "0001.age"))
    os.mkfifo(os.path.join(folders[0], "0001.age"))
    assert main.main([*words, "--identity", str(tmp_path / "key")]) == 1
