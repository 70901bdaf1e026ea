"""SIF files: what we write is read again; what is cut, hostile or of another kind is refused."""

import random
import struct

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.bundle import sif

SQUASHFS = b"hsqs" + b"x" * 5000
#: Where the header and the first descriptor have their fields.
TOTAL, TABLE = 88, 96
FIRST = 4096
USED, START, SIZE, EXTRA = FIRST + 4, FIRST + 17, FIRST + 25, FIRST + 201


def written():
    return bytearray(sif.header(len(SQUASHFS), "arm64") + SQUASHFS)


def read(data):
    return sif.find(lambda start, length: bytes(data[start : start + length]), len(data))


def test_what_is_written_is_read_again_and_always_the_same():
    found = read(written())
    assert found == sif.SifContents(32768, len(SQUASHFS), "arm64", [])
    assert written() == written()
    assert written()[found.offset :] == SQUASHFS


def add(data, kind, extra, number=1):
    """Add a descriptor whose object is empty."""
    at = FIRST + number * 585
    data[at : at + 5] = struct.pack("<iB", kind, 1)
    data[at + 201 : at + 201 + len(extra)] = extra
    return data


def test_fingerprints_of_signatures_are_listed():
    data = add(written(), 0x4005, struct.pack("<i20s", 1, bytes(range(20))))
    assert read(data).signers == ["000102030405060708090A0B0C0D0E0F10111213"]


def set_number(at, number, form="<q"):
    def change(data):
        struct.pack_into(form, data, at, number)
        return data

    return change


REFUSED = {
    "another version": (set_number(42, 0x3939, "<h"), "header of the SIF file is damaged"),
    "a negative count": (set_number(TOTAL, -1), "header of the SIF file is damaged"),
    "a huge count": (set_number(TOTAL, 2**62), "header of the SIF file is damaged"),
    "as many as are allowed, beyond the end": (set_number(TOTAL, 4096), "is cut"),
    "a table before the file": (set_number(TABLE, -585), "header of the SIF file is damaged"),
    "a table behind the file": (set_number(TABLE, 2**40), "is cut"),
    "a cut file": (lambda data: data[:-1], "is cut or damaged: it has 37771 bytes"),
    "only a header": (lambda data: data[:128], "is cut"),
    "half a header": (lambda data: data[:100], "is cut"),
    "an object behind the file": (set_number(START, 2**62), "one of its objects is outside"),
    "an object before the file": (set_number(START, -8), "one of its objects is outside"),
    "a negative size": (set_number(SIZE, -8), "one of its objects is outside"),
    "no object": (set_number(USED, 0, "<B"), "has 0 root filesystems"),
    "two of them": (lambda data: add(data, 0x4004, struct.pack("<2i3s", 1, 2, b"02")), "has 2 root filesystems"),
    "an overlay": (lambda data: add(data, 0x4004, struct.pack("<2i3s", 2, 4, b"02")), "has an overlay"),
    "ext3": (set_number(EXTRA, 2, "<i"), "has ext3 filesystem, not SquashFS"),
    "encrypted": (set_number(EXTRA, 5, "<i"), "has an encrypted filesystem, not SquashFS"),
    "something new": (set_number(EXTRA, 77, "<i"), "has an unknown filesystem, not SquashFS"),
    "ppc64le": (set_number(EXTRA + 8, 0x3630, "<h"), "is for ppc64le, and"),
    "a future machine": (set_number(EXTRA + 8, 0x3939, "<h"), "is for architecture b'99', and"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_files_are_refused_with_the_reason(case):
    change, reason = REFUSED[case]
    with pytest.raises(UsageError) as caught:
        read(change(written()))
    assert reason in str(caught.value)


def test_whatever_the_header_says_a_partition_is_inside_the_file_or_the_file_is_refused():
    numbers = random.Random(1)
    for _ in range(3000):
        data = written()
        for _ in range(numbers.randrange(1, 4)):
            at = numbers.choice([numbers.randrange(128), FIRST + numbers.randrange(585)])
            data[at] = numbers.randrange(256)
        try:
            found = read(data)
        except UsageError:
            continue
        assert 0 <= found.offset <= found.offset + found.size <= len(data)
