import random

import pytest

from deployer.contract.base import json_records, tarformat
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle import delta, sealed_file
from deployer.contract.bundle.delta import GAP, PART_SIZE, Ending, Part
from deployer.contract.bundle.manifest import DATA, Segment
from tests import bundles


def segments(*sizes):
    found, offset = [], 0
    for number, size in enumerate(sizes):
        found.append(Segment(DATA, offset, size, "%064x" % (number << 192)))
        offset += size
    return found


def held(*which):
    return delta.read_held(delta.held_text(segment.sha256 for segment in which))


def test_what_is_missing_is_sent_once():
    table = segments(10, 20, 30)
    twice = [*table, table[2]._replace(offset=60)]
    assert delta.missing(twice, held(table[0])) == table[1:]
    assert delta.missing(table, held(*table)) == []


def test_parts_are_full_but_not_larger():
    table = segments(*[1024 * 1024] * 12)
    assert delta.cut(table) == [Part(0, PART_SIZE), Part(PART_SIZE, PART_SIZE), Part(2 * PART_SIZE, 2 * 1024 * 1024)]


def test_a_small_gap_is_sent_along_and_a_large_one_is_not():
    table = segments(100, GAP, 100, GAP + 1, 100)
    assert delta.cut([table[0], table[2], table[4]]) == [Part(0, 200 + GAP), Part(201 + 2 * GAP, 100)]


def test_a_segment_larger_than_a_part_goes_alone():
    table = segments(10, PART_SIZE + 1, 10)
    assert delta.cut(table) == [Part(0, 10), Part(10, PART_SIZE + 1), Part(PART_SIZE + 11, 10)]


def test_parts_hold_whole_segments_and_all_that_is_missing():
    chance = random.Random(7)
    table = segments(*[chance.choice((1, 512, 5000, 700000, 4194304)) for _ in range(400)])
    here = [segment for segment in table if chance.random() < 0.5]
    wanted = delta.missing(table, held(*here))
    parts = delta.cut(wanted)
    borders = {segment.offset for segment in table} | {table[-1].offset + table[-1].size}
    assert all(part.offset in borders and part.end in borders and part.size <= PART_SIZE for part in parts)
    assert all(first.end < second.offset or first.end == second.offset for first, second in zip(parts, parts[1:]))
    assert all(any(p.offset <= s.offset and s.offset + s.size <= p.end for p in parts) for s in wanted)


@pytest.mark.parametrize("place", [Part(0, 1), Part(123456789012, 8388608), Ending(5, 7)])
def test_names(place):
    found = delta.read_name(place.name)
    assert (type(found), found) == (type(place), place)


@pytest.mark.parametrize(
    "name", ["", "1-2", "01-2.part", "1-2.tmp", "../1-2.part", "1-2.part.7.tmp", "1-2.part\n", "-1-2.end"]
)
def test_other_names_are_nobodys(name):
    assert delta.read_name(name) is None


def test_a_receipt():
    table = segments(1, 2, 3)
    data = json_records.dumps(delta.receipt(segment.sha256 for segment in table))
    assert delta.missing(table, delta.read_receipt(data, "r")) == []
    with pytest.raises(UsageError):
        delta.read_receipt(b"{}", "r")
    for text in ("A", "AAAA", "\u00e4"):
        with pytest.raises(IntegrityError):
            delta.read_held(text)


def ending():
    data = bundles.build()
    offset = sealed_file.read_tail(data[-sealed_file.TAIL :], len(data)).offset
    return data[offset:], Ending(offset, len(data) - offset)


def test_an_ending_comes_back():
    data, place = ending()
    found, seal, manifest = delta.decompress(delta.compress(data), place)
    assert (found, seal.offset, manifest.name) == (data, place.offset, "tiny")


def test_broken_endings_are_refused():
    data, place = ending()
    good = delta.compress(data)
    changed = bytearray(data)
    changed[tarformat.BLOCK + 10] ^= 1
    for bad in (
        good[:-5],
        good + b"x",
        b"",
        b"x",
        delta.compress(bytes(changed)),
        delta.compress(data + b"\0"),
        delta.compress(b"\0" * 10**7),
    ):
        with pytest.raises(IntegrityError):
            delta.decompress(bad, place)
    for wrong in (Ending(place.offset + 1, place.size - 1), Ending(place.offset + 512, place.size)):
        with pytest.raises(IntegrityError):
            delta.decompress(good, wrong)
