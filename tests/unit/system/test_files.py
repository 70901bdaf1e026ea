import errno
import os
import resource
import shutil
import stat
import tempfile
from contextlib import ExitStack, suppress

import pytest

from deployer.contract.base.errors import DeployerError, SpaceError, UsageError
from deployer.system import files
from tests.others import NOBODY, somebody_else


def test_published_appears_whole(tmp_path):
    target = str(tmp_path / "new" / "file")
    with files.published(target, 0o640) as stream:
        stream.write(b"half")
        assert not os.path.exists(target)
        stream.write(b" whole")
    assert files.read_text(target) == "half whole"
    assert os.stat(target).st_mode & 0o777 == 0o640 & ~files.umask()
    assert os.listdir(os.path.dirname(target)) == ["file"]


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failure_leaves_the_old_file(tmp_path, error):
    target = str(tmp_path / "file")
    files.write_text(target, "old")

    def write():
        with files.published(target) as stream:
            stream.write(b"new")
            raise error

    with pytest.raises((ValueError, KeyboardInterrupt, SpaceError)):
        write()
    assert files.read_text(target) == "old"
    assert os.listdir(str(tmp_path)) == ["file"]


@pytest.mark.parametrize(("number", "kind"), [(28, SpaceError), (122, SpaceError), (13, DeployerError)])
def test_os_errors_get_our_names(number, kind):
    with pytest.raises(kind, match="cannot write x") as caught, files.errors_named("write x"):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is kind


def test_bytes_are_written_unchanged_with_a_mode_in_a_new_folder(tmp_path):
    path = str(tmp_path / "new" / "file")
    files.write_bytes(path, b"\xff\0\n", 0o600)
    assert files.read_bytes(path) == b"\xff\0\n"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_read_text_names_what_it_cannot_read(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        files.read_text(str(tmp_path / "nothing"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        files.read_text(str(tmp_path / "binary"))


def test_a_pipe_is_refused_and_blocks_nobody(tmp_path):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    for call in (files.read_text, files.sha256_file):
        with pytest.raises(DeployerError, match="not a regular file"):
            call(pipe)
    with pytest.raises(UsageError, match="Is a directory"):
        files.read_text(str(tmp_path))


def test_a_pipe_that_the_user_named_is_read_within_bounds(tmp_path):
    reading, writing = os.pipe()
    try:
        os.write(writing, b"x" * 9)
        with pytest.raises(UsageError, match="more than the 4 bytes"):
            files.read_text("/dev/fd/%d" % reading, limit=4, piped=True)
        os.write(writing, b"text")
        os.close(writing)
        writing = -1
        assert files.read_text("/dev/fd/%d" % reading, piped=True).endswith("text")
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    with pytest.raises(UsageError, match="not a regular file"):
        files.read_text("/dev/null", piped=True)


def test_a_path_that_is_too_long_has_its_own_hint(tmp_path):
    with pytest.raises(UsageError) as caught, files.errors_named("write", "free some"):
        os.mkdir(str(tmp_path / ("x" * 300)))
    assert "shorter path" in caught.value.hint


@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize(
    "content",
    [
        b"", b"x", bytes(files.HOLE), b"x" + bytes(3 * files.HOLE), bytes(3 * files.HOLE) + b"x",
        b"\0x" * files.HOLE + bytes(2 * files.HOLE) + b"\0x" * files.HOLE, bytes(files.HOLE - 1) + b"x" + bytes(9),
    ],
)  # fmt: skip
def test_what_is_written_with_holes_is_what_was_given(tmp_path, content, offset):
    path = str(tmp_path / "sparse")
    with open(path, "wb") as stream:
        stream.truncate(offset + len(content))
        written = files.write_sparse(stream.fileno(), memoryview(content), offset)
    with open(path, "rb") as stream:
        assert stream.read() == bytes(offset) + content
    assert written <= len(content)
    if len(content.strip(b"\0")) < len(content) - 2 * files.HOLE:
        assert written <= len(content) - files.HOLE


def test_remove_tree_takes_read_only_folders(tmp_path):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "f").write_text("x")
    os.chmod(str(deep), 0o500)
    os.chmod(str(tmp_path / "a"), 0o500)
    files.remove_tree(str(tmp_path / "a"))
    files.remove_tree(str(tmp_path / "a"))
    assert os.listdir(str(tmp_path)) == []


@pytest.mark.parametrize("free", [0, 1])
def test_remove_tree_without_descriptors_names_the_reason(tmp_path, free):
    """It tried again until Python's limit of recursion."""
    (tmp_path / "a/b").mkdir(parents=True)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, limits[1]))
        streams = []
        with suppress(OSError):
            while True:
                streams.append(held.enter_context(open(os.devnull)))
        for stream in streams[:free]:
            stream.close()
        with pytest.raises(OSError, match="Too many open files") as error:
            files.remove_tree(str(tmp_path / "a"))
    assert len(error.traceback) < 20
    files.remove_tree(str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_remove_tree_changes_no_modes_in_another_user_s_folder(monkeypatch):
    """Its owner could lead these paths elsewhere; on a server that gives all files to one account it is one's own."""
    top = tempfile.mkdtemp()
    theirs = os.path.join(top, "theirs")
    try:
        os.chmod(top, 0o777)
        os.mkdir(theirs)
        os.chmod(theirs, 0o777)
        with somebody_else():
            os.mkdir(os.path.join(theirs, "closed"))
            open(os.path.join(theirs, "closed", "file"), "w").close()
            os.chmod(os.path.join(theirs, "closed"), 0o500)
            with pytest.raises(PermissionError):
                files.remove_tree(theirs)
            assert os.path.exists(os.path.join(theirs, "closed", "file"))
        os.chown(theirs, NOBODY, -1)
        with somebody_else():
            monkeypatch.setattr(files.os, "geteuid", lambda: 12345)
            files.remove_tree(theirs)
        assert os.listdir(top) == []
    finally:
        shutil.rmtree(top)


@pytest.mark.thorough
def test_remove_tree_takes_folders_of_any_depth(tmp_path):
    top, before = str(tmp_path / "top"), os.getcwd()
    os.mkdir(top)
    os.chdir(top)
    try:
        for _ in range(2000):
            os.mkdir("n")
            open("file", "w").close()
            os.chdir("n")
    finally:
        os.chdir(before)
    files.remove_tree(top)
    assert os.listdir(str(tmp_path)) == []


def test_sha256_file(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert files.sha256_file(str(tmp_path / "f")).startswith("ba7816bf8f01cfea")


LOOKS = [files.exists, files.lexists, files.is_file, files.is_folder, files.is_link, files.names]


@pytest.mark.parametrize("look", LOOKS)
def test_what_does_not_exist_is_absent(look, tmp_path):
    assert not look(str(tmp_path / "gone"))
    assert not look(str(tmp_path / "gone" / "too"))


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTDIR, errno.ELOOP, errno.EIO, errno.ESTALE])
def test_what_cannot_be_looked_at_is_not_absent(look, number, tmp_path, monkeypatch):
    def denied(*_, **__):
        raise OSError(number, os.strerror(number))

    for name in ("stat", "lstat", "listdir"):
        monkeypatch.setattr(files.os, name, denied)
    with pytest.raises(UsageError, match="cannot access /x: "):
        look("/x")


