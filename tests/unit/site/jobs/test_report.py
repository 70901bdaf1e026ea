"""report on the site: jobs by name, number and path; what has no figures is left out with its reason."""

import json
import os

import pytest

from deployer.cli.site import main
from tests import running


@pytest.fixture
def store(tmp_path):
    return running.store(tmp_path / "root")


def job(store, name, number, seconds, **values):
    """Leave a job with a result, and return its folder."""
    folder = os.path.join(store.jobs, name)
    os.makedirs(folder)
    with open(os.path.join(folder, "job_id"), "w") as stream:
        stream.write(number)
    running.write(os.path.join(folder, "job.json"), {})
    record = {"schema": "deployer.result", "format": 1, "min_reader": 1, "job": name, "bundle": "gan", "site": "lab"}
    ranks = [{"host": "cn%d" % rank, "threads": 1} for rank in range(values.pop("nodes", 1))]
    measured = {"workload": "3dgan", "unit": "s/epoch", "values": seconds}
    record.update(runtime="charliecloud", exit_code=values.pop("exit_code", 0), ranks=ranks)
    running.write(os.path.join(folder, "result.json"), dict(record, payload={"measured": measured}))
    return folder


def report(store, *words):
    return main.main(["report", "--root", store.root, *words])


def test_jobs_are_found_by_name_number_and_path(store, capsys):
    job(store, "gan-1", "11", [10.0, 12.0])
    job(store, "gan-2", "12", [6.0], nodes=2)
    third = job(store, "gan-3", "13", [4.0], nodes=3)
    assert report(store, "gan-1", "12", os.path.join(third, "result.json"), "gan-1", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert [(run["job"], run["ranks"], round(run["efficiency"], 3)) for run in record["runs"]] == [
        ("gan-1", 1, 1.0),
        ("gan-2", 2, 0.917),
        ("gan-3", 3, 0.917),
    ]
    assert record["runs"][0]["interval_95"] == pytest.approx(12.7062, abs=1e-4)
    assert report(store, third, "--csv") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("gan-3,3dgan,,s/epoch,lab,charliecloud,3,3,1,1,4,,1,")


def test_a_job_without_figures_is_left_out_and_named(store, capsys):
    job(store, "gan-1", "11", [10.0])
    job(store, "gan-2", "12", [10.0], exit_code=3)
    assert report(store, "gan-1", "gan-2") == 0
    said = capsys.readouterr()
    assert "warning: left out: gan-2: it failed with exit code 3" in said.err
    assert report(store, "gan-2") == 1
    error = capsys.readouterr().err.splitlines()
    assert error[0] == "deployer: error: none of the jobs has figures to report"
    assert error[1] == "  gan-2: it failed with exit code 3"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "no job nope under "),
        (["/nope/result.json"], "there is no /nope/result.json"),
        ([], "the following arguments are required: JOB"),
    ],
)
def test_wrong_words_are_one_line(store, capsys, words, said):
    job(store, "gan-1", "11", [10.0])
    assert report(store, *words) == 2
    assert said in capsys.readouterr().err.splitlines()[0]
