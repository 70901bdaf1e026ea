import os
import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from deployer.connected.linker.job_filesystem import FILE, FOLDER, LINK, Files, JobFilesystem, folders_of
from deployer.connected.linker.loader import LIBRARY_PATH, RPATH, Loader, Place
from deployer.contract.elf.dynamic import BadElf, Facts
from tests.host_files import HostFiles
from tests.unit.connected.check.test_check import lib, on


class Made:
    """Files that are only facts: a path ends in what stands there."""

    def __init__(self, files: dict[str, Facts | str | bytes]) -> None:
        self.files = files
        self.folders = folders_of(files)

    def kind(self, path: str) -> str | None:
        if path in self.files:
            return LINK if isinstance(self.files[path], str) else FILE
        return FOLDER if path in self.folders else None

    def target(self, path: str) -> str:
        return str(self.files[path])

    def facts(self, path: str) -> Facts | None:
        found = self.files[path]
        if found == b"bad":
            raise BadElf("it is cut off")
        return found if isinstance(found, Facts) else None

    def content(self, path: str) -> bytes:
        found = self.files[path]
        return found if isinstance(found, bytes) else b""


def loaded(
    files: dict[str, Facts | str | bytes], library_path: tuple[str, ...] = (), binds: tuple[tuple[str, Files], ...] = ()
) -> Loader:
    loader = Loader(JobFilesystem(Made(files), binds), library_path)
    assert loader.start("/bin/p") is not None
    return loader


def paths(loader: Loader) -> list[str]:
    return [each.path for each in loader.objects]


# ------------------------------------------------------------------------------------------------ the order of search


A = {"/a/liba.so.1": lib("liba.so.1"), "/b/liba.so.1": lib("liba.so.1"), "/usr/lib64/liba.so.1": lib("liba.so.1")}


def test_rpath_library_path_runpath_defaults() -> None:
    assert paths(loaded({"/bin/p": lib(None, "liba.so.1", rpath="/a"), **A}, ("/b",))) == ["/bin/p", "/a/liba.so.1"]
    assert paths(loaded({"/bin/p": lib(None, "liba.so.1", runpath="/a"), **A}, ("/b",))) == ["/bin/p", "/b/liba.so.1"]
    assert paths(loaded({"/bin/p": lib(None, "liba.so.1", runpath="/a"), **A})) == ["/bin/p", "/a/liba.so.1"]
    assert paths(loaded({"/bin/p": lib(None, "liba.so.1"), **A})) == ["/bin/p", "/usr/lib64/liba.so.1"]
    both = lib(None, "liba.so.1", rpath="/a", runpath="/none")  # a RUNPATH turns the RPATH off
    assert paths(loaded({"/bin/p": both, **A}, ("/b",))) == ["/bin/p", "/b/liba.so.1"]


def test_an_rpath_holds_for_what_is_below_and_a_runpath_does_not() -> None:
    middle = {"/a/libm.so": lib("libm.so", "liba.so.1")}
    files = {"/bin/p": lib(None, "libm.so", rpath="/a"), **middle, **A}
    assert paths(loaded(files))[-1] == "/a/liba.so.1"
    files["/bin/p"] = lib(None, "libm.so", runpath="/a")
    assert paths(loaded(files))[-1] == "/usr/lib64/liba.so.1"


def test_a_programs_rpath_holds_for_what_it_opens_later() -> None:
    """glibc, elf/dl-load.c: "try the DT_RPATH of the executable itself"."""
    opened = {"/x/module.so": lib(None, "liba.so.1"), "/x/own.so": lib(None, "liba.so.1", runpath="/none"), **A}
    loader = loaded({"/bin/p": lib(None, rpath="/a"), **opened}, ("/b",))
    loader.dlopen("/x/module.so")
    assert paths(loader)[-1] == "/a/liba.so.1"
    program, found = loader.objects[0], loader.objects[-1]
    assert found.place == Place("/a/liba.so.1", RPATH, program)
    for path, search in (("/x/own.so", "rpath"), ("/x/module.so", "runpath")):
        loader = loaded({"/bin/p": lib(None, **{search: "/a"}), **opened}, ("/b",))
        loader.dlopen(path)
        assert loader.objects[-1].place == Place("/b/liba.so.1", LIBRARY_PATH)


def test_origin_is_where_the_file_was_found() -> None:
    files = {"/opt/x/bin/q": lib(None, "liba.so.1", runpath="$ORIGIN/../lib"), "/opt/x/lib/liba.so.1": lib("liba.so.1")}
    files["/bin/p"] = "/opt/x/bin/q"
    assert paths(loaded(files)) == ["/opt/x/bin/q", "/opt/x/lib/liba.so.1"]


