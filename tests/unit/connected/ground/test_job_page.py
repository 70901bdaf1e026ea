"""The page of a job."""

from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.ground.job_page import PicturedJob, TimedStep, make
from deployer.contract import json_records
from tests.pages import HOSTILE, Page

RANKS = [
    {
        "rank": 0,
        "host": "cn1",
        "cpus": "0-1",
        "threads": 2,
        "mpi_library": "Intel MPI",
        "provider": "psm2",
        "exit_code": 0,
    },
    {
        "rank": 1,
        "host": "cn1",
        "cpus": "2-3",
        "threads": 2,
        "mpi_library": "Intel MPI",
        "provider": "psm2",
        "exit_code": 0,
    },
    {"rank": 2, "host": "cn2", "cpus": "0,5", "communication": {"nccl": {"network": "Socket"}}},
]
RESULT: dict[str, Any] = {
    "job": "x-1",
    "bundle": "x",
    "started": "2026-11-22T10:00:00Z",
    "seconds": 12,
    "ranks": RANKS,
    "findings": [
        {"code": "mpi.provider", "severity": "error", "subject": "rank 0", "message": "slow", "remedy": "ask"}
    ],
    "payload": {"loss": [2.0, 1.0, 0.5], "history": {"accuracy": [0.1, 0.9]}, "name": ["a", "b"], "one": [1]},
}


def test_ranks_steps_and_curves_are_drawn_and_told() -> None:
    read = Page(make([PicturedJob(RESULT, [TimedStep("waited", 0, 2), TimedStep("payload", 2, 12.5)])]))
    assert read.labels == [
        "Node cn1: 4 cores, ranks 0, 1",
        "Node cn2: 6 cores, ranks 2",
        "waited 2.0 s; payload 10.5 s",
        "loss: from 2 to 0.5 in 3 values",
        "history.accuracy: from 0.1 to 0.9 in 2 values",
    ]
    for text in ("Intel MPI", "psm2", "NCCL: Socket", "mpi.provider"):
        assert text in read.text
    assert read.tags.count("rect") == 4 + 6 + 2


def test_hostile_results_are_texts_and_cost_nothing() -> None:
    hostile = {
        "job": HOSTILE,
        "findings": [dict.fromkeys(("code", "message", "remedy"), HOSTILE), 3],
        "ranks": [{"rank": HOSTILE, "host": HOSTILE, "cpus": "0-99999999999"}, {"cpus": "0-511,x"}, "no"],
        "payload": {HOSTILE: [1, 2], "nan": [float("nan"), 1], "true": [True, False], "deep": [[1, 2]]},
    }
    read = Page(make([PicturedJob(hostile, [])]))
    assert read.tags.count("rect") == 512
    assert read.tags.count("polyline") == 1
    assert Page(make([PicturedJob({"ranks": 3, "findings": None, "payload": [1]}, [])])).labels == []


def test_the_command_draws_a_folder_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(json_records.dumps({"schema": "deployer.result", "format": 1, "min_reader": 1, **RESULT}))
    assert main(["report", str(path), "--html", str(tmp_path / "j.html")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/j.html\n"
    assert "Node cn1" in (tmp_path / "j.html").read_text()
    assert main(["report", str(path), "--html", "x.html", "--csv"]) == 2
    assert "deployer result --site SITE JOB -o DIR" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nope"), "--html", "x.html"]) == 2
