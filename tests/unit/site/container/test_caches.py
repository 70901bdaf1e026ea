"""Caches of compiled code go from job to job, and nothing that a job leaves in its home gets further than it should."""

import io
import json
import os
import threading

import pytest

from deployer.contract.base.errors import DeployerError
from deployer.site.capture import node
from deployer.site.container import caches
from deployer.site.storage.store import Store
from deployer.system import files
from tests.others import NOBODY

PATHS = [".triton/cache", "own"]


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "root/caches/aaaa-1"


def home(tmp_path, name, **contents):
    """Return a job's home with files in its folder ``own``."""
    folder = tmp_path / name
    (folder / "own").mkdir(parents=True)
    for path, text in contents.items():
        (folder / "own" / path).write_text(text)
    return folder


def saved(folder, kept):
    caches.save(str(folder), str(kept), PATHS)


def restored(tmp_path, kept, paths=PATHS):
    """Return the texts of what a new home gets, by path."""
    folder = tmp_path / ("new-" + os.urandom(4).hex())
    folder.mkdir()
    caches.restore(str(folder), str(kept), paths)
    paths = [os.path.join(top, name) for top, _, names in os.walk(str(folder)) for name in names]
    texts = {}
    for path in paths:
        with open(path) as stream:
            texts[os.path.relpath(path, str(folder))] = stream.read()
    return texts


def archive(kept):
    (path,) = kept.iterdir()
    return path


def test_a_new_home_gets_what_an_ended_job_left_below_the_paths(tmp_path, kept, capsys):
    first = home(tmp_path, "first", kernel="code")
    (first / ".triton/cache/x").mkdir(parents=True)
    (first / ".triton/cache/x/y.so").write_text("library")
    (first / ".triton/cache/x/y.so").chmod(0o6755)
    (first / ".triton/other").write_text("not asked for")
    os.utime(str(first / "own/kernel"), (1000, 1000))
    saved(first, kept)
    assert "deployer: kept 2 files of caches (11 B) for later jobs" in capsys.readouterr().err
    assert restored(tmp_path, kept) == {"own/kernel": "code", ".triton/cache/x/y.so": "library"}
    assert restored(tmp_path, kept, ["own"]) == {"own/kernel": "code"}
    second = tmp_path / "second"
    second.mkdir()
    caches.restore(str(second), str(kept), PATHS)
    assert (second / "own/kernel").stat().st_mtime == 1000
    assert (second / "own/kernel").stat().st_mode & 0o7777 == 0o600
    assert (second / ".triton/cache/x/y.so").stat().st_mode & 0o7777 == 0o700
    assert sorted(os.listdir(str(second))) == [".triton", "own"]
    assert (kept.stat().st_mode & 0o777, archive(kept).stat().st_mode & 0o777) == (0o700, 0o600)
    before = archive(kept).stat()
    saved(second, kept)
    assert archive(kept).stat().st_ino == before.st_ino  # nothing is new
    assert capsys.readouterr().err == ""


def test_jobs_add_and_replace_files(tmp_path, kept):
    saved(home(tmp_path, "first", a="1", b="1"), kept)
    second = home(tmp_path, "second", b="22", c="2")
    (second / ".triton/cache").mkdir(parents=True)
    (second / ".triton/cache/d").write_text("2")
    saved(second, kept)
    assert restored(tmp_path, kept) == {"own/a": "1", "own/b": "22", "own/c": "2", ".triton/cache/d": "2"}
    third = home(tmp_path, "third", a="3")
    os.utime(str(third / "own/a"), (1, 1))  # of the same size, but from another time
    saved(third, kept)
    caches.save(str(home(tmp_path, "fourth", e="4")), str(kept), ["own"])  # another job of the image, with other places
    assert restored(tmp_path, kept)[".triton/cache/d"] == "2"
    assert restored(tmp_path, kept)["own/a"] == "3"


def test_nothing_is_made_without_caches(tmp_path, kept, capsys):
    saved(home(tmp_path, "first"), kept)
    saved(tmp_path / "without", kept)
    assert not kept.exists()
    assert restored(tmp_path, kept) == {}
    assert capsys.readouterr().err == ""


def test_another_processor_has_caches_of_its_own(tmp_path, kept, monkeypatch):
    saved(home(tmp_path, "first", a="1"), kept)
    monkeypatch.setattr(caches, "processor", lambda: "other")
    assert restored(tmp_path, kept) == {}
    saved(home(tmp_path, "second", a="2"), kept)
    assert restored(tmp_path, kept) == {"own/a": "2"}
    assert len(list(kept.iterdir())) == 2