def test_the_cache_comes_before_the_defaults() -> None:
    strings = b"liba.so.1\0/b/liba.so.1\0"
    head = struct.Struct("<20sII20x").pack(b"glibc-ld.so.cache1.1", 1, len(strings))
    start = len(head) + 24
    cache = head + struct.pack("<iIIIQ", 0x0303, start, start + 10, 0, 0) + strings
    files = {"/bin/p": lib(None, "liba.so.1"), "/etc/ld.so.cache": cache, **A}
    assert paths(loaded(files))[-1] == "/b/liba.so.1"
    for broken in (b"", cache[:30], cache[:-30], b"x" * 100):
        assert paths(loaded({**files, "/etc/ld.so.cache": broken}))[-1] == "/usr/lib64/liba.so.1"


def test_what_the_loader_of_aarch64_searches() -> None:
    """As LD_DEBUG=libs of Debian 12 for arm64 shows."""
    debian = "/usr/lib/aarch64-linux-gnu/liba.so.1"
    for path, expanded in (("$ORIGIN/$LIB", "/bin/lib/aarch64-linux-gnu"), ("/x/${PLATFORM}", "/x/aarch64")):
        files = {"/bin/p": lib(None, "liba.so.1", runpath=path), f"{expanded}/liba.so.1": lib("liba.so.1")}
        files = {name: on(183, facts) for name, facts in {**files, debian: lib("liba.so.1")}.items()}
        loader = Loader(JobFilesystem(Made({**files})), machine=183)
        assert loader.start("/bin/p")
        assert paths(loader)[-1] == f"{expanded}/liba.so.1"
    strings = b"liba.so.1\0/b/liba.so.1\0/c/liba.so.1\0"
    head = struct.Struct("<20sII20x").pack(b"glibc-ld.so.cache1.1", 3, len(strings))
    start = len(head) + 3 * 24
    entries = [(0x0303, 24, 0), (0x0A03, 24, 1 << 8), (0x0A03, 10, 0)]  # x86-64's; for atomics only; for all
    cache = head + b"".join(struct.pack("<iIIIQ", flag, start, start + at, 0, bits) for flag, at, bits in entries)
    files = {"/bin/p": lib(None, "liba.so.1"), **A, "/c/liba.so.1": lib("liba.so.1"), debian: lib("liba.so.1")}
    files = {name: on(183, facts) for name, facts in files.items()}
    for made, expected in (({"/etc/ld.so.cache": cache + strings}, "/b/liba.so.1"), ({}, debian)):
        loader = Loader(JobFilesystem(Made({**files, **made})), machine=183)
        assert loader.start("/bin/p")
        assert paths(loader)[-1] == expected


def test_what_is_mapped_already_is_taken_by_its_soname() -> None:
    files = {
        "/bin/p": lib(None, "libalias.so", "liba.so.1"),
        "/lib64/libalias.so": "/a/liba.so.1",
        **A,
    }
    assert paths(loaded(files)) == ["/bin/p", "/a/liba.so.1"]


def test_a_file_of_another_machine_is_passed_over() -> None:
    files = {"/bin/p": lib(None, "liba.so.1"), **A, "/b/liba.so.1": on(183, lib("liba.so.1"))}
    assert paths(loaded(files, ("/b", "/a")))[-1] == "/a/liba.so.1"


# ------------------------------------------------------------------------------------------------ what stops it


def test_what_nobody_has_is_missing_and_said_by_whom() -> None:
    loader = loaded({"/bin/p": lib(None, "liba.so.1", "libx.so.2"), **A})
    assert [(each.name, each.needed_by) for each in loader.missing] == [("libx.so.2", "/bin/p")]


def test_a_version_that_a_library_lacks() -> None:
    libc = lib("libc.so.6", defines=("GLIBC_2.17", "GLIBC_2.34"))
    program = lib(None, "libc.so.6", versions={"libc.so.6": ["GLIBC_2.34", "GLIBC_2.38"]})
    loader = loaded({"/bin/p": program, "/lib64/libc.so.6": libc})
    assert [(each.version, each.path, each.needed_by) for each in loader.wrong_versions()] == [
        ("GLIBC_2.38", "/lib64/libc.so.6", "/bin/p")
    ]
    without = loaded({"/bin/p": program, "/lib64/libc.so.6": lib("libc.so.6")})  # only a warning of the loader's
    assert not list(without.wrong_versions())


def test_a_broken_library_is_named() -> None:
    loader = loaded({"/bin/p": lib(None, "libx.so"), "/lib64/libx.so": b"bad"})
    assert loader.broken[0].path == "/lib64/libx.so"
    assert loader.missing


def test_needs_in_a_circle_and_links_in_a_circle_end() -> None:
    files = {"/bin/p": lib(None, "liba.so", "libl.so"), "/lib64/liba.so": lib("liba.so", "libb.so")}
    files |= {"/lib64/libb.so": lib("libb.so", "liba.so"), "/lib64/libl.so": "/lib64/libl.so"}
    loader = loaded(files)
    assert paths(loader) == ["/bin/p", "/lib64/liba.so", "/lib64/libb.so"]
    assert [each.name for each in loader.missing] == ["libl.so"]


