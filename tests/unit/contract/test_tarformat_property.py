"""decode accepts just what encode writes: it parses by a pattern and never encodes, so here the two are compared."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.contract.base import tarformat
from deployer.contract.base.errors import IntegrityError
from deployer.contract.base.tarformat import BLOCK, FILE, FOLDER, HARDLINK, MTIME, SYMLINK, TarEntry

NAMES = st.binary(min_size=1, max_size=255).map(lambda name: name.replace(b"\0", b"0").replace(b"/", b"_"))
PLAIN = NAMES.filter(lambda name: name not in (b".", b".."))
PATHS = st.lists(PLAIN, min_size=1, max_size=12).map(b"/".join)
TARGETS = st.binary(min_size=1, max_size=400).map(lambda target: target.replace(b"\0", b"0"))
MODES = st.integers(0, 0o777)
SIZES = st.one_of(st.integers(0, 8**11 - 1), st.integers(8**11, 2**80))
ENTRIES = st.one_of(
    st.builds(TarEntry, st.just(FOLDER), PATHS, MODES, st.just(0), st.just(b"")),
    st.builds(TarEntry, st.just(FILE), PATHS, MODES, SIZES, st.just(b"")),
    st.builds(TarEntry, st.sampled_from([SYMLINK, HARDLINK]), PATHS, MODES, st.just(0), TARGETS),
)
SETTINGS = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def held_to_encode(data, position=0):
    """Assert that decode refuses ``data``, or read it as an entry that encode writes just so."""
    try:
        entry, end = tarformat.decode(data, position)
    except IntegrityError:
        return False
    assert tarformat.encode(entry) == bytes(data[position:end])
    return True


@pytest.mark.thorough
@SETTINGS
@given(ENTRIES)
def test_what_is_written_is_read(entry):
    header = tarformat.encode(entry)
    for data in (header, bytearray(header), memoryview(header)):
        assert tarformat.decode(data, 0) == (entry, len(header))
    assert tarformat.header_size(entry) == len(header)


@pytest.mark.thorough
@SETTINGS
@given(ENTRIES, st.integers(0, 2**32))
def test_a_flip_in_the_last_block_is_refused_elsewhere_it_may_be_another_name(entry, seed):
    header = tarformat.encode(entry)
    chance = random.Random(seed)
    for _ in range(20):
        broken = bytearray(header)
        position = chance.randrange(len(broken))
        broken[position] ^= 1 << chance.randrange(8)
        assert not (held_to_encode(broken) and position >= len(broken) - BLOCK)


def summed(block):
    """Return the block with the checksum that it should have."""
    total = sum(block[:148]) + sum(block[156:]) + 8 * 0x20
    return bytes(block[:148]) + b"%06o\0 " % total + bytes(block[156:])


@pytest.mark.thorough
@SETTINGS
@given(ENTRIES, st.integers(0, 2**32))
def test_a_change_with_the_right_checksum_is_refused_or_in_the_normal_form(entry, seed):
    header = tarformat.encode(entry)
    chance = random.Random(seed)
    for _ in range(20):
        broken = bytearray(header)
        start = chance.randrange(0, len(broken), BLOCK)
        for _ in range(chance.randrange(1, 4)):
            broken[start + chance.randrange(BLOCK)] = chance.choice([0, 1, 0x20, 0x2F, 0x30, 0x37, 0x38, 0x80, 0xFF])
        broken[start : start + BLOCK] = summed(broken[start : start + BLOCK])
        held_to_encode(broken)


FIELDS = {  # offset: other ways to say it that other writers of tar use, or that would hide something
    100: [b"0100644\0", b"0000644 ", b"644\0\0\0\0\0", b"    644\0", b"-000644\0", b"0o00644\0", b"00_0644\0"],
    108: [b"0000001\0", b"0000000 ", b"\0" * 8],
    116: [b"0001750\0"],
    124: [b"00000000005 ", b"5".ljust(12, b"\0"), b"\x80" + b"\0" * 10 + b"\5", b"\xff" * 12, b"+0000000005\0"],
    136: [b"%011o\0" % (MTIME + 1), b"%011o " % MTIME, b"\0" * 12],
    156: [b"\0", b"7", b"3", b"4", b"6", b"g", b"x", b"S", b"L", b"K"],
    157: [b"target"],
    257: [b"ustar\00000", b"\0" * 8],
    265: [b"root", b"\0" * 200 + b"x"],
    297: [b"root"],
    329: [b"0000001\0"],
    345: [b"prefix"],
    483: [b"%011o\0" % 10],
    511: [b"\1"],
}


def test_other_ways_to_say_the_same_are_refused():
    header = tarformat.encode(TarEntry(FILE, b"name", 0o644, 5))
    tried = 0
    for offset, texts in FIELDS.items():
        for text in texts:
            block = bytearray(header)
            block[offset : offset + len(text)] = text
            assert not held_to_encode(summed(block)), (offset, text)
            tried += 1
    assert tried > 30


def long(kind, text):
    """Return the block and text of a long name or target, as encode writes them."""
    return tarformat._long(kind, text)


def test_long_names_have_one_form():
    name, target = b"n" * 150, b"t" * 150
    link = TarEntry(SYMLINK, name, 0o777, 0, target)
    good = tarformat.encode(link)
    last = good[-BLOCK:]
    assert good == long(b"K", target) + long(b"L", name) + last
    for data in (
        long(b"L", name) + long(b"K", target) + last,
        long(b"K", target) * 2 + long(b"L", name) + last,
        long(b"K", target) + long(b"L", name) * 2 + last,
        long(b"K", target) + long(b"L", b"m" * 150) + last,
        long(b"K", target) + long(b"L", name[:100]) + last,
        long(b"K", target) + long(b"L", name[:-1] + b"\0") + last,
        long(b"K", target[:-1] + b"\0") + long(b"L", name) + last,
        long(b"K", target) + long(b"L", name)[:-1] + b"x" + last,
        good[:-BLOCK],
    ):
        assert not held_to_encode(data)


def test_a_target_that_no_system_call_takes_is_refused():
    assert not held_to_encode(tarformat.encode(TarEntry(SYMLINK, b"l", 0o777, 0, b"a\0b")))
