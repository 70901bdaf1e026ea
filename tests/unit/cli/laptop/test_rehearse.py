"""deployer rehearse: its report is printed before anything else can fail."""

import argparse
from pathlib import Path

import pytest

from deployer.cli.laptop import rehearse
from deployer.connected.rehearse import ways
from deployer.contract.errors import DeployerError, Unknown
from deployer.contract.rehearsal import JobEnding, Rehearsal

OUTCOME = Rehearsal("b:1", "sha256:0", "main", "", 1, "0", 1, 1, (), JobEnding("done", 0, None, 1.0))


@pytest.mark.parametrize("json", [False, True])
def test_a_list_or_a_record_that_cannot_be_written_does_not_lose_the_report(json, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        rehearse, "rehearsed", lambda *_: ways.Judged(OUTCOME, Path("/kept/job"), ways.NAMESPACES, None)
    )

    monkeypatch.setattr(rehearse, "_foresee", lambda *_: None)

    def fail(*_):
        raise DeployerError("the disk is full")

    monkeypatch.setattr(rehearse, "record", fail)
    words = {"bundle": "b.tar", "job": None, "site": None, "partition": None, "ranks": None, "time": "2m", "bind": []}
    words |= {"data": [], "accept": [], "engine": None, "rest": [], "json": json, "used": None, "record": True}
    with pytest.raises(DeployerError, match="the disk is full"):
        rehearse.run(argparse.Namespace(**words))
    assert "/kept/job" in capsys.readouterr().out
    with pytest.raises(Unknown, match="files that the job opened"):
        rehearse.run(argparse.Namespace(**words | {"used": str(tmp_path / "used")}))
    assert "/kept/job" in capsys.readouterr().out
