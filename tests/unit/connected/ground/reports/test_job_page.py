"""The page of a job."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.ground.reports.job_page import make
from deployer.contract.base import json_records
from deployer.site.jobs import result as results
from deployer.site.proof.result import StepOutcome
from tests import evidence
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
    "waited": 2,
    "nodes": 2,
    "seconds": 12,
    "steps": [
        {"name": "hosts", "seconds": 1.5},
        {"name": "x", "seconds": 0.5},
        {"name": "payload", "seconds": 12.0},
        "no",
    ],
    "ranks": RANKS,
    "findings": [
        {"code": "mpi.provider", "severity": "error", "subject": "rank 0", "message": "slow", "remedy": "ask"}
    ],
    "payload": {"loss": [2.0, 1.0, 0.5], "history": {"accuracy": [0.1, 0.9]}, "name": ["a", "b"], "one": [1]},
}


def test_ranks_steps_and_curves_are_drawn_and_told() -> None:
    read = Page(make([RESULT]))
    assert read.labels == [
        "Node cn1: 4 CPUs, ranks 0, 1",
        "Node cn2: 6 CPUs, ranks 2",
        "waited 2.0 s; nodes tested, image prepared 1.5 s; program 10.5 s",
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
    assert read.tags.count("rect") == 4 + 6 + 3


def test_a_long_name_of_a_node_is_not_cut_by_its_picture() -> None:
    host = f"{'node' * 15}.cluster.example.org"
    text = make([{"ranks": [{"rank": 0, "host": host, "cpus": "0"}]}])
    assert f"<figure><figcaption>node {host}</figcaption><svg" in text
    assert 'viewBox="0 0 24 24"' in text


@pytest.mark.thorough
def test_hostile_results_are_texts_and_cost_nothing() -> None:
    hostile = {
        "job": HOSTILE,
        "findings": [dict.fromkeys(("code", "message", "remedy"), HOSTILE), 3],
        "ranks": [{"rank": HOSTILE, "host": HOSTILE, "cpus": "0-99999999999"}, {"cpus": "0-511,x"}, "no"],
        "payload": {HOSTILE: [1, 2], "nan": [float("nan"), 1], "true": [True, False], "deep": [[1, 2]],
                    "wide": [1e308, -1e308]},
    }  # fmt: skip
    read = Page(make([hostile]))
    assert read.tags.count("rect") == 512
    assert read.tags.count("polyline") == 1
    assert Page(make([{"ranks": 3, "findings": None, "payload": [1]}])).labels == []


def test_a_result_that_is_nested_deeper_than_any_is_not_drawn() -> None:
    payload: Any = [1, 2]
    for _ in range(5000):
        payload = {"x": payload, "loss": [2, 1]}
    read = Page(make([{"payload": payload}]))
    assert "nested deeper than 100 levels; nothing of it is drawn" in read.text
    assert json_records.is_deeper([[]], 1)
    assert not json_records.is_deeper([1, {"a": 2}], 2)
    assert not json_records.is_deeper(7, 0)


def test_ranks_are_in_the_order_of_their_numbers() -> None:
    ranks = [{"rank": number, "host": "cn1", "cpus": str(number)} for number in (10, 2, 0, 1)]
    assert Page(make([{"ranks": ranks}])).labels == ["Node cn1: 11 CPUs, ranks 0, 1, 2, 10"]


@pytest.mark.thorough
def test_a_failed_job_without_findings_is_not_called_good() -> None:
    for code, said in ((1, "No finding explains exit code 1"), (0, "No findings."), (None, "No findings.")):
        text = Page(make([{"job": "x", "exit_code": code}])).text
        assert said in text
        assert "wrong with it" not in text


@pytest.mark.thorough
def test_findings_and_points_are_bounded() -> None:
    loss = [float(number) for number in range(50_000)]
    text = make([{"findings": [{"code": "a.b"}] * 600, "payload": {"loss": loss}}])
    assert "Not listed: 100 more findings." in Page(text).text
    points = text.partition('points="')[2].partition('"')[0].split()
    assert len(points) <= 1001
    assert points[-1] == "312.0,12.0"
    assert "in 50000 values, of which 1 in 50 is drawn" in text
    assert "1 in 50 is drawn" in Page(text).text
    assert "is drawn" not in make([{"payload": {"loss": loss[:1000]}}])


def epochs(**fields: list[float]) -> list[dict[str, float]]:
    return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]


@pytest.mark.thorough
def test_each_field_of_the_epochs_is_a_curve_and_like_ones_share_a_picture() -> None:
    rows = epochs(
        epoch=[1, 2, 3],
        seconds=[2.5, 0.5, 0.25],
        loss=[2, 1, 0.5],
        val_loss=[2.25, 1.5, 1],
        test_loss=[900, 400, 300],
        accuracy=[0.1, 0.5, 0.9],
    )
    read = Page(make([{"payload": {"epochs": rows}}]))
    assert read.labels == [
        "epochs.seconds: from 2.5 to 0.25 in 3 values",
        "epochs.loss: from 2 to 0.5; epochs.val_loss: from 2.25 to 1 in 3 values",
        "epochs.test_loss: from 900 to 300 in 3 values",
        "epochs.accuracy: from 0.1 to 0.9 in 3 values",
    ]
    assert read.tags.count("polyline") == 5
    assert Page(make([{"payload": {"epochs": [{"loss": 1}, {"accuracy": 2}, 3]}}])).labels == []


def job(name: str, nodes: int, seconds: float, **values: object) -> dict[str, Any]:
    """Return the record of a job that trained on 1,000 samples per epoch."""
    payload = {"epochs": epochs(seconds=[9, seconds, seconds]), "samples_per_epoch": 1000}
    ranks = [{"host": f"cn{node}", "threads": 1} for node in range(nodes)]
    texts = {"schema": "deployer.result", "format": 1, "min_reader": 1, "bundle": "x", "site": "s", "runtime": "podman"}
    known = {"job": name, "exit_code": 0, "nodes": nodes, "world_size": nodes, "seconds": 90, "ranks": ranks}
    return {**texts, **known, "payload": payload, **values}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([job("a", 2, 0.5)], "samples per second2000, all ranks together: 1000 per epoch"),
        ([job("a", 2, 0.5)], "parallel efficiencynot known: no job of one node with the same settings"),
        ([job("a", 2, 0.5)], "cost0.05 node-hours: 2 nodes for 90 s"),
        ([job("a", 1, 0.5)], "parallel efficiencynone: this job has one node"),
        ([job("a", 2, 0.625), job("b", 1, 1)], "parallel efficiency80.0 %, compared with b (1 node, 1 rank)"),
        ([job("a", 4, 0.625), job("b", 2, 1)], "parallel efficiencynot known"),
        ([job("a", 2, 1, payload={"epochs": epochs(seconds=[1, 2])})], "the program wrote no samples_per_epoch"),
        (
            [job("a", 2, 1, payload={"measured": {"workload": "x", "unit": "images/s", "values": [7, 8]}})],
            "images per second7.5, all ranks together (mean of 2 values)",
        ),
        ([job("a", 2, 1, exit_code=1)], "speednot known: it failed with exit code 1"),
        ([{"nodes": 2}], "costnot known: the record has no number of nodes, or no time"),
    ],
)
def test_speed_and_cost_come_from_records_or_are_not_known(jobs: list[dict[str, Any]], said: str) -> None:
    assert said in Page(make(jobs)).text.replace("\n", "")


@pytest.mark.thorough
def test_a_copy_of_a_job_s_folder_has_the_same_page(tmp_path: Path) -> None:
    evidence.leave(str(tmp_path / "job"), 2, 1, collected=False)
    for step, ended in (("hosts", 1001.5), ("probe", 1004), ("payload", 1060.25)):
        results.write_result(str(tmp_path / "job"), StepOutcome(step, 0, None, "7", 1000, ended))
    shutil.copytree(tmp_path / "job", tmp_path / "copy", copy_function=shutil.copyfile)  # without times
    for name in ("job", "copy"):
        assert main(["report", str(tmp_path / name), "--html", str(tmp_path / f"{name}.html")]) == 0
    page = (tmp_path / "job.html").read_text()
    assert page == (tmp_path / "copy.html").read_text()
    assert "waited 0.0 s; nodes tested, image prepared 1.5 s; ranks tested 2.5 s; program 56.2 s" in Page(page).labels


def test_the_command_draws_a_folder_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(json_records.dumps({"schema": "deployer.result", "format": 1, "min_reader": 1, **RESULT}))
    assert main(["report", str(path), "--html", str(tmp_path / "j.html")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/j.html\n"
    assert "Node cn1" in (tmp_path / "j.html").read_text()
    assert main(["report", str(path), "--html", "x.html", "--csv"]) == 2
    assert "deployer result --site SITE JOB -o DIR" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nope"), "--html", "x.html"]) == 2
