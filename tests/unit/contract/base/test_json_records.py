import json

import pytest

from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError, UsageError


def stamped(**fields):
    return json_records.dumps(json_records.stamped("test", fields))


def test_dumps_is_canonical():
    assert json_records.dumps({"b": 1, "a": "é"}) == b'{"a":"\\u00e9","b":1}\n'


def test_loads_gives_typed_fields():
    fields = json_records.loads(stamped(name="x", count=3, words=["a"], env={"A": "b"}, sub=[{"n": 1}]), "test", "it")
    assert fields.text("name") == "x"
    assert fields.number("count") == 3
    assert fields.texts("words") == ["a"]
    assert fields.mapping("env") == {"A": "b"}
    assert fields.items("sub")[0].number("n") == 1
    assert fields.maybe_text("nothing") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"schema":"deployer.other","format":1,"min_reader":1}',
        b'{"schema":"deployer.test"}',
        b'{"schema":"deployer.test","min_reader":1}',
        b'{"schema":"deployer.test","format":"1","min_reader":1}',
        b'{"schema":"deployer.test","format":0,"min_reader":0}',
        b'{"schema":"deployer.test","format":1,"min_reader":2}',
        b'{"a":1,"a":2}',
        b"[" * 100000,
    ],
)
def test_what_is_no_record_is_refused_by_name(data):
    with pytest.raises(IntegrityError, match="the thing"):
        json_records.loads(data, "test", "the thing", IntegrityError)


def test_a_newer_format_is_refused_with_a_hint():
    record = json_records.stamped("test", {})
    record.update(format=9, min_reader=9)
    with pytest.raises(UsageError, match="format 9") as caught:
        json_records.loads(json_records.dumps(record), "test", "it")
    assert "newer deployer" in caught.value.hint


def test_a_newer_format_that_we_can_read_is_read():
    record = json_records.stamped("test", {"unheard": 1})
    record.update(format=9)
    assert json_records.loads(json_records.dumps(record), "test", "it").number("unheard") == 1


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("text", 1),
        ("number", "1"),
        ("number", True),
        ("number", -1),
        ("texts", ["a", 1]),
        ("mapping", {"a": 1}),
        ("items", [1]),
        ("child", []),
    ],
)
def test_a_mistyped_field_is_named(method, value):
    fields = json_records.loads(stamped(field=value), "test", "it")
    with pytest.raises(UsageError, match="field"):
        getattr(fields, method)("field")


def test_a_record_with_a_row_per_item_is_the_same_record():
    ranks = [{"task": 0, "measures": {"a": [1, "x\ny"]}}, {"task": 1, "measures": None}]
    whole = json_records.stamped("test", {"findings": [{"code": "a"}], "ranks": ranks, "payload": None})
    text = json_records.pretty_rows(whole, "ranks")
    assert json.loads(text) == whole
    assert list(json.loads(text)) == list(whole)
    assert [json.loads(line.rstrip(",")) for line in text.splitlines() if line.startswith('    {"task"')] == ranks
    for without in ({**whole, "ranks": []}, {"payload": 1}):
        assert json_records.pretty_rows(without, "ranks") == json_records.pretty(without)
