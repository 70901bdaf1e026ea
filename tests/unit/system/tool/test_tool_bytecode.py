import errno
import os
import subprocess
import sys
import zipfile

import pytest

import deployer
from deployer.contract.base.errors import SpaceError
from deployer.system import files
from deployer.system.tool import tool_bytecode, tool_compiler

MAIN = """\
import sys
from deployer.system.tool import tool_bytecode, tool_compiler
print(tool_bytecode.use(__loader__.archive, __loader__), end=" ")
import pack.module
print(pack.module.WORD, type(pack.module.__spec__.loader).__name__)
if sys.argv[1:] == ["keep"]:
    tool_compiler.keep(__loader__.archive)
"""
WORD = "WORD = 'first'\n"


class Tool:
    """A small .pyz, a home, and what a start of it prints."""

    def __init__(self, folder):
        self.path = str(folder / "site" / "tool.pyz")
        self.home = folder / "home"
        self.place = self.home / ".cache" / "deployer" / "pyz"
        (folder / "site").mkdir()
        self.home.mkdir()
        self.make(WORD)

    def make(self, module):
        with zipfile.ZipFile(self.path, "w") as archive:
            for name, text in (
                ("__main__.py", MAIN),
                ("pack/__init__.py", ""),
                ("pack/module.py", module),
                ("pack/other.py", "no module"),
                ("pack/data.txt", "data"),
            ):
                archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text)

    def start(self, *words):
        root = os.path.dirname(os.path.dirname(deployer.__file__))
        environment = {"HOME": str(self.home), "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}
        words = [sys.executable, self.path, *words]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True, env=environment, timeout=60)
        return done.stdout.decode().strip()

    def keep(self):
        return tool_compiler.keep(self.path)

    def used(self):
        """Return whether a start would use bytecode, without a process."""
        before = list(sys.meta_path)
        try:
            return tool_bytecode.use(self.path, None)
        finally:
            sys.meta_path[:] = before

    def file(self):
        (name,) = os.listdir(str(self.place))
        return self.place / name


@pytest.fixture
def tool(tmp_path, monkeypatch):
    made = Tool(tmp_path)
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return made


def loader(tool):
    with open(tool.path, "rb") as stream:
        key = tool_bytecode.key_of(stream.read())
    descriptor = os.open(str(tool.place), os.O_RDONLY)
    try:
        found = tool_bytecode._parsed(tool_bytecode._read(key, descriptor), key)
    finally:
        os.close(descriptor)
    return tool_bytecode.Modules(tool.path, None, *found)


@pytest.mark.thorough
def test_the_second_start_uses_what_the_first_kept(tool):
    assert tool.start("keep") == "False first zipimporter"
    assert tool.start() == "True first Modules"
    assert (os.stat(str(tool.place)).st_mode & 0o777, os.stat(str(tool.file())).st_mode & 0o777) == (0o700, 0o600)
    assert str(tool.place.parent.parent) == os.path.join(str(tool.home), ".cache")
    assert os.listdir(os.path.dirname(tool.path)) == ["tool.pyz"]


def test_bytecode_belongs_to_one_content_whatever_the_clock_says(tool):
    assert tool.keep()
    before = os.stat(tool.path)
    tool.make(WORD.replace("first", "other"))
    os.utime(tool.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(tool.path).st_size == before.st_size
    assert tool.start() == "False other zipimporter"


def test_modules_tell_their_file_source_and_data(tool):
    assert tool.keep()
    modules = loader(tool)
    assert modules.find_spec("pack.other") is None  # it cannot be compiled
    assert modules.find_spec("json") is None
    spec = modules.find_spec("pack")
    assert (spec.origin, list(spec.submodule_search_locations)) == (
        tool.path + "/pack/__init__.py",
        [tool.path + "/pack"],
    )
    assert modules.get_code("pack.module").co_filename == tool.path + "/pack/module.py"


def test_a_search_imports_nothing(tool):
    """An import within a search would search again, without end."""
    assert tool.keep()
    code = (
        "import sys, zipimport; from deployer.system.tool import tool_bytecode;"
        "assert tool_bytecode.use(sys.argv[1], zipimport.zipimporter(sys.argv[1]));"
        "import pkgutil; print(pkgutil.get_data('pack', 'data.txt'));"
        "import pack.module; print(pack.module.__loader__.get_source('pack.module'))"
    )
    root = os.path.dirname(os.path.dirname(deployer.__file__))
    words = [sys.executable, "-S", "-c", code, tool.path]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, check=True, timeout=60, env={"HOME": str(tool.home), "PYTHONPATH": root}
    )
    assert done.stdout == b"b'data'\nWORD = 'first'\n\n"


# --- hostile and damaged ---


def widen_folder(tool):
    os.chmod(str(tool.place), 0o770)


def widen_file(tool):
    os.chmod(str(tool.file()), 0o620)


def link_folder(tool):
    os.rename(str(tool.place), str(tool.home / "elsewhere"))
    os.symlink(str(tool.home / "elsewhere"), str(tool.place))


