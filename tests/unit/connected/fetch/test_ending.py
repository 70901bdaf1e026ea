"""What fetch says about a job that failed."""

from pathlib import Path

import pytest

from deployer.connected.fetch.fetch import _ending
from deployer.connected.fetch.recorder import Refusal
from deployer.contract.base.errors import JobFailed
from deployer.contract.rehearsal import rehearsal
from deployer.contract.rehearsal.rehearsal import JobEnding, Reached, Rehearsal
from deployer.contract.rules.findings import Finding

ASKED = Reached(Finding(rehearsal.NETWORK_CODE, "error", "hub", "asked for datasets: x", "put it in"), stopped=True)
FULL = Reached(Finding("rehearse.memory", "error", "rank 0", "it needed 9 GB", "more"), stopped=True)


def failed(tmp_path: Path, *findings: Reached, said: str = "") -> str:
    log = tmp_path / "output.log"
    log.write_text(said)
    ending = JobEnding(rehearsal.FAILED, 1, "TypeError: no such word", 3.0)
    outcome = Rehearsal("a:1", "", "train", "", 0, "", 1, 1, (), ending, findings=findings)
    refusal = Refusal("https://hub.example/x", 404, "it is gone")
    with pytest.raises(JobFailed) as caught:
        _ending(outcome, [refusal], log)
    return caught.value.message


def test_where_it_asked_is_not_why_it_failed(tmp_path: Path) -> None:
    assert failed(tmp_path, ASKED) == "the job failed, and nothing was kept: TypeError: no such word"
    assert failed(tmp_path, ASKED, FULL) == "the job failed, and nothing was kept: it needed 9 GB"


def test_a_refused_address_that_it_printed_is_named(tmp_path: Path) -> None:
    text = failed(tmp_path, said="404 for https://hub.example/x")
    assert text.endswith("TypeError: no such word; https://hub.example/x: it is gone")
