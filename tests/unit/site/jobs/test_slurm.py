"""Slurm's words, as its commands were seen to say them (22.05)."""

import os
import re

import pytest

from deployer.contract.base.errors import Refused, TransferError
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import JobRequest, NotTaken

slurm = SCHEDULERS["slurm"]
INVALID = "slurm_load_jobs error: Invalid job id specified\n"
SILENT = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"


def test_argv():
    assert slurm.submit("/j/job.sh") == ["sbatch", "--parsable", "/j/job.sh"]
    assert slurm.states(["7"]) == ["squeue", "-r", "--noheader", "--states=all", "--jobs=7", "--format=%i|%T|%M|%N|%r"]
    assert slurm.cancel("7") == ["scancel", "7"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (
            "invalid partition specified: gpu\nBatch job submission failed: Invalid partition name specified",
            "partition",
        ),
        ("Requested partition configuration not available now", "partition"),
        ("More processors requested than permitted", "nodes"),
        ("Node count specification invalid", "nodes"),
        ("Requested node configuration is not available", "nodes"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time"),
        ("Invalid account or account/partition combination specified", "account"),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "policy"),
        ("Invalid feature specification", "feature"),
        ("Requested reservation is invalid", "feature"),
    ],
)
def test_slurm_s_words_for_what_it_refuses_have_a_code_and_a_remedy(said, code):
    with pytest.raises(Refused, match=rf"{re.escape(said.splitlines()[-1])} \(queue.{code}\)$") as error:
        slurm.parse_submit(1, "", "sbatch: error: " + said)
    assert "site's profile" not in error.value.hint or code == "feature"
    with pytest.raises(TransferError):
        slurm.parse_submit(1, "", said + "\nUnable to contact slurm controller")


def test_the_line_of_the_failure_counts_before_those_of_a_plugin():
    said = "sbatch: Invalid account: ask for one\nsbatch: error: Batch job submission failed: Invalid qos specification"
    with pytest.raises(NotTaken, match=r"\(queue.policy\)$"):
        slurm.parse_submit(1, "", said)
    with pytest.raises(Refused, match=r"\(queue.account\)$") as error:
        slurm.parse_submit(1, "", said.replace("Invalid qos specification", "Unspecified error"))
    assert not isinstance(error.value, NotTaken)


@pytest.mark.parametrize(
    ("out", "expected"), [("7\n", "7"), ("7;c-1.x\n", "7;c-1.x"), ("sbatch: info: your quota is low\n7\n", "7")]
)
def test_a_job_that_was_taken(out, expected):
    assert slurm.parse_submit(0, out, "") == expected


def test_a_job_of_another_cluster_is_asked_for_there():
    assert slurm.owns("7;c1")
    assert not slurm.owns("7;c1;c2")
    assert not slurm.owns("7;c1 --help")
    head = ["squeue", "-r", "--clusters=c1", "--noheader", "--states=all"]
    assert slurm.states(["7;c1"]) == [*head, "--jobs=7", "--format=%i;c1|%T|%M|%N|%r"]
    assert slurm.states(["7;c1", "8;c1"]) == [*head, "--jobs=7,8", "--format=%i;c1|%T|%M|%N|%r"]
    assert slurm.cancel("7;c1") == ["scancel", "--clusters=c1", "7"]
    assert slurm.submit("/j/job.sh", "7;c1") == ["sbatch", "--parsable", "--dependency=afterany:7", "/j/job.sh"]
    out = "CLUSTER: c1\n7;c1|RUNNING|0:04|cn1|None\n"
    assert slurm.parse_states(0, out, "") == {"7;c1": ("RUNNING", "", "0:04", "cn1", True)}


def test_own_jobs_are_known_by_their_scripts():
    assert slurm.parse_own(0, "7|/j/a/job.sh\n8|/j/b|c/job.sh\n9|(null)\n", "")["/j/b|c/job.sh"] == "8"
    assert slurm.parse_own(0, "10|/j/job.sh\n9|/j/job.sh\n", "") == {"/j/job.sh": "9"}
    out = "CLUSTER: c1\nJOBID|COMMAND\n7|/j/a/job.sh\n\nCLUSTER: c2\nJOBID|COMMAND\n"
    assert slurm.parse_own(0, out, "") == {"/j/a/job.sh": "7;c1"}
    with pytest.raises(TransferError):
        slurm.parse_own(1, "", SILENT)


