import os

import pytest

from deployer.contract.errors import DeployerError, SpaceError, UsageError
from deployer.system import files


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


def test_read_text_names_what_it_cannot_read(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        files.read_text(str(tmp_path / "nothing"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        files.read_text(str(tmp_path / "binary"))


def test_remove_tree_takes_read_only_folders(tmp_path):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "f").write_text("x")
    os.chmod(str(deep), 0o500)
    os.chmod(str(tmp_path / "a"), 0o500)
    files.remove_tree(str(tmp_path / "a"))
    files.remove_tree(str(tmp_path / "a"))
    assert os.listdir(str(tmp_path)) == []


def test_sha256_file(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert files.sha256_file(str(tmp_path / "f")).startswith("ba7816bf8f01cfea")
