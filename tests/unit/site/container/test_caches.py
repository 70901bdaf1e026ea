"""Caches of compiled code go from job to job, and nothing that a job leaves in its home gets further than it should."""

import io
import os
import tarfile
import threading

import pytest

from deployer.site.capture import node
from deployer.site.container import caches
from deployer.site.storage.store import Store
from tests.others import NOBODY

PATHS = [".triton/cache", "own"]


@pytest.fixture
def kept(tmp_path):
    """Return the beginning of an image's archives."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root/caches-1/aaaa"


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
    (path,) = kept.parent.iterdir()
    return path


def test_a_new_home_gets_what_an_ended_job_left_below_the_paths(tmp_path, kept, capsys):
    first = home(tmp_path, "first", kernel="code")
    (first / ".triton/cache/x").mkdir(parents=True)
    (first / ".triton/cache/x/y.so").write_text("library")
    (first / ".triton/cache/x/y.so").chmod(0o6755)
    (first / ".triton/other").write_text("not asked for")
    os.utime(str(first / "own/kernel"), (1000, 1000))
    saved(first, kept)
    assert "deployer: kept 11 B of compiled code for later jobs" in capsys.readouterr().err
    assert restored(tmp_path, kept) == {"own/kernel": "code", ".triton/cache/x/y.so": "library"}
    assert restored(tmp_path, kept, ["own"]) == {"own/kernel": "code"}  # a job that keeps less
    second = tmp_path / "second"
    second.mkdir()
    caches.restore(str(second), str(kept), PATHS)
    assert (second / "own/kernel").stat().st_mtime == 1000
    assert (second / ".triton/cache/x/y.so").stat().st_mode & 0o7022 == 0
    assert sorted(os.listdir(str(second))) == [".triton", "own"]
    assert (kept.parent.stat().st_mode & 0o777, archive(kept).stat().st_mode & 0o777) == (0o700, 0o600)
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
    assert not kept.parent.exists()
    assert restored(tmp_path, kept) == {}
    assert capsys.readouterr().err == ""


def test_another_processor_has_caches_of_its_own(tmp_path, kept, monkeypatch):
    saved(home(tmp_path, "first", a="1"), kept)
    monkeypatch.setattr(caches, "archive", "{}-other".format)
    assert restored(tmp_path, kept) == {}
    saved(home(tmp_path, "second", a="2"), kept)
    assert restored(tmp_path, kept) == {"own/a": "2"}
    assert len(list(kept.parent.iterdir())) == 2


def test_the_processor_is_its_model_its_instructions_and_the_gpus(tmp_path):
    def key(text, device=""):
        (tmp_path / "cpuinfo").write_text(text)
        folder = tmp_path / "bus/pci/devices/0000:01:00.0"
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in (("class", "0x030200"), ("vendor", "0x10de" if device else "0x1234"), ("device", device)):
            (folder / name).write_text(value + "\n")
        return caches.archive("begin", str(tmp_path), str(tmp_path))

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


@pytest.mark.parametrize("swapped", ["before", "between"])
def test_a_home_that_became_a_link_is_not_followed(tmp_path, kept, monkeypatch, swapped):
    secret, job = home(tmp_path, "secret", key="secret"), home(tmp_path, "job", key="public")
    for path in (secret, job):
        os.utime(str(path / "own/key"), (1, 1))  # of the same size, too

    def swap():
        job.rename(tmp_path / "moved")
        os.symlink(str(secret), str(job))

    listed = caches._found

    def then_swapped(*words):
        found = listed(*words)
        swap()
        return found

    if swapped == "before":
        swap()
    else:
        monkeypatch.setattr(caches, "_found", then_swapped)
    saved(job, kept)
    assert restored(tmp_path, kept) == {}


def test_a_folder_that_became_a_link_is_not_followed(tmp_path, kept):
    real = home(tmp_path, "real", a="1")
    os.symlink(str(real / "own"), str(tmp_path / "own"))
    caches.save(str(tmp_path), str(kept), ["own"])
    assert not kept.parent.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, which can give files away")
def test_another_users_files_are_not_kept(tmp_path, kept):
    bad = home(tmp_path, "bad", mine="1", theirs="2")
    os.chown(str(bad / "own/theirs"), NOBODY, NOBODY)
    saved(bad, kept)
    assert restored(tmp_path, kept) == {"own/mine": "1"}


def test_too_much_leaves_only_what_the_last_job_compiled(tmp_path, kept, monkeypatch, capsys):
    monkeypatch.setattr(caches, "MAX_BYTES", 100_000)
    saved(home(tmp_path, "first", a="1" * 40_000, b="1" * 40_000), kept)
    second = tmp_path / "second"
    second.mkdir()
    caches.restore(str(second), str(kept), PATHS)
    (second / "own/c").write_text("2" * 40_000)
    saved(second, kept)
    assert sorted(restored(tmp_path, kept)) == ["own/c"]
    capsys.readouterr()
    with open(str(second / "own/holes"), "w") as stream:
        stream.truncate(1 << 40)
    saved(second, kept)
    assert "cannot keep caches of compiled code: " in capsys.readouterr().err
    assert sorted(restored(tmp_path, kept)) == ["own/c"]


def test_very_many_files_end_the_search_with_one_line(tmp_path, kept, monkeypatch, capsys):
    monkeypatch.setattr(caches, "MAX_FILES", 20)
    saved(home(tmp_path, "many", **{"f%d" % number: "" for number in range(30)}), kept)
    message = "deployer: warning: cannot keep caches of compiled code: they are more than 20 files\n"
    assert capsys.readouterr().err == message
    assert not kept.parent.exists()


def test_folders_as_deep_as_a_path_can_be(tmp_path, kept):
    deep = home(tmp_path, "deep", a="1")
    here = os.getcwd()
    try:
        os.chdir(str(deep / "own"))
        for _ in range(600):
            os.mkdir("d")
            os.chdir("d")
        with open("file", "w"):
            pass
    finally:
        os.chdir(here)
    saved(deep, kept)
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
    assert len(list(kept.parent.iterdir())) == 1  # no part of a file


def test_a_disk_that_is_full_ends_with_one_line(tmp_path, kept, monkeypatch, capsys):
    saved(home(tmp_path, "first", a="1", b="2"), kept)
    capsys.readouterr()
    copied = []

    def full(*words):
        copied.append(words)
        if len(copied) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(caches.shutil, "copyfileobj", full)
    assert restored(tmp_path, kept) == {}  # not even a folder
    message = "deployer: warning: cannot use caches of compiled code: [Errno 28] No space left on device\n"
    assert capsys.readouterr().err == message


# --- the archive ---


def test_a_folder_that_others_can_enter_is_not_used(tmp_path, kept, capsys):
    saved(home(tmp_path, "first", a="1"), kept)
    kept.parent.chmod(0o750)
    assert restored(tmp_path, kept) == {}
    saved(home(tmp_path, "second", a="2"), kept)
    assert capsys.readouterr().err.count(f"{kept.parent} is not this user's own folder") == 2
    kept.parent.chmod(0o700)
    assert restored(tmp_path, kept) == {"own/a": "1"}


def test_a_link_in_the_place_of_the_folder_or_the_archive_is_not_used(tmp_path, kept, capsys):
    saved(home(tmp_path, "first", a="1"), kept)
    path = archive(kept)
    path.rename(tmp_path / "moved")
    os.symlink(str(tmp_path / "moved"), str(path))
    assert restored(tmp_path, kept) == {}
    path.unlink()
    kept.parent.rename(tmp_path / "folder")
    os.symlink(str(tmp_path / "folder"), str(kept.parent))
    saved(home(tmp_path, "second", a="2"), kept)
    assert os.listdir(str(tmp_path / "folder")) == []
    assert capsys.readouterr().err.count("deployer: warning: ") == 2


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, which can become another user")
def test_another_users_folder_is_not_used(tmp_path, kept, capsys):
    kept.parent.mkdir(mode=0o700)
    os.chown(str(kept.parent), NOBODY, NOBODY)
    saved(home(tmp_path, "first", a="1"), kept)
    assert "is not this user's own folder" in capsys.readouterr().err
    assert os.listdir(str(kept.parent)) == []


def forged(kept, *members):
    """Write an archive as a job could that reaches the folder."""
    with tarfile.open(str(archive(kept)), "w", format=tarfile.PAX_FORMAT) as target:
        for fields in members:
            member = tarfile.TarInfo()
            member.name, member.size = "own/a", 2
            for name, value in fields.items():
                setattr(member, name, value)
            target.addfile(member, io.BytesIO(b"xx") if member.isreg() else None)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "../out"},
        {"name": "own/../../out"},
        {"name": "/etc/out"},
        {"name": "own//a"},
        {"name": "own/a\nb"},
        {"name": "own/\x1b[2J"},
        {"name": "x/" * 600},
        {"type": tarfile.SYMTYPE, "linkname": "/etc"},
        {"type": tarfile.LNKTYPE, "linkname": "own/a"},
        {"type": tarfile.FIFOTYPE},
        {"type": tarfile.CHRTYPE},
        {"type": tarfile.DIRTYPE},
        {"mtime": 1 << 70},
        {"pax_headers": {"mtime": "nan"}},
        {"pax_headers": {"size": "999999999999999"}},
        {"pax_headers": {"size": "-5"}},
        {"pax_headers": {"path": "../out"}},
        {"pax_headers": {"GNU.sparse.major": "0", "GNU.sparse.size": "999999999", "GNU.sparse.map": "1,1"}},
    ],
)
def test_a_forged_archive_puts_nothing_anywhere(tmp_path, kept, capsys, fields):
    saved(home(tmp_path, "first", a="1"), kept)
    forged(kept, {"name": "own/good"}, fields)
    assert restored(tmp_path, kept) == {}
    assert capsys.readouterr().err.count("deployer: warning: cannot use caches of compiled code: ") == 1
    assert not (tmp_path / "out").exists()
    second = home(tmp_path, "second", b="2")
    os.utime(str(second / "own/b"), (5, 5))
    saved(second, kept)  # it is replaced
    assert restored(tmp_path, kept)["own/b"] == "2"


@pytest.mark.parametrize("content", [b"\n", b"{", b"x" * 100000, b"\0" * 500])
def test_a_damaged_archive_is_replaced(tmp_path, kept, capsys, content):
    saved(home(tmp_path, "first", a="1"), kept)
    archive(kept).write_bytes(content)
    assert restored(tmp_path, kept) == {}
    assert capsys.readouterr().err.count("deployer: warning: ") == 1
    saved(home(tmp_path, "second", b="2"), kept)
    assert restored(tmp_path, kept) == {"own/b": "2"}


def test_an_archive_that_was_cut_puts_nothing_anywhere(tmp_path, kept, capsys):
    saved(home(tmp_path, "first", a="1" * 10000, b="1" * 10000), kept)
    with archive(kept).open("r+b") as stream:
        stream.truncate(15000)
    assert restored(tmp_path, kept) == {}
    assert "deployer: warning: cannot use caches" in capsys.readouterr().err


def test_an_archive_that_is_too_large_is_not_read(tmp_path, kept, monkeypatch, capsys):
    saved(home(tmp_path, "first", a="1"), kept)
    monkeypatch.setattr(caches, "MAX_BYTES", 1000)
    assert restored(tmp_path, kept) == {}
    assert "too large" in capsys.readouterr().err


@pytest.mark.parametrize("names", [("own/a", "own/a"), ("own/a", "own/a/b"), ("own/a/b", "own/a")])
def test_a_file_twice_or_within_another_puts_nothing_in_the_home(tmp_path, kept, capsys, names):
    saved(home(tmp_path, "first", a="1"), kept)
    forged(kept, *({"name": name} for name in names))
    assert restored(tmp_path, kept) == {}
    assert "deployer: warning: cannot use caches of compiled code: " in capsys.readouterr().err


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
    assert "deployer: warning: cannot use caches of compiled code: " in capsys.readouterr().err


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
    assert len(list(kept.parent.iterdir())) == 1


def test_archives_without_a_layer_are_unused(tmp_path):
    store = Store(str(tmp_path))
    assert caches.unused(store) == []
    for name in ("aa-1", "aa-2", "bb-1"):
        (tmp_path / "layers" / name).mkdir(parents=True)
    os.mkdir(store.caches, 0o700)
    for name in ("aa-x.tar", "bb-x.tar", "cc-x.tar", ".aa-x.tar.01234567.part"):
        with open(os.path.join(store.caches, name), "w"):
            pass
    left = [os.path.join(store.caches, name) for name in (".aa-x.tar.01234567.part", "bb-x.tar", "cc-x.tar")]
    assert caches.unused(store) == [left[0], left[2]]
    assert caches.unused(store, [str(tmp_path / "layers" / name) for name in ("aa-1", "bb-1")]) == left