def test_the_processor_is_its_model_its_instructions_and_the_gpus(tmp_path):
    def key(text, device=""):
        (tmp_path / "cpuinfo").write_text(text)
        folder = tmp_path / "bus/pci/devices/0000:01:00.0"
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in (("class", "0x030200"), ("vendor", "0x10de" if device else "0x1234"), ("device", device)):
            (folder / name).write_text(value + "\n")
        return caches.processor(str(tmp_path), str(tmp_path))

    text = "model name\t: Xeon\nflags\t\t: fpu avx\ncpu MHz\t\t: %d\n\nmodel name\t: Xeon\nflags\t\t: fpu avx\n"
    arm = "CPU implementer\t: 0x41\nCPU variant\t: 0x1\nCPU part\t: 0xd4f\nFeatures\t: fp sve\n"
    keys = [key(text % 1), key(text.replace("avx", "avx avx512f") % 1), key(text % 1, "0x2330"), key(arm)]
    keys += [key(text % 1, "0x2335"), key(arm.replace("0xd4f", "0xd40")), key("cpu\t\t: POWER9\n"), key("")]
    assert len(set(keys)) == len(keys)
    assert key(text % 2) == keys[0]
    assert node.gpu_paths(str(tmp_path)) == []


# --- hostile homes ---


def test_neither_links_nor_special_files_nor_odd_names_are_kept(tmp_path, kept, monkeypatch):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    bad = home(tmp_path, "bad", good="good")
    os.symlink(str(secret), str(bad / ".triton"))  # a part of the path itself
    (secret / "cache").mkdir()
    (secret / "cache/key").write_text("secret")
    os.symlink(str(secret), str(bad / "own/folder"))
    os.symlink(str(secret / "key"), str(bad / "own/file"))
    os.mkfifo(str(bad / "own/pipe"))
    for name in (b"two\nlines", b"\xff", b"\x1b[2J", b"x" * 255):
        with open(os.path.join(os.fsencode(str(bad)), b"own", name), "w"):
            pass
    saved(bad, kept)
    assert restored(tmp_path, kept) == {"own/good": "good", "own/" + "x" * 255: ""}


def test_a_home_that_became_a_link_is_not_followed(tmp_path, kept):
    real = home(tmp_path, "real", a="1")
    os.symlink(str(real / "own"), str(tmp_path / "own"))
    caches.save(str(tmp_path), str(kept), ["own"])
    assert not kept.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, which can give files away")
def test_another_users_files_are_not_kept(tmp_path, kept):
    bad = home(tmp_path, "bad", mine="1", theirs="2")
    os.chown(str(bad / "own/theirs"), NOBODY, NOBODY)
    saved(bad, kept)
    assert restored(tmp_path, kept) == {"own/mine": "1"}


def test_too_much_is_left_out_and_the_oldest_folders_first(tmp_path, kept, monkeypatch):
    monkeypatch.setattr(caches, "MAX_BYTES", 100)
    big = home(tmp_path, "big")
    for number, name in enumerate(("old", "middle", "new")):
        (big / "own" / name).mkdir()
        for part in ("a", "b"):
            (big / "own" / name / part).write_text(name.ljust(20))
            os.utime(str(big / "own" / name / part), (number, number))
    with open(str(big / "own/holes"), "w") as stream:
        stream.truncate(1 << 40)
    saved(big, kept)
    assert sorted(restored(tmp_path, kept)) == ["own/middle/a", "own/middle/b", "own/new/a", "own/new/b"]
    saved(home(tmp_path, "next", now="x" * 50), kept)
    assert sorted(restored(tmp_path, kept)) == ["own/new/a", "own/new/b", "own/now"]


def test_very_many_files_end_the_search_with_one_line(tmp_path, kept, monkeypatch, capsys):
    monkeypatch.setattr(caches, "_MAX_ENTRIES", 20)
    saved(home(tmp_path, "many", **{"f%d" % number: "" for number in range(30)}), kept)
    assert capsys.readouterr().err == "deployer: warning: keep the caches: they have more than 20 entries\n"
    assert not kept.exists()
    monkeypatch.setattr(caches, "_MAX_ENTRIES", 1000)
    monkeypatch.setattr(caches, "MAX_FILES", 20)
    saved(home(tmp_path, "more", **{"f%d" % number: "" for number in range(30)}), kept)
    assert not kept.exists()