def test_what_is_there(tmp_path):
    file, folder, link, lost = (str(tmp_path / name) for name in ("file", "folder", "link", "lost"))
    files.write_text(file, "")
    os.mkdir(folder)
    os.symlink("file", link)
    os.symlink("nothing", lost)
    assert [files.is_file(path) for path in (file, folder, link, lost)] == [True, False, True, False]
    assert [files.is_folder(path) for path in (file, folder, link, lost)] == [False, True, False, False]
    assert [files.is_link(path) for path in (file, folder, link, lost)] == [False, False, True, True]
    assert [files.exists(path) for path in (link, lost)] == [True, False]
    assert [files.lexists(path) for path in (link, lost)] == [True, True]
    assert files.names(str(tmp_path)) == ["file", "folder", "link", "lost"]


def test_a_folder_is_not_replaced_by_a_file(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="there: it is a folder"), files.published(str(tmp_path / "there")):
        raise AssertionError("the work was begun")
    assert os.listdir(str(tmp_path)) == ["there"]


@pytest.mark.parametrize(("number", "kind"), [(errno.ENAMETOOLONG, UsageError), (errno.ESTALE, DeployerError)])
def test_a_path_that_cannot_be_looked_at_cannot_be_written(tmp_path, monkeypatch, number, kind):
    target, lstat = str(tmp_path / "x"), os.lstat

    def failing(path):
        if path == target:
            raise OSError(number, os.strerror(number), path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", failing)
    with pytest.raises(DeployerError, match=f"^cannot write {target}: {os.strerror(number)}") as error:
        files.write_text(target, "x")
    assert type(error.value) is kind
