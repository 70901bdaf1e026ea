"""What a rank writes without the json package is what the judge reads with it."""

import json

import pytest

from deployer.contract.proof import evidence
from deployer.contract.proof.payload import PayloadRecord
from deployer.site.proof import rank_record


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -(10**30),
        "",
        "plain",
        [],
        {},
        [[], {}, [{}]],
        {"a": [1, None, {"b": "c"}], "d": {"e": []}, "f": False},
    ],
)
def test_the_text_is_the_one_of_json(value):
    assert rank_record.dumps(value) == json.dumps(value)


@pytest.mark.parametrize("text", ['"\\', "\0\n\r\t\x1b\x7f", "\u00e4\u20ac", "\U0001f600", "\udcff", "a\u2028b"])
def test_any_text_is_read_as_it_was_written(text):
    written = rank_record.dumps({text: [text]})
    assert written.isprintable()
    assert max(written) < "\x7f"
    assert json.loads(written) == {text: [text]}


def test_a_record_has_the_fields_that_are_read():
    text = rank_record.dumps(rank_record.begun(7, "cn1"))
    assert evidence.read(PayloadRecord, text.encode(), "it") == PayloadRecord(7, "cn1", [], None, None, None)
    written = set(rank_record.begun(7, "cn1")) - {"schema", "format", "min_reader"}
    assert written == set(PayloadRecord._fields) - {"outside"}
