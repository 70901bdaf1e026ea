"""One table of codes: each has a severity, a message that its values fill, and a remedy."""

import re

import pytest

from deployer.contract.base import records
from deployer.contract.base.json_records import Fields
from deployer.contract.rules import findings


@pytest.mark.parametrize("code", sorted(findings.RULES))
def test_each_rule_is_whole(code):
    rule = findings.RULES[code]
    assert re.match(r"^[a-z]+(\.[a-z-]+)+$", code)
    assert rule.severity in (findings.ERROR, findings.WARNING, findings.NOTE)
    assert rule.remedy
    names = re.findall(r"\{(\w+)", rule.message + rule.remedy)
    values = dict.fromkeys([name for name in names if name not in ("batch", "capture_node")], 1)
    made = findings.finding(code, "rank 0", **values)
    assert "{" not in made.message
    assert made == records.read(findings.Finding, Fields(made.record(), "a finding"))


def test_errors_are_told_from_warnings():
    bad = findings.finding("mpi.world-size", "job", size="1 rank", asked=2)
    mild = findings.finding("probe.skipped", "job")
    assert findings.errors([mild, bad]) == [bad]
    assert str(bad) == "error mpi.world-size: job: MPI_COMM_WORLD has 1 rank, but the job requested 2"


def test_a_finding_names_its_job_once():
    wrong = findings.finding("mpi.alone", "/usr/bin/x", reason="none")._replace(job="train")
    assert str(wrong).startswith("error mpi.alone: /usr/bin/x (job train): ")
    assert str(wrong._replace(subject="job train")).startswith("error mpi.alone: job train: ")
    assert records.read(findings.Finding, Fields(wrong.record(), "a finding")) == wrong
    assert "job" not in wrong._replace(job="").record()