# ------------------------------------------------------------------------------------------------ binds


def test_a_bound_mpi_stands_before_the_image_s() -> None:
    """The LRZ method: the host's MPI on the same path, first in LD_LIBRARY_PATH."""
    image: dict[str, Facts | str | bytes] = {
        "/bin/p": lib(None, "libmpi.so.12"),
        "/usr/lib64/libmpi.so.12": lib("libmpi.so.12", "libfabric.so.1"),
        "/usr/lib64/libfabric.so.1": lib("libfabric.so.1"),
    }
    bind = "/opt/mpi", Made({"/lib/libmpi.so.12": "libmpi.so.12.0", "/lib/libmpi.so.12.0": lib("libmpi.so.12")})
    assert paths(loaded(image, ("/opt/mpi/lib",), (bind,))) == ["/bin/p", "/opt/mpi/lib/libmpi.so.12.0"]
    assert paths(loaded(image, ("/opt/mpi/lib",)))[1] == "/usr/lib64/libmpi.so.12"


def test_debian_s_mpich_is_only_reached_by_an_alias() -> None:
    image: dict[str, Facts | str | bytes] = {
        "/bin/p": lib(None, "libmpich.so.12"),
        "/usr/lib64/libmpich.so.12": lib("libmpich.so.12"),
    }
    host = "/opt/mpi", Made({"/lib/libmpi.so.12": lib("libmpi.so.12")})
    assert paths(loaded(image, ("/opt/mpi/lib",), (host,)))[1] == "/usr/lib64/libmpich.so.12"
    alias = "/alias", Made({"/libmpich.so.12": "/opt/mpi/lib/libmpi.so.12"})
    assert paths(loaded(image, ("/alias", "/opt/mpi/lib"), (host, alias)))[1] == "/opt/mpi/lib/libmpi.so.12"


# ------------------------------------------------------------------------------------------------ the real loader


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="needs glibc's loader for x86-64")
def test_the_real_loader_maps_the_same_files() -> None:
    view = JobFilesystem(HostFiles())
    found = [Path(folder, name) for folder in ("/usr/bin", "/usr/sbin") for name in sorted(os.listdir(folder))]
    programs = [path for path in found if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)]
    random.Random(1).shuffle(programs)
    python = shutil.which("python3")
    assert python
    compared = 0
    for program in [Path(os.path.realpath(python)), *programs]:
        with program.open("rb") as stream:
            if stream.read(4) != b"\x7fELF" or program.stat().st_mode & 0o6000:
                continue
        done = subprocess.run(
            ["/lib64/ld-linux-x86-64.so.2", "--list", program], capture_output=True, text=True, env={}, check=False
        )
        if done.returncode or "statically" in done.stdout:
            continue
        lines = [line.split(" => ")[-1].split(" (0x")[0].strip() for line in done.stdout.splitlines()]
        real = {os.path.realpath(line) for line in lines if line.startswith("/")}
        loader = Loader(view)
        assert loader.start(str(program)) is not None
        assert {each.path for each in loader.objects} - {str(program)} == real, program
        assert not loader.missing
        assert not list(loader.wrong_versions())
        compared += 1
        if compared == 25:
            break
    assert compared > 5


def test_libraries_that_need_each_other() -> None:
    found = loaded({
        "/bin/p": lib(None, "liba.so"),
        "/lib/liba.so": lib("liba.so", "libb.so", "liba.so"),
        "/lib/libb.so": lib("libb.so", "libc.so", "liba.so"),
        "/lib/libc.so": lib("libc.so", "libb.so", "/bin/p"),
    })  # fmt: skip
    assert [each.path for each in found.objects] == ["/bin/p", "/lib/liba.so", "/lib/libb.so", "/lib/libc.so"]
    assert found.missing == []
    assert found.attempt("/lib/libb.so") == []


def test_an_attempt_tells_what_is_missing_and_maps_nothing() -> None:
    found = loaded({
        "/bin/p": lib(None, "libc.so.6"),
        "/lib/libc.so.6": lib("libc.so.6", defines=("V_1",)),
        "/lib/plugin.so": lib(None, "libc.so.6", "libgone.so", "libpart.so", versions={"libc.so.6": ["V_1", "V_2"]}),
        "/lib/libpart.so": lib("libpart.so", "libgone.so", "libaway.so"),
        "/lib/whole.so": lib(None, "libc.so.6"),
    })  # fmt: skip
    before = list(found.objects)
    assert found.attempt("/lib/plugin.so") == ["libgone.so", "libaway.so", "V_2"]
    assert found.attempt("/lib/whole.so") == []
    assert found.attempt("/lib/no.so") == ["no.so"]
    assert (found.objects, found.missing) == (before, [])
    assert found.find("libpart.so") is None
