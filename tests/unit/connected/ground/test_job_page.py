"""The page of a job."""

import os
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.ground import published_runs
from deployer.connected.ground.job_page import PicturedJob, TimedStep, make
from deployer.contract import json_records
from deployer.site.jobs import result as results
from tests.pages import HOSTILE, Page

RANKS = [
    {
        "rank": 0,
        "host": "cn1",
        "cpus": "0-1",
        "threads": 2,
        "mpi_library": "Intel MPI",
        "mpi_identity": "build-id:aa",
        "provider": "psm2",
        "exit_code": 0,
    },
    {
        "rank": 1,
        "host": "cn1",
        "cpus": "2-3",
        "threads": 2,
        "mpi_library": "Intel MPI",
        "mpi_identity": "build-id:aa",
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
        "Node cn1: 4 CPUs, ranks 0, 1",
        "Node cn2: 6 CPUs, ranks 2",
        "waited 2.0 s; payload 10.5 s",
        "loss: from 2 to 0.5 in 3 values",
        "history.accuracy: from 0.1 to 0.9 in 2 values",
    ]
    for text in (
        "Intel MPI",
        "psm2",
        "Socket (NCCL)",
        "Proof: incomplete: 2 of 3 ranks used the image's own Intel MPI; no MPI library was found in 1 of 3 ranks; ",
        "mpi.provider",
    ):
        assert text in read.text
    assert read.tags.count("rect") == 4 + 6 + 2


def test_a_long_name_of_a_node_is_not_cut_by_its_picture() -> None:
    host = f"{'node' * 15}.cluster.example.org"
    text = make([PicturedJob({"ranks": [{"rank": 0, "host": host, "cpus": "0"}]}, [])])
    assert f"<figure><figcaption>node {host}</figcaption><svg" in text
    assert 'viewBox="0 0 24 24"' in text


def test_hostile_results_are_texts_and_cost_nothing() -> None:
    hostile = {
        "job": HOSTILE,
        "findings": [dict.fromkeys(("code", "message", "remedy"), HOSTILE), 3],
        "ranks": [{"rank": HOSTILE, "host": HOSTILE, "cpus": "0-99999999999"}, {"cpus": "0-511,x"}, "no"],
        "payload": {HOSTILE: [1, 2], "nan": [float("nan"), 1], "true": [True, False], "deep": [[1, 2]],
                    "wide": [1e308, -1e308]},
    }  # fmt: skip
    read = Page(make([PicturedJob(hostile, [])]))
    assert read.tags.count("rect") == 512
    assert read.tags.count("polyline") == 1
    assert Page(make([PicturedJob({"ranks": 3, "findings": None, "payload": [1]}, [])])).labels == []


def test_a_result_that_is_nested_deeper_than_any_is_not_drawn() -> None:
    payload: Any = [1, 2]
    for _ in range(5000):
        payload = {"x": payload, "loss": [2, 1]}
    read = Page(make([PicturedJob({"payload": payload}, [])]))
    assert "nested deeper than 100 levels; nothing of it is drawn" in read.text
    assert json_records.is_deeper([[]], 1)
    assert not json_records.is_deeper([1, {"a": 2}], 2)
    assert not json_records.is_deeper(7, 0)


def test_ranks_are_in_the_order_of_their_numbers() -> None:
    ranks = [{"rank": number, "host": "cn1", "cpus": str(number)} for number in (10, 2, 0, 1)]
    assert Page(make([PicturedJob({"ranks": ranks}, [])])).labels == ["Node cn1: 11 CPUs, ranks 0, 1, 2, 10"]


def test_a_failed_job_without_findings_is_not_called_good() -> None:
    for code, said in ((1, "No finding explains exit code 1"), (0, "No findings."), (None, "No findings.")):
        text = Page(make([PicturedJob({"job": "x", "exit_code": code}, [])])).text
        assert said in text
        assert "wrong with it" not in text


def test_findings_and_points_are_bounded() -> None:
    loss = [float(number) for number in range(50_000)]
    text = make([PicturedJob({"findings": [{"code": "a.b"}] * 600, "payload": {"loss": loss}}, [])])
    assert "Not listed: 100 more findings." in Page(text).text
    points = text.partition('points="')[2].partition('"')[0].split()
    assert len(points) <= 1001
    assert points[-1] == "312.0,32.0"
    assert "in 50000 values, of which 1 in 50 is drawn" in text
    assert "1 in 50 is drawn" in Page(text).text
    assert "is drawn" not in make([PicturedJob({"payload": {"loss": loss[:1000]}}, [])])


def timed(
    folder: Path, *evidence: tuple[str, int], started: str = "1970-01-01T00:01:00Z", code: int | None = 0
) -> list[tuple[str, float]]:
    """Return the names and lengths of the steps of a job with these files of evidence, changed at these times."""
    record: dict[str, Any] = {"schema": "deployer.result", "format": 1, "min_reader": 1}
    record.update(started=started, seconds=30, ranks=[{"exit_code": code}])
    (folder / "result.json").write_bytes(json_records.dumps(record))
    for name, changed in evidence:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
        os.utime(path, (changed, changed))
    return [(name, end - start) for name, start, end in results.steps(str(folder))]


def test_the_rest_is_the_payload_only_if_the_other_steps_are_known(tmp_path: Path) -> None:
    assert timed(tmp_path, started="x") == []
    assert timed(tmp_path) == [("job", 30)]
    assert timed(tmp_path, ("hosts/a.json", 65)) == [("nodes looked at", 5), ("job", 25)]
    known = timed(tmp_path, ("hosts/log-from", 70))
    assert known == [("nodes looked at", 5), ("image and ranks checked", 5), ("payload", 20)]
    assert timed(tmp_path, code=None) == [("nodes looked at", 5), ("job", 25)]
    late = timed(tmp_path, ("hosts/a.json", 1000), ("hosts/log-from", 1000))  # a copy without times
    assert late == [("job", 30)]


def test_the_command_draws_a_folder_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(json_records.dumps({"schema": "deployer.result", "format": 1, "min_reader": 1, **RESULT}))
    assert main(["report", str(path), "--html", str(tmp_path / "j.html")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/j.html\n"
    assert "Node cn1" in (tmp_path / "j.html").read_text()
    assert main(["report", str(path), "--html", "x.html", "--csv"]) == 2
    assert "deployer result --site SITE JOB -o DIR" in capsys.readouterr().err
    for option in (["--beside", published_runs.NAMES[0]], ["--all-layouts"]):
        assert main(["report", str(path), "--html", "x.html", *option]) == 2
        assert "cannot be used with --html" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nope"), "--html", "x.html"]) == 2
