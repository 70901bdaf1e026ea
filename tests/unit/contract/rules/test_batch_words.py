"""Remedies in the words of the site's batch system."""

import re

import pytest

from deployer.contract.rules import batch_words, findings
from deployer.site.proof import result
from tests.unit.site.proof.test_result import HOSTS, LAUNCH, after, good, probe

#: The programs and options of Slurm, PBS, Grid Engine and LSF.
PROGRAMS = re.compile(
    r"\b(srun|sbatch|sinfo|squeue|scontrol|scancel|sacct|salloc|qsub|qstat|qdel|qhold|qhost|qconf|pbsnodes|bsub|bjobs"
    r"|bkill|bhosts|bqueues|lshosts)\b|--exclude\b|--cpus-per-task|--cpu-bind|--gres\b"
)
#: Records of a job with the findings whose remedies depend on the batch system.
JOBS = (
    ("hosts.count", good(hosts=HOSTS[:1]), after("hosts")),
    ("hosts.failed", good(hosts=HOSTS[:1]), after("hosts", 1)),
    ("hosts.name", good(hosts=[HOSTS[0], HOSTS[0]._replace(port=1)]), after("hosts")),
    ("runtime.namespaces", good(roots={"cn1": "user namespaces: no space"}), after("root", 1)),
    ("mpi.singletons", good(probes=[probe(0, rank=0, size=1), probe(1, rank=0, size=1)]), after("probe")),
    ("layout.pinning", good(probes=[probe(0), probe(1, cpus="")]), after("probe")),
)


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "gridengine", "lsf", "hosts", "local", "another"])
@pytest.mark.parametrize(("code", "found", "outcome"), JOBS)
def test_the_remedies_of_a_job_are_in_the_words_of_its_batch_system(code, found, outcome, scheduler):
    record = result.assemble(LAUNCH._replace(scheduler=scheduler), found, outcome)
    (remedy,) = {each["remedy"] for each in record["findings"] if each["code"] == code}
    assert bool(PROGRAMS.search(remedy.replace("qsub", "").replace("bsub", ""))) == (scheduler == "slurm")
    assert "{" not in remedy


def test_every_rule_that_depends_on_the_batch_system_is_among_them():
    own = {code for code, rule in findings.RULES.items() if re.search(r"\{(batch\.|capture_node)", rule.remedy)}
    assert own == {code for code, _, _ in JOBS} | {"mpi.alone", "layout.overlap"}
    assert batch_words.words("pbs").on_node % "x" == "x, in a job (qsub)"
    assert batch_words.words(None) == batch_words.words("unknown")
