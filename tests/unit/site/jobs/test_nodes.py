"""Findings about many nodes are one, wherever they are printed."""

import json
import os

import pytest

from deployer.cli.site.main import main
from deployer.contract.base.errors import JobFailed
from deployer.contract.proof import evidence as proof_evidence
from deployer.contract.proof.evidence import HostRecord
from deployer.site.jobs import ending, jobs, result
from deployer.site.proof import nodes
from tests import evidence, running


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["cn32", "cn4", "cn5"], "cn4-cn5, cn32"),
        (["cn%d" % number for number in range(1, 32)], "cn1-cn31"),
        (["i01r09c01", "i01r10c01", "i01r09c02"], "i01r09c01-i01r09c02, i01r10c01"),
        (["n099", "n100", "n0101"], "n099-n100, n0101"),
        (["b", "a"], "a, b"),
        ([], ""),
    ],
)
def test_names_are_sorted_by_number_and_a_range_is_its_ends(names, said):
    assert nodes.shown(names) == said


@pytest.fixture
def failed(tmp_path, monkeypatch, capsys):
    """Return the folder of a job of which 32 nodes lack the same folder, and what its log says."""
    folder = str(tmp_path / "jobs" / "job-1")
    os.makedirs(folder)
    evidence.leave(folder, 32, 1, False)
    for name in os.listdir(os.path.join(folder, "hosts")):
        os.unlink(os.path.join(folder, "hosts", name))
    for number in range(1, 33):
        record = HostRecord("cn%d" % number, "build-id:aa", ("/scratch",))
        running.write(os.path.join(folder, "hosts", "cn%d.json" % number), proof_evidence.record(record))
    running.write(os.path.join(folder, "job_id"), 7)
    programs = tmp_path / "bin"
    programs.mkdir()
    running.program(programs, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    monkeypatch.setenv("PATH", "{}:{}".format(programs, os.environ["PATH"]))
    monkeypatch.setattr(jobs, "_LAG", 0)
    assert main(["result", folder, "--step", "hosts", "--started", "1"]) == 3
    return folder, capsys.readouterr().err


def wait_text(folder):
    with pytest.raises(JobFailed) as error:
        jobs.follow(folder, lambda _: None)
    return "\n".join(error.value.lines())


@pytest.mark.thorough
def test_each_place_that_prints_a_finding_has_one_for_all_its_nodes(failed, tmp_path, capsys):
    folder, log = failed
    root = ["job-1", "--root", str(tmp_path)]
    texts = {"the log": log, "run --wait": wait_text(folder), "problem": jobs.status(folder).line()}
    for words in (["status"], ["status", "--json"], ["status", "--wait"]):
        main([words[0], *root, *words[1:]])
        said = capsys.readouterr()
        texts[" ".join(words)] = said.out + said.err
    with open(os.path.join(folder, result.RESULT_FILE)) as stream:
        texts["result.json"] = json.dumps(json.load(stream)["findings"])
    for place, text in texts.items():
        assert text.count("32 nodes: cn1-cn32") == 1, place
        assert "cn17" not in text, place
    assert "/scratch" not in "\n".join(ending.lines(jobs.status(folder)))  # it names the file with the result


def test_names_may_have_digits_that_int_refuses():
    assert nodes.shown(["cn²", "cn10", "cn9", "٣"]) == "٣, cn9-cn10, cn²"
