"""The architecture of a root filesystem, by its programs."""

import struct

import pytest

from deployer.connected.rootfs import machine
from deployer.connected.rootfs.entries import FileEntry, InMemory
from deployer.connected.rootfs.merge import Rootfs
from deployer.contract.base.tarformat import FILE, SYMLINK


def program(path: str, number: int) -> FileEntry:
    content = struct.pack("<4sBB10xHH", b"\x7fELF", 2, 1, 2, number) + b"\0" * 40
    return FileEntry(FILE, path.encode(), 0o755, data=InMemory(content))


def measured(*entries: FileEntry) -> str:
    root = Rootfs()
    root.apply(iter(entries))
    return machine.architecture(root)


def test_a_typical_program_decides_and_not_the_first_one() -> None:
    cross = program("bin/aarch64-as", 183)
    link = FileEntry(SYMLINK, b"bin/sh", 0o777, target=b"dash")
    assert measured(cross, link, program("bin/dash", 62)) == "amd64"
    assert measured(cross) == "arm64"
    assert measured(FileEntry(FILE, b"bin/sh", 0o755, data=InMemory(b"#!/bin/true\n" + b" " * 40))) == "unknown"
    assert measured(program("bin/sh", 999)) == "unknown"


@pytest.mark.parametrize(
    ("label", "programs", "lies"),
    [
        ("amd64", "amd64", False),
        ("amd64", "arm64", True),
        ("arm64", "amd64", True),
        ("amd64", "386", False),
        ("386", "amd64", True),
        ("amd64", "unknown", False),
        ("unknown", "arm64", False),
    ],
)
def test_a_label_lies_if_the_programs_are_for_another_processor(label: str, programs: str, lies: bool) -> None:
    assert machine.contradicts(label, programs) == lies
