"""What text from outside may hold: each text of each record, one by one, is refused with what nobody may put there."""

import copy
import json

import pytest

from deployer.contract.base import text
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle import manifest as manifests
from deployer.contract.bundle.manifest import BundleMember, DataNeed, Manifest
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.rules.hostfiles import LINK, HostFile
from deployer.contract.rules.verdict import judged
from deployer.contract.site import plan as plans
from deployer.site.storage.store import Receipt
from tests import running

PLAN = running.PLAN._replace(
    abi="mpich-abi",
    checked=judged([Finding("a", ERROR, "b", "c", "d")], ["e"]),
    host=(HostFile("lib/libx.so", LINK, "liby.so", "why"),),
    account="abc",
    directives=["--exclusive"],
    against={"udocker": "why not"},
    start_options=[running.START_OPTION._replace(program="/opt/x", place="/tmp")],
    limits=plans.Limits(4, "01:00:00", True),
)
MANIFEST = Manifest(
    "tiny",
    "1",
    {"name": "zstd", "version": "1"},
    {"deployer": "1"},
    running.IMAGE._replace(entrypoint=["sh"], cmd=["-c", "true"]),
    {"devices": 1},
    [job._replace(workdir="/work", stdin="/deployer/app/in", memory=1, environment={"A": "1"}) for job in running.JOBS],
    [BundleMember("deployer/app/x", 1, 0o644)],
    [],
    (DataNeed("digits", "other:1"),),
    ("mpich-abi",),
)
RECEIPT = Receipt("tiny", "1", "sha256:0", 1, 1, 1)
#: Texts that may have several lines, by the end of their place.
LINES = ("command.*", "env.*", "jobs.*.environment.A", "entrypoint.*", "cmd.*", "members.*.name")


def leaves(record, place=()):
    """Yield the place of each text, and of each key of a mapping that is not a field."""
    if isinstance(record, str):
        yield place
    for key, value in (
        record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    ):
        yield from leaves(value, (*place, key))


def replaced(record, place, change):
    found = copy.deepcopy(record)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = change(inner[place[-1]])
    return json.dumps(found).encode()


def lines_allowed(place):
    dotted = ".".join("*" if isinstance(part, int) else part for part in place)
    return dotted.endswith(LINES)


READERS = [(PLAN.record(), plans.read, UsageError), (MANIFEST.record(), manifests.read, IntegrityError)]
CASES = [(record, read, error, place) for record, read, error in READERS for place in leaves(record)]


@pytest.mark.parametrize(
    ("record", "read", "error", "place"), CASES, ids=[".".join(map(str, place)) for _, _, _, place in CASES]
)
def test_no_text_of_a_record_has_control_characters(record, read, error, place):
    always = ["\0", "\ud800", "\udce9"]
    never_in_one_line = ["\n", "\r", "\t", "\x1b[31m", "\x7f", "\x85", "\u2028"]
    for bad in always + ([] if lines_allowed(place) else never_in_one_line):
        with pytest.raises((error, UsageError)) as caught:
            read(replaced(record, place, lambda value, bad=bad: value + bad), "it")
        (line, *rest) = caught.value.lines()
        assert line.isprintable()
        assert len(rest) <= 1
    if lines_allowed(place):
        read(replaced(record, place, lambda value: value + "\nb\t\x1b"), "it")
    read(replaced(record, place, lambda value: value), "it")


@pytest.mark.parametrize("name", ["", "A B", "a.b", "1A", "A\n", "X[$(id)]", "A; id; B", "é", "A-B"])
def test_only_identifiers_are_names_of_variables(name):
    with pytest.raises(UsageError, match=r"not an environment variable|control character"):
        plans.read(json.dumps(dict(PLAN.record(), environment={name: "1"})).encode(), "it")
    image = MANIFEST.image._replace(env=["PATH=/bin", name + "=1"])
    with pytest.raises(IntegrityError, match="not an environment variable"):
        manifests.read(json.dumps(MANIFEST._replace(image=image).record()).encode(), "it")
    assert not text.is_name(name)


def test_keys_are_texts_too():
    for key in ("a\nb", "\ud800"):
        for name in ("against", "environment"):
            with pytest.raises(UsageError, match=r"control character|half character"):
                plans.read(json.dumps(dict(PLAN.record(), **{name: {key: "1"}})).encode(), "it")
        with pytest.raises(IntegrityError, match=r"control character|half character"):
            manifests.read(json.dumps(dict(MANIFEST.record(), changes={key: 1})).encode(), "it")


def test_a_finding_is_written_in_one_line():
    written = Finding("a", ERROR, "lib\x1b]0;x\x07.so", "no\nway", "\u202e").record()
    assert written["subject"] == "lib\\x1b]0;x\\x07.so"
    assert (written["message"], written["remedy"]) == ("no\\nway", "\\u202e")


def test_what_is_printable_is_kept():
    assert text.printable("é ß 漢字 a'b\\") == "é ß 漢字 a'b\\"
    assert text.printable("\ud800\U000e0001") == "\\ud800\\U000e0001"