def link_file(tool):
    path = str(tool.file())
    os.rename(path, str(tool.home / "elsewhere"))
    os.symlink(str(tool.home / "elsewhere"), path)


def name_it_twice(tool):
    os.link(str(tool.file()), str(tool.home / "elsewhere"))


def other_digest(tool):
    content = tool.file().read_bytes()
    tool.file().write_bytes(b"0" * 64 + content[64:])


def other_python(tool):
    name = tool.file().name
    content = tool.file().read_bytes()
    tool.file().write_bytes(content.replace(name.encode(), name[:-8].encode() + b"00000000"))


def cut_header(tool):
    os.truncate(str(tool.file()), 70)


def cut_index(tool):
    os.truncate(str(tool.file()), len(tool.file().name) + 20)


def flip_index(tool):
    content = bytearray(tool.file().read_bytes())
    content[len(tool.file().name) + 15] ^= 1
    tool.file().write_bytes(bytes(content))


def empty(tool):
    os.truncate(str(tool.file()), 0)


def too_large(tool):
    os.truncate(str(tool.file()), tool_bytecode.MAX_SIZE + 1)


def pipe(tool):
    path = str(tool.file())
    os.unlink(path)
    os.mkfifo(path, 0o600)


def folder_in_place(tool):
    path = str(tool.file())
    os.unlink(path)
    os.mkdir(path, 0o700)


HARMS = [
    widen_folder,
    widen_file,
    link_folder,
    link_file,
    name_it_twice,
    other_digest,
    other_python,
    cut_header,
    cut_index,
    flip_index,
    empty,
    too_large,
    pipe,
    folder_in_place,
]


@pytest.mark.parametrize("harm", HARMS)
def test_an_unsafe_or_damaged_file_is_ignored(tool, harm):
    assert tool.keep()
    assert tool.used()
    harm(tool)
    assert not tool.used()


def test_bytecode_of_another_user_is_ignored_and_none_is_kept_there(tool, monkeypatch):
    assert tool.keep()
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert not tool.used()
    before = tool.file().read_bytes()
    assert not tool.keep()
    assert tool.file().read_bytes() == before


@pytest.mark.thorough
def test_what_is_beside_the_pyz_is_never_used(tool, monkeypatch):
    """It may have come with it, on a medium or in an image, while only the .pyz was compared."""
    monkeypatch.setenv("HOME", os.path.dirname(tool.path))
    assert tool.keep()
    monkeypatch.setenv("HOME", str(tool.home))
    assert tool.start() == "False first zipimporter"


def test_a_damaged_module_comes_from_its_source(tool):
    assert tool.keep()
    content = tool.file().read_bytes()
    tool.file().write_bytes(content[:-1])  # the last module's
    damaged = [name for name in ("pack", "pack.module") if loader(tool).find_spec(name) is None]
    assert len(damaged) == 1
    assert tool.start().split()[:2] == ["True", "first"]


# --- writing ---


def test_a_full_disk_leaves_nothing_and_is_no_error(tool, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert not tool.keep()
    assert os.listdir(str(tool.place)) == []
    with pytest.raises(SpaceError), files.published(str(tool.place / "x")):
        pass


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_home_that_is_read_only_is_no_error(tool, monkeypatch, code):
    def fail(path, mode=0o777):
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "mkdir", fail)
    assert not tool.keep()
    assert os.listdir(str(tool.home)) == []
    assert not tool.used()


@pytest.mark.parametrize("home", ["", "relative", "/nowhere/at/all"])
def test_without_a_home_nothing_is_kept(tool, monkeypatch, home):
    monkeypatch.setenv("HOME", home)
    assert not tool.keep()
    assert not tool.used()
    assert os.listdir(str(tool.home)) == []


def test_an_unsafe_folder_gets_no_bytecode(tool):
    tool.place.mkdir(parents=True)
    os.chmod(str(tool.place), 0o777)
    assert not tool.keep()
    assert os.listdir(str(tool.place)) == []


def test_an_unsafe_file_is_replaced_by_the_next_start(tool):
    assert tool.keep()
    widen_file(tool)
    assert tool.keep()
    assert tool.used()


def test_two_at_once_both_leave_a_whole_file(tool, monkeypatch):
    write = tool_bytecode.written
    depth = []

    def other_in_between(key, codes):
        if not depth:
            depth.append(1)
            assert tool.keep()
            assert tool.used()
        return write(key, codes)

    monkeypatch.setattr(tool_bytecode, "written", other_in_between)
    assert tool.keep()
    assert depth
    assert tool.start() == "True first Modules"
    assert len(os.listdir(str(tool.place))) == 1


def test_the_oldest_are_removed_but_never_the_new_one(tool):
    tool.place.mkdir(mode=0o700, parents=True)
    for number in range(9):
        path = tool.place / ("other-%d" % number)
        path.write_bytes(b"")
        os.utime(str(path), (2**33 + number, 2**33 + number))  # the clock was wrong
    os.chmod(str(tool.place), 0o700)
    assert tool.keep()
    kept = sorted(os.listdir(str(tool.place)))
    assert len(kept) == 4
    assert kept[1:] == ["other-6", "other-7", "other-8"]
    assert tool.used()