def test_folders_as_deep_as_a_path_can_be(tmp_path, kept):
    deep = home(tmp_path, "deep", a="1")
    here = os.getcwd()
    try:
        os.chdir(str(deep / "own"))
        for _ in range(2000):
            os.mkdir("d")
            os.chdir("d")
        with open("file", "w"):
            pass
    finally:
        os.chdir(here)
    try:
        saved(deep, kept)
    finally:
        files.remove_tree(str(deep))  # pytest cannot
    assert restored(tmp_path, kept) == {"own/a": "1"}


@pytest.mark.parametrize("change", ["shorter", "other", "link"])
def test_a_file_that_changes_while_it_is_read_spoils_nothing(tmp_path, kept, monkeypatch, capsys, change):
    saved(home(tmp_path, "first", a="1"), kept)
    second = home(tmp_path, "second", a="before", b="before")
    listed = caches._found

    def then_changed(*words):
        found = listed(*words)
        if change == "link":
            (second / "own/a").unlink()
            os.symlink("/etc/passwd", str(second / "own/a"))
        else:
            (second / "own/a").write_text("x" if change == "shorter" else "after and longer")
        return found

    monkeypatch.setattr(caches, "_found", then_changed)
    saved(second, kept)
    assert capsys.readouterr().err.count("deployer: warning: ") == 1
    assert restored(tmp_path, kept) == {"own/a": "1"}
    assert len(list(kept.iterdir())) == 1  # no part of a file


def test_a_disk_that_is_slow_or_full_ends_with_one_line(tmp_path, kept, monkeypatch, capsys):
    first = home(tmp_path, "first", a="1")
    monkeypatch.setattr(caches, "_PATIENCE", -1.0)
    saved(first, kept)
    assert "takes more than -1 s" in capsys.readouterr().err
    monkeypatch.setattr(caches, "_PATIENCE", 20.0)
    saved(first, kept)
    capsys.readouterr()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caches, "_write", full)
    assert restored(tmp_path, kept) == {}  # not even a folder
    assert (
        "deployer: warning: use the kept caches: cannot use the kept caches: No space left" in capsys.readouterr().err
    )


# --- the kept file ---


def test_a_folder_that_others_can_enter_is_not_used(tmp_path, kept, capsys):
    saved(home(tmp_path, "first", a="1"), kept)
    kept.chmod(0o750)
    assert restored(tmp_path, kept) == {}
    saved(home(tmp_path, "second", a="2"), kept)
    assert capsys.readouterr().err.count(f"{kept} is not this user's own folder") == 2
    kept.chmod(0o700)
    assert restored(tmp_path, kept) == {"own/a": "1"}
    archive(kept).chmod(0o666)
    assert restored(tmp_path, kept) == {}
    assert "others can write to" in capsys.readouterr().err


def test_a_link_in_the_place_of_the_folder_or_the_file_is_not_used(tmp_path, kept, capsys):
    saved(home(tmp_path, "first", a="1"), kept)
    path = archive(kept)
    path.rename(tmp_path / "moved")
    os.symlink(str(tmp_path / "moved"), str(path))
    assert restored(tmp_path, kept) == {}
    path.unlink()
    kept.rename(tmp_path / "folder")
    os.symlink(str(tmp_path / "folder"), str(kept))
    assert restored(tmp_path, kept) == {}
    saved(home(tmp_path, "second", a="2"), kept)
    assert os.listdir(str(tmp_path / "folder")) == []
    assert capsys.readouterr().err.count("deployer: warning: ") == 3


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, which can become another user")
def test_another_users_folder_is_not_used(tmp_path, kept, capsys):
    kept.parent.mkdir(parents=True)
    kept.parent.chmod(0o777)
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    kept.mkdir(mode=0o700)
    os.chown(str(kept), NOBODY, NOBODY)
    saved(home(tmp_path, "first", a="1"), kept)
    assert "is not this user's own folder" in capsys.readouterr().err
    assert os.listdir(str(kept)) == []


def forged(kept, content, **fields):
    """Write a file as a job could that reaches the folder."""
    item = dict({"path": "own/a", "size": len(content), "mtime": 1, "executable": False}, **fields)
    record = {"schema": "deployer.caches", "format": 1, "min_reader": 1, "files": [item]}
    archive(kept).write_bytes(json.dumps(record).encode() + b"\n" + content)


