"""The build-id is found where it is, and garbage has none."""

import random
import struct

import pytest

from deployer.contract.elf import elf_notes
from deployer.contract.elf.elf_notes import build_id

ID = bytes(range(20))


def note(name, kind, body):
    def pad(data):
        return data + b"\0" * (-len(data) % 4)

    return struct.pack("<III", len(name), len(body), kind) + pad(name) + pad(body)


def image(notes, entries=1, kind=4):
    """Return a tiny ELF file whose program headers point at ``notes``."""
    where = 64 + 56 * entries
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, entries, 0, 0, 0)
    other = struct.pack("<IIQQQQQQ", 1, 0, 0, 0, 0, 0, 0, 0)
    entry = struct.pack("<IIQQQQQQ", kind, 4, where, 0, 0, len(notes), len(notes), 4)
    return head + other * (entries - 1) + entry + notes


def found(data):
    return build_id(lambda offset, size: data[offset : offset + size])


def test_a_build_id_is_found_among_other_notes():
    notes = note(b"Linux\0", 3, b"x" * 5) + note(b"GNU\0", 1, b"abi!") + note(b"GNU\0", 3, ID)
    assert found(image(notes, entries=3)) == "000102030405060708090a0b0c0d0e0f10111213"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        b"#!/bin/sh\n" + b"x" * 200,
        image(b""),
        image(note(b"GNU\0", 1, ID)),
        image(note(b"GNU\0", 3, ID), kind=1),
        image(note(b"GNU\0", 3, ID)[:-4]),
        image(note(b"GNU\0", 3, b"")),
    ],
)
def test_other_files_have_none(data):
    assert found(data) is None


def test_garbage_never_raises():
    good = image(note(b"GNU\0", 3, ID), entries=2)
    rng = random.Random(1)
    for _ in range(2000):
        data = bytearray(good[: rng.randrange(len(good) + 1)])
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        found(bytes(data))


def test_what_is_read_is_bounded():
    sizes = []

    def read_at(offset, size):
        sizes.append(size)
        return good[offset : offset + size]

    good = bytearray(image(note(b"GNU\0", 3, ID)))
    struct.pack_into("<Q", good, 64 + 32, 2**63)  # a note segment that says it is huge
    build_id(read_at)
    assert max(sizes) <= elf_notes._MAX_NOTES
