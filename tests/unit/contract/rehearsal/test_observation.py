"""Observations come from the payload's side: whatever is in the files, reading them ends, and keeps to its limits."""

import json

import pytest

from deployer.contract.rehearsal import observation
from deployer.contract.rehearsal.observation import CodeFrame, Observation

GOOD = Observation("host", "data.example", 7.5, (CodeFrame("/a/train.py", 3, "main"),), {"port": "443"}, "n1-12")


def line(**changes):
    return json.dumps(dict(GOOD._asdict(), **changes)).encode()


def test_a_record_is_read_as_it_was_written():
    found = observation.read([("n1-12.jsonl", line() + b"\n")])
    assert found == observation.Observed((GOOD,))


def test_observations_of_all_processes_are_in_the_order_of_time():
    found = observation.read([("a.jsonl", line(time=3) + b"\n" + line(time=9)), ("b.jsonl", line(time=5))])
    assert [(item.process, item.time) for item in found.observations] == [("a", 3.0), ("b", 5.0), ("a", 9.0)]


@pytest.mark.parametrize(
    "data",
    [
        b"not JSON",
        b"\xff\xfe",
        b"[]",
        b'{"kind": "host"}',
        b"[" * 60_000,
        b'{"time": ' + b"9" * 5000 + b"}",
        line(kind="other"),
        line(kind=["host"]),
        line(what=""),
        line(what=7),
        line(time="now"),
        line(time=True),
        line(time=-1),
        line(time=1e300),
        line(time=0).replace(b"0", b"NaN", 1),
        line(time=0).replace(b'"time": 0', b'"time": Infinity'),
        line(stack={}),
        line(stack=[["f", 1]]),
        line(stack=[["f", "1", "g"]]),
        line(stack=[["f", True, "g"]]),
        line(about=[]),
        line(about={"x": "y" * observation.MAX_LINE}),
    ],
)
def test_a_line_that_is_no_record_is_counted(data):
    found = observation.read([("a.jsonl", data + b"\n" + line() + b"\n")])
    assert (len(found.observations), found.unreadable, found.cut) == (1, 1, False)


def test_texts_are_cut_and_a_line_below_zero_is_zero():
    stack = [["f" * 5000, -4, "g" * 5000]] + [["f", 1, "g"]] * 99
    data = line(what="w" * 5000, stack=stack, about={"k": 1, "z": "t"})
    (found,) = observation.read([("a.jsonl", data)]).observations
    assert len(found.what) == 500
    assert len(found.stack) == 40
    assert (len(found.stack[0].file), found.stack[0].line, len(found.stack[0].function)) == (1000, 0, 500)
    assert found.about == {"z": "t"}


def test_a_large_file_is_cut_at_its_limit(monkeypatch):
    monkeypatch.setattr(observation, "MAX_FILE", 1000)
    found = observation.read([("a.jsonl", b"\n".join([line()] * 20))])
    assert found.cut
    assert 0 < len(found.observations) < 20
    assert found.unreadable == 0  # the last line, which may be cut, is left out


@pytest.mark.parametrize(("limit", "files"), [("MAX_KEPT", 1), ("MAX_KEPT", 5), ("MAX_FILES", 5)])
def test_no_more_than_the_limits_are_kept(monkeypatch, limit, files):
    monkeypatch.setattr(observation, limit, 3)
    data = b"\n".join([line()] * (5 if files == 1 else 1))
    found = observation.read([("%d.jsonl" % number, data) for number in range(files)])
    assert found.cut
    assert len(found.observations) == 3
