"""deployer rehearse: its report and its exit code."""

from pathlib import Path

import pytest

from deployer.cli.laptop import rehearse
from deployer.cli.laptop.main import main
from deployer.connected.rehearse.ask import ways
from deployer.contract.rehearsal.observation import Observation, Observed
from deployer.contract.rehearsal.rehearsal import JobEnding, Rehearsal, judge

OUTCOME = Rehearsal("b:1", "sha256:0", "main", "", 1, "0", 1, 1, ("network", "files"), JobEnding("done", 0, None, 1.0))


@pytest.mark.parametrize(("words", "code"), [([], 0), (["--strict"], 3)])
def test_a_network_error_that_the_program_swallowed_is_an_error_if_asked(words, code, monkeypatch, capsys):
    found = judge(Observed((Observation("host", "a.example", 1.0),)), OUTCOME.ending)
    judged = ways.Judged(OUTCOME._replace(findings=found), Path("/kept/job"), ways.NAMESPACES)
    monkeypatch.setattr(rehearse, "rehearsed", lambda *_: judged)
    monkeypatch.setattr(rehearse, "_foresee", lambda *_: None)
    assert main(["rehearse", "b.tar", *words]) == code
    assert "verdict: WARN" in capsys.readouterr().out
