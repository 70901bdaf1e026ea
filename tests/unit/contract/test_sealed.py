import pytest

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle import sealed_file
from deployer.contract.bundle.manifest import Segment
from tests import bundles


def parse(data):
    seal = sealed_file.read_tail(data[-sealed_file.TAIL :], len(data))
    return sealed_file.read_manifest(data[seal.offset : seal.end], seal)


def test_the_segments_are_the_file():
    data = bundles.build()
    manifest = parse(data)
    assert sum(segment.size for segment in manifest.segments) == sealed_file.read_tail(data[-10240:], len(data)).offset
    assert [member.name for member in manifest.members][:2] == ["deployer.pyz", "oci-layout"]


def test_a_manifest_is_read_once_and_a_large_one_is_not_kept(monkeypatch):
    assert parse(bundles.build()) is parse(bundles.build())
    monkeypatch.setattr(sealed_file, "_MAX_KEPT", 100)
    assert parse(bundles.build()) is not parse(bundles.build())


def test_content_of_a_member():
    data = bundles.build()
    segments = sealed_file.member_segments(parse(data), "deployer.pyz")
    assert b"".join(data[s.offset : s.offset + s.size] for s in segments) == b"not really one"
    with pytest.raises(IntegrityError):
        sealed_file.member_segments(parse(data), "nothing")


def change_segment(index, **fields):
    return lambda record: record["segments"][index].update(fields)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["segments"].pop(3),
        lambda record: record["segments"].append(record["segments"][-1]),
        lambda record: record["members"].append(record["members"][-1]),
        lambda record: record["members"].reverse(),
        lambda record: record["members"][0].update(name="../out"),
        lambda record: record["members"][0].update(name="\ud800"),
        lambda record: record["members"][0].update(mode=0o777),
        lambda record: record["image"].update(layer_digest=record["image"]["config_digest"]),
        lambda record: record["image"].update(layer_digest="sha256:x"),
        lambda record: record["image"].update(architecture="arm64"),
        lambda record: record.update(name="other"),
        lambda record: record["codec"].update(name="lz4"),
        change_segment(0, kind="data"),
        change_segment(1, sha256="zz"),
        change_segment(1, size=0),
        change_segment(2, offset=1),
        change_segment(2, sha256="0" * 64),
    ],
)
def test_a_manifest_that_is_not_the_file_is_refused(change):
    with pytest.raises(IntegrityError):
        parse(bundles.reseal(bundles.build(), change))


@pytest.mark.parametrize("size", [0, 100, 10239])
def test_no_tail(size):
    with pytest.raises(IntegrityError):
        sealed_file.read_tail(b"\0" * size, size)


USUAL = {"kind": "frame", "offset": 5, "size": 6, "sha256": "a" * 64, "raw": 7, "holds": "files"}


@pytest.mark.parametrize(
    "record",
    [
        USUAL,
        {"kind": "data", "offset": 0, "size": 6, "sha256": "0" * 64},
        dict(USUAL, raw=None, holds=None),
        dict(USUAL, raw=None),
        dict(USUAL, holds=None),
    ],
)
def test_a_usual_segment_is_read_as_any_other(record):
    assert Segment.usual(record) == records.read(Segment, json_records.Fields(record, "it")) is not None


@pytest.mark.parametrize(
    "record",
    [
        [],
        None,
        {},
        {"offset": 5},
        dict(USUAL, more=1),
        dict(USUAL, kind=["frame"]),
        dict(USUAL, kind="other"),
        dict(USUAL, offset=-1),
        dict(USUAL, offset=True),
        dict(USUAL, size=1.0),
        dict(USUAL, size=None),
        dict(USUAL, raw=-1),
        dict(USUAL, raw=False),
        dict(USUAL, raw="7"),
        dict(USUAL, sha256="A" * 64),
        dict(USUAL, sha256="a" * 64 + "\n"),
        dict(USUAL, sha256=None),
        dict(USUAL, holds="files\x1b"),
        dict(USUAL, holds={}),
    ],
)
def test_any_other_segment_is_left_to_the_reader_with_all_checks(record):
    assert Segment.usual(record) is None
