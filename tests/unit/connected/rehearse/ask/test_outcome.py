"""How a rehearsal ended, from what the simulated site left; the job's own files are not trusted."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.rehearse.ask import outcome
from deployer.connected.rehearse.ask.rehearse import Rehearsed
from deployer.connected.rehearse.ask.request import RehearsalRequest
from deployer.connected.rehearse.world.simulated_plan import RehearsedLayout
from deployer.connected.rehearse.world.world import WorldReport
from deployer.contract.rehearsal.rehearsal import DONE, FAILED, LIMIT, MEMORY, STOPPED
from deployer.system.observe.observations import SEEN
from tests.unit.connected.rehearse.world.test_simulated_plan import JOB, MANIFEST


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / SEEN).mkdir()
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "node1.used.json").write_text(json.dumps({"whole": True}))
    (tmp_path / "output.log").write_text(
        "begin\nTraceback\nValueError: no\ndeployer: error payload.failed: job: it failed\nhint: see\n"
    )
    return tmp_path


def found(folder: Path, code: int, seconds: float = 5.0, result: Any = None, **node: Any) -> Rehearsed:
    report = WorldReport(code, seconds, "", {"node1": {"observed": True, "memory": 0, **node}})
    layout = RehearsedLayout(1, 1, 1, 1)
    request = RehearsalRequest("b.tar", None, None, None, 60, extra=["--short"])
    return Rehearsed(folder, folder / "kernel", layout, JOB, MANIFEST, report, result, 1000, request)


@pytest.mark.parametrize(
    ("code", "seconds", "memory", "how", "last"),
    [
        (0, 5.0, 0, DONE, None),
        (1, 5.0, 0, FAILED, "ValueError: no"),
        (124, 60.0, 0, LIMIT, None),
        (137, 90.0, 0, LIMIT, None),
        (124, 5.0, 0, FAILED, "ValueError: no"),
        (137, 5.0, 0, FAILED, "ValueError: no"),
        (137, 5.0, 1, MEMORY, "ValueError: no"),
    ],
)
def test_the_end(folder: Path, code: int, seconds: float, memory: int, how: str, last: str | None) -> None:
    ending = outcome.judge(found(folder, code, seconds, memory=memory)).outcome.ending
    assert (ending.how, ending.last) == (how, last)


def test_a_limit_of_this_machine_stops_the_job(folder: Path) -> None:
    stopped = found(folder, 137)
    seen = outcome.judge(stopped._replace(report=stopped.report._replace(stopped="it filled the disk"))).outcome
    assert (seen.ending.how, seen.exit_code) == (STOPPED, 3)
    assert seen.findings[0].finding.message == "it was stopped: it filled the disk"


def test_what_ranks_did_not_prove_is_reported_if_nothing_else_stopped_the_job(folder: Path) -> None:
    error = {"code": "net.alone", "severity": "error", "subject": "job", "message": "m", "remedy": "r"}
    others = [{**error, "severity": "warning"}, {**error, "code": "payload.failed"}, {**error, "code": "a.b\x1b[2J"}]
    result = {"findings": [error, *others, "damaged", {}]}
    codes = [item.finding.code for item in outcome.judge(found(folder, 3, result=result)).outcome.findings]
    assert codes == ["net.alone", "rehearse.ended"]
    assert [item.finding.code for item in outcome.judge(found(folder, 0, result=result)).outcome.findings] == []


def test_only_regular_files_of_the_job_are_read(folder: Path, tmp_path: Path) -> None:
    line = {"kind": "host", "what": "example.org", "time": 1.0, "stack": [], "about": {}}
    (folder / SEEN / "node1-1.jsonl").write_text(json.dumps(line) + "\n")
    secret = tmp_path / "elsewhere"
    secret.write_text(json.dumps({**line, "what": "secret.example"}) + "\n")
    (folder / SEEN / "node1-2.jsonl").symlink_to(secret)
    os.mkfifo(folder / SEEN / "node1-3.jsonl")
    (folder / SEEN / "node1-4.jsonl").mkdir()
    (folder / "kernel" / "node1.used.json").unlink()
    (folder / "kernel" / "node1.used.json").mkdir()
    made = outcome.judge(found(folder, 0)).outcome
    assert [item.finding.subject for item in made.findings] == ["the job", "example.org", "the job"]
    assert made.watched == ()


def test_a_log_that_the_job_made_a_link_is_not_read(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "credentials"
    secret.write_text("secret\n")
    (folder / "output.log").unlink()
    (folder / "output.log").symlink_to(secret)
    assert outcome.judge(found(folder, 1)).outcome.ending.last is None


def test_the_last_line_has_no_effect_where_it_is_printed(folder: Path) -> None:
    (folder / "output.log").write_text("no\x1b[2J\x7f\n")
    assert outcome.judge(found(folder, 1)).outcome.ending.last == r"no\x1b[2J\x7f"


def test_what_was_used_is_the_largest_of_the_nodes(folder: Path) -> None:
    used = {"peak_memory": 100, "threads": True, "files_opened": "many", "temporary": -1, "whole": True}
    (folder / "kernel" / "node1.used.json").write_text(json.dumps(used))
    seen = outcome.judge(found(folder, 0, needed=2500)).outcome
    assert seen.used.node_memory == 2500
    assert (seen.used.peak_memory, seen.used.threads, seen.used.files_opened) == (100, None, None)
    assert seen.command == (*JOB.command, "--short")


def test_watched_is_what_was_observed(folder: Path) -> None:
    assert MANIFEST.image.python
    assert outcome.judge(found(folder, 0, observed=False)).outcome.watched == ()
    observed = found(folder, 0)
    assert outcome.judge(observed).outcome.watched == ("network", "files")
    missing = observed._replace(layout=RehearsedLayout(2, 1, 1, 1))
    assert outcome.judge(missing).outcome.watched == ()
    line = {"kind": "process", "what": "1 python3", "time": 1.0, "stack": [], "about": {}}
    (folder / SEEN / "node1-1.jsonl").write_text(json.dumps(line) + "\n")
    assert outcome.judge(observed).outcome.watched == ("python", "network", "files")


@pytest.mark.parametrize("used", ["{}", '{"whole": false}', '{"whole": 1}', "", None])
def test_an_observer_that_did_not_see_everything_is_no_account(folder: Path, used: str | None) -> None:
    path = folder / "kernel" / "node1.used.json"
    path.unlink() if used is None else path.write_text(used)
    made = outcome.judge(found(folder, 0)).outcome
    assert (made.watched, [item.finding.code for item in made.findings]) == ((), ["rehearse.blind"])
    assert made.checked.verdict == "UNKNOWN"
    assert made.lines()[-1].startswith("verdict: UNKNOWN: the kernel's account of node1 is missing")


def test_what_was_requested_is_the_kernels_word(folder: Path) -> None:
    """Lines of the audit hook can name one host for another; what the observer of the node saw is in the record."""
    about = {"origin": "https://good.example/x"}
    frame = ["/usr/lib/python3/dist-packages/keras/utils/data_utils.py", 1, "get_file"]
    for name, stack, hosts in (
        (f"{SEEN}/node1-7", [frame], ("good.example",)),
        (f"{SEEN}/node1.network", [frame], ("other.example",)),
        ("kernel/node1.network", [], ("evil.example",)),
    ):
        lines = [{"kind": "host", "what": host, "time": 1.0, "stack": stack, "about": about} for host in hosts]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = outcome.judge(found(folder, 0)).outcome
    assert made.requested == ("evil.example",)