@pytest.mark.parametrize(
    "fields",
    [
        {"path": "../out"},
        {"path": "own/../../out"},
        {"path": "/etc/out"},
        {"path": "own//a"},
        {"path": "own/a\nb"},
        {"path": "own/\x1b[2J"},
        {"path": 5},
        {"size": 1 << 70},
        {"size": 10**30},
        {"size": -1},
        {"size": 2.0},
        {"size": "2"},
        {"size": None},
        {"mtime": 1 << 62},
        {"mtime": -1},
        {"executable": "yes"},
    ],
)
def test_a_forged_list_puts_nothing_anywhere(tmp_path, kept, capsys, fields):
    saved(home(tmp_path, "first", a="1"), kept)
    forged(kept, b"xx", **fields)
    assert restored(tmp_path, kept) == {}
    assert capsys.readouterr().err.count("deployer: warning: use the kept caches: ") == 1
    assert not (tmp_path / "out").exists()
    saved(home(tmp_path, "second", b="2"), kept)  # it is replaced
    assert restored(tmp_path, kept) == {"own/b": "2"}


@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"[]\n", b"{}\n", b"\0" * 1000, b"x" * (17 << 20)])
def test_a_damaged_file_is_replaced(tmp_path, kept, capsys, content):
    saved(home(tmp_path, "first", a="1"), kept)
    archive(kept).write_bytes(content)
    assert restored(tmp_path, kept) == {}
    assert capsys.readouterr().err.count("deployer: warning: ") == 1
    saved(home(tmp_path, "second", b="2"), kept)
    assert restored(tmp_path, kept) == {"own/b": "2"}


def test_a_file_twice_in_the_list_and_one_within_another_put_nothing_in_the_home(tmp_path, kept, capsys):
    saved(home(tmp_path, "first", a="1"), kept)
    items = [{"path": path, "size": 1, "mtime": 1, "executable": False} for path in ("own/a", "own/a", "own/a/b")]
    record = {"schema": "deployer.caches", "format": 1, "min_reader": 1, "files": items}
    archive(kept).write_bytes(json.dumps(record).encode() + b"\nxxx")
    assert restored(tmp_path, kept) == {}
    assert "deployer: warning: use the kept caches: " in capsys.readouterr().err


def test_what_is_at_the_place_in_the_home_is_not_replaced(tmp_path, kept, capsys):
    saved(home(tmp_path, "first", a="1"), kept)
    target = tmp_path / "target"
    target.mkdir()
    new = tmp_path / "new"
    new.mkdir()
    os.symlink(str(target), str(new / "own"))  # a link of the job to its data
    caches.restore(str(new), str(kept), PATHS)
    assert os.listdir(str(target)) == []
    assert os.path.islink(str(new / "own"))
    assert "deployer: warning: use the kept caches: " in capsys.readouterr().err


def test_jobs_that_end_at_once_leave_a_whole_file(tmp_path, kept, monkeypatch):
    homes = [home(tmp_path, "home%d" % number, same="%d" % number * 1000, own="x") for number in range(8)]
    for number, folder in enumerate(homes):
        (folder / "own" / ("only%d" % number)).write_text("x")
    threads = [threading.Thread(target=saved, args=(folder, kept)) for folder in homes]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        restored(tmp_path, kept)
    for thread in threads:
        thread.join()
    found = restored(tmp_path, kept)
    assert len(set(found["own/same"])) == 1
    assert len(found["own/same"]) == 1000
    assert len(list(kept.iterdir())) == 1


def test_caches_without_a_layer_are_unused(tmp_path):
    store = Store(str(tmp_path))
    for name in ("layers/aa-1", "layers/aa-2", "layers/bb-1", "caches/aa-1", "caches/bb-1", "caches/cc-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name).chmod(0o700)
    (tmp_path / "caches/.removing-x-1-2-3").mkdir(mode=0o700)
    (tmp_path / "caches/dd-2").mkdir()
    (tmp_path / "caches/dd-2").chmod(0o755)  # another user's, as far as can be seen
    (tmp_path / "caches/cc-1/file").write_text("12345")
    assert caches.unused(store) == [str(tmp_path / "caches/cc-1")]
    going = [str(tmp_path / "layers/aa-1"), str(tmp_path / "layers/bb-1")]
    assert caches.unused(store, going) == [str(tmp_path / "caches/bb-1"), str(tmp_path / "caches/cc-1")]
    assert caches.size(store) == 5
    assert caches.size(Store(str(tmp_path / "none"))) == 0


def test_a_copy_of_less_than_was_listed_is_an_error():
    with pytest.raises(DeployerError, match="is shorter than it was"):
        caches._copy(io.BytesIO(b"1"), io.BytesIO(), caches.CacheFile("a", 2, 0, False))
