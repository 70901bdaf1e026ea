"""Answers of a site are typed records: what lacks a key, or has another type, is one line that names it."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop import main as laptop
from deployer.connected.transfer import capture_site
from deployer.connected.transfer.remote import Remote
from deployer.contract.base.errors import TransferError
from deployer.contract.base.json_records import Fields
from deployer.contract.bundle.plan_update import PlanUpdate
from tests import bundles, running

KNOWN = {"folder": None, "free": 10**12, "python": "3.6.15", "held": ""}
TAKEN = {"folder": "/r/images/x", "warnings": []}
PARTITION = {"name": "a", "state": "captured", "reason": "", "job_id": "1", "seconds": 1}
STATUS = {"job": "x-1", "job_id": "1", "state": "RUNNING", "active": True, "folder": "/r/jobs/x-1"}
SQUASHED = {"size": 1, "seconds": 1.0, "path": "/x", "mksquashfs": {"whose": "site", "version": "4"}}
#: A command, with the answers of its site in turn.
COMMANDS: list[tuple[list[str], list[dict[str, Any]]]] = [
    (["push", "b.tar", "lab", "--without-plan", "--dry-run"], [KNOWN]),
    (["push", "b.tar", "lab", "--without-plan"], [KNOWN, TAKEN]),
    (["push", "b.tar", "lab", "--without-plan", "--squashfs"], [KNOWN, TAKEN, {"squashfs": SQUASHED}]),
    (["push", "--plan", "b.plan", "lab"], [{"plan": "/r/x", "signers": [], "warnings": []}]),
    (["capture", "login1", "--dry-run", "-o", "x.yaml"], [{"jobs": {}}]),
    (["capture", "login1", "-o", "x.yaml"], [{"partitions": [PARTITION], "profile": "/p", "facts": "/f", "notes": []}]),
    (["result", "--site", "lab"], [{**STATUS, "problem": "", "remedy": ""}]),
]
#: Keys that may be missing: nothing is done with them, or null means the same.
OPTIONAL = {"squashfs", "folder", "job_id", "profile"}


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[dict[str, Any]]], None]:
    """Return a function that lets the site give these answers in turn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "b.tar").write_bytes(bundles.build())
    (tmp_path / "b.plan").write_text(PlanUpdate("sha256:" + "0" * 64, "hello:1", 1000, [running.PLAN]).text())
    rest: list[dict[str, Any]] = []

    def site(*_: object, **__: object) -> Fields:
        return Fields(rest.pop(0), "the answer of login1", TransferError)

    def converse(_: Remote, __: object, reply: Callable[[Fields], Iterable[bytes]], *___: object) -> Fields:
        for _piece in reply(site()):
            pass
        return site()

    does: dict[str, Callable[..., object]] = dict.fromkeys(("site", "feed"), site)
    does.update(converse=converse, __enter__=lambda self: self)
    does.update({name: lambda *_, **__: None for name in ("prepare", "remove")})
    monkeypatch.setattr(Remote, "admins_files", {})
    does.update(fetch=lambda *_: b"{}", has=lambda *_: False, files_in=lambda *_: [])
    for name, act in does.items():
        monkeypatch.setattr(Remote, name, act)
    return rest.extend


def lacking() -> list[tuple[list[str], list[dict[str, Any]], str]]:
    """Return each command with an answer that lacks a key, or in which it has another type."""
    found = []
    for words, answers in COMMANDS:
        for at, whole in enumerate(answers):
            for key in whole:
                without = {name: value for name, value in whole.items() if name != key}
                others = [{**without, key: {"x": [1]}}, *([without] if key not in OPTIONAL else [])]
                found += [(words, [*answers[:at], other, *answers[at + 1 :]], key) for other in others]
    return found


@pytest.mark.parametrize(("words", "answers", "key"), lacking(), ids=lambda part: str(part)[:30])
def test_an_answer_that_lacks_a_key_is_one_line(
    words: list[str],
    answers: list[dict[str, Any]],
    key: str,
    answer: Callable[[list[dict[str, Any]]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer(answers)
    assert laptop.main(words) == TransferError.exit_code
    said = capsys.readouterr().err
    assert "deployer: error: the answer of login1" in said
    assert key in said


@pytest.mark.parametrize("key", PARTITION)
def test_a_partition_that_lacks_a_key(key: str) -> None:
    fields = Fields({name: value for name, value in PARTITION.items() if name != key}, "the answer", TransferError)
    with pytest.raises(TransferError, match=f"the answer: field '{key}' is missing"):
        capture_site._partition(fields)