@pytest.mark.parametrize(
    ("directives", "cluster"),
    [
        ("", None),
        ("#SBATCH --clusters=c1", "c1"),
        ("#SBATCH '--clusters=c1,c2'", "c1,c2"),
        ("#SBATCH --clusters=c0\n#SBATCH -Mc1  # a user's own", "c1"),
        ("#SBATCH -M c1", "c1"),
        ("echo --clusters=c1\n# SBATCH --clusters=c1", None),
        ("#SBATCH --cluster-constraint=c1", None),
    ],
)
def test_own_jobs_are_asked_for_at_the_cluster_of_the_script(directives, cluster):
    words = slurm.own(f"#!/bin/bash\n#SBATCH --nodes=2\n{directives}\nexit\n")
    head = ["squeue", "-r", *(["--clusters=" + cluster] if cluster else [])]
    assert words == [*head, "--states=all", "--user=%d" % os.getuid(), "--format=%i|%o"]


def test_a_job_that_was_not_taken():
    err = "sbatch: error: Batch job submission failed: Requested node configuration is not available\n"
    with pytest.raises(Refused, match="Requested node configuration is not available"):
        slurm.parse_submit(1, "", err)
    with pytest.raises(TransferError, match="Unable to contact slurm controller"):
        slurm.parse_submit(1, "", SILENT)
    with pytest.raises(Refused, match="no job id"):
        slurm.parse_submit(0, "", "")


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("RUNNING|0:04|cn[1-2]|None\n", ("RUNNING", "", "0:04", "cn[1-2]", True)),
        (
            "PENDING|0:00||(Nodes required for job are DOWN|x)\n",
            ("PENDING", "(Nodes required for job are DOWN|x)", "0:00", "", True),
        ),
        ("TIMEOUT|1:27|cn[1-2]|TimeLimit\n", ("TIMEOUT", "TimeLimit", "1:27", "cn[1-2]", False)),
        ("COMPLETING|0:04|cn1|None\n", ("COMPLETING", "", "0:04", "cn1", True)),
        ("NEWSTATE\n", ("NEWSTATE", "", "", "", False)),
    ],
)
def test_states(out, expected):
    assert slurm.parse_states(0, "7_3|" + out, "") == {"7_3": expected}


def test_a_job_that_slurm_has_forgotten_has_no_state():
    assert slurm.parse_states(1, "", INVALID) == {}
    assert slurm.parse_states(0, "", "") == {}


def test_munge_is_named():
    err = 'sbatch: error: Munge encode failed: Failed to connect to "/run/munge/munge.socket.2": Connection refused\n'
    with pytest.raises(TransferError, match="munge, by which Slurm knows you, does not answer here") as error:
        slurm.parse_submit(1, "", err)
    assert "another login node" in error.value.hint


def test_a_silent_controller_is_not_a_job_that_is_gone():
    with pytest.raises(TransferError) as error:
        slurm.parse_states(1, "", SILENT)
    assert error.value.exit_code == 5


def test_cancel():
    slurm.parse_cancel(0, "", "")
    slurm.parse_cancel(1, "", "scancel: error: Kill job error on job id 9: Invalid job id specified\n")
    with pytest.raises(Refused, match="Access/permission denied"):
        slurm.parse_cancel(1, "", "scancel: error: Kill job error on job id 9: Access/permission denied\n")


def test_an_or_is_not_combined_with_another_constraint():
    asked = JobRequest("hello", "/j", "/j/output.log", 1, 1, 1, "1", 60)
    assert "'--constraint=gpu&nvme'" in slurm.directives(asked._replace(constraints=["gpu", "nvme"]))
    assert "'--constraint=intel|amd'" in slurm.directives(asked._replace(constraints=["intel|amd"]))
    with pytest.raises(Refused, match="cannot combine the constraints"):
        slurm.directives(asked._replace(constraints=["gpu", "intel|amd"]))
