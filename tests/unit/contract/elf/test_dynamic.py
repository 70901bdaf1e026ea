"""What the loader reads of real files is what another reader finds in them; garbage is BadElf, never more."""

import json
import os
import random
import struct
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
