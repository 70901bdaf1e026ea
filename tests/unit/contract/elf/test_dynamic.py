"""What the loader reads of real files is what another reader finds in them; garbage is BadElf, never more."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys

import pytest

from deployer.contract.base import json_records, records
from deployer.contract.elf import dynamic
from deployer.contract.elf.dynamic import BadElf, Facts

PYTHON = os.path.realpath(sys.executable)


def reader(path):
    with open(path, "rb") as stream:
        data = stream.read()
    return lambda offset, size: data[offset : offset + size]


def libraries():
    """Return some real libraries: those that this process has mapped."""
    import ctypes  # noqa: F401
    import ssl  # noqa: F401

    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if ".so" in line and "/" in line}
    return [PYTHON, *sorted(path for path in paths if os.path.isfile(path))]


def test_facts_of_a_real_library():
    (libc,) = [path for path in libraries() if os.path.basename(path).startswith(("libc.so", "libc-2"))]
    found = dynamic.read(reader(libc))
    assert found.soname == "libc.so.6"
    assert "GLIBC_2.2.5" in found.defines or "GLIBC_2.17" in found.defines
    assert [name for name in found.needed if name.startswith("ld-linux")]
    names = {
        symbol.name: symbol
        for symbol in dynamic._symbols(dynamic._open(reader(libc)), lambda name: name in ("printf", "stat"))
    }
    assert names["printf"].defined
    assert dynamic.facts(reader(libc)).exports == []


@pytest.mark.parametrize("compiler", ["gcc", "aarch64-linux-gnu-gcc"])
def test_a_program_that_defines_nothing_still_calls_what_it_needs(tmp_path, compiler):
    """Its GNU hash table is empty, and does not tell how many symbols it needs. Many programs for aarch64 are so."""
    if shutil.which(compiler) is None:
        pytest.skip("needs the cross compiler: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
    (tmp_path / "mpi.c").write_text("int MPI_Init(void) { return 0; }")
    (tmp_path / "main.c").write_text("int MPI_Init(void); int main(void) { return MPI_Init(); }")
    library = ["-shared", "-o", "libmpi.so", "-Wl,-soname,libmpi.so.12", "mpi.c"]
    for words in (library, ["-Wl,--hash-style=gnu", "-o", "main", "main.c", "-L.", "-lmpi"]):
        subprocess.check_call([compiler, *words], cwd=str(tmp_path))
    found = dynamic.facts(reader(str(tmp_path / "main")))
    assert found.imports == ["MPI_Init"]
    assert found.dynamic.needed[0] == "libmpi.so.12"


def test_facts_survive_being_written():
    for path in libraries():
        facts = dynamic.facts(reader(path))
        text = json.dumps(facts.record())
        assert records.read(Facts, json_records.Fields(json.loads(text), "facts")) == facts


def test_programs_that_open_libraries_by_name():
    """As the table of symbols shows it."""
    paths = [path for path in map("/usr/bin/{}".format, ("bash", "perl", "cat", "ls", "sed")) if os.path.isfile(path)]
    for path in [PYTHON, *paths]:
        facts = dynamic.facts(reader(path))
        if facts is not None:
            called = [
                each for each in dynamic._symbols(dynamic._open(reader(path)), "dlopen".__eq__) if not each.defined
            ]
            assert facts.opens == bool(called), path


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(100)])
def test_what_is_not_for_this_loader(data):
    assert dynamic.read(lambda offset, size: data[offset : offset + size]) is None


def test_a_file_that_was_cut_is_bad():
    read_at = reader(libraries()[1])
    whole = read_at(0, 1 << 30)
    with pytest.raises(BadElf):
        dynamic.facts(lambda offset, size: whole[: len(whole) // 50][offset : offset + size])
    with pytest.raises(BadElf):
        dynamic.facts(lambda offset, size: whole[:40][offset : offset + size])


def test_garbage_is_bad_and_costs_little():
    whole = reader(PYTHON if os.path.getsize(PYTHON) < 1 << 20 else libraries()[1])(0, 1 << 22)
    (offset,) = struct.unpack_from("<Q", whole, 32)
    chance = random.Random(1)
    sizes = []
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 5)):
            data[chance.randrange(offset, offset + 600) if chance.random() < 0.7 else chance.randrange(len(data))] = (
                chance.randrange(256)
            )

        def read_at(start, size, data=data):
            sizes.append(min(size, len(data)))
            return bytes(data[start : start + size])

        try:
            dynamic.facts(read_at)
        except BadElf:
            continue
    assert max(sizes) <= 16 * 1024 * 1024
