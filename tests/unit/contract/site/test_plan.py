from deployer.contract.base import json_records
from deployer.contract.rules import verdict
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.site import plan
from deployer.contract.site.plan import Bind, HostMpi, NodeShape, Plan, StartOption

MPI = HostMpi("intel", "2021.15", "/opt/mpi", "/opt/mpi/lib/libmpi.so.12", "Intel(R) MPI Library 2021.15")
PLAN = Plan(
    site="lab",
    partition="batch",
    bundle="tiny:1.0",
    workspace="~/deployer",
    python=["python3"],
    node=NodeShape(1, 1, 1, 4000),
    scheduler="slurm",
    directives=["--exclusive"],
    modules=["intel-mpi"],
    mpi=MPI,
    binds=[Bind("/opt/mpi", "/opt/mpi", "MPI")],
    environment={"A": "b"},
    pass_environment=["SLURM_*"],
    start_options=[StartOption("charliecloud-folder", "charliecloud", "folder", "srun", "pmi2", None)],
)


def test_a_plan_is_read_as_it_was_written():
    assert plan.read(json_records.pretty(PLAN.record()).encode(), "it") == PLAN


def test_a_plan_without_host_mpi():
    bare = PLAN._replace(mpi=None)
    assert plan.read(json_records.dumps(bare.record()), "it") == bare


def test_the_abi_of_the_image_may_be_unknown():
    named = PLAN._replace(abi="openmpi")
    assert plan.read(json_records.dumps(named.record()), "it") == named
    assert plan.read(json_records.dumps(PLAN.record()), "it").abi is None


def test_the_verdict_travels():
    found = Finding("pmi.unmet", ERROR, "charliecloud-folder", "they do not meet", "set pmi")
    judged = verdict.judged([found, Finding("a.b", verdict.MISSING_FACTS, "x", "y", "z")])
    assert (judged.verdict, judged.against) == (verdict.REFUSE, [found])
    checked = PLAN._replace(checked=judged)
    assert plan.read(json_records.dumps(checked.record()), "it") == checked


def test_the_verdict_on_a_job_is_without_the_findings_of_others():
    site = Finding("a.b", verdict.MISSING_FACTS, "x", "y", "z")
    wrong = Finding("link.missing", ERROR, "/usr/bin/x", "it needs libx.so.1", "add it", "train")
    judged = verdict.judged([wrong, site], ["c.d"])._replace(deployer="1.0")
    assert (judged.verdict, judged.of_job("train")) == (verdict.REFUSE, judged)
    other = judged.of_job("predict")
    assert (other.verdict, other.findings, other.accepted, other.deployer) == ("UNKNOWN", [site], ["c.d"], "1.0")


def test_what_was_accepted_is_a_warning():
    found = Finding("pmi.unmet", ERROR, "charliecloud-folder", "they do not meet", "set pmi")
    accepted = verdict.judged([found], ["pmi.unmet", "pmi.unmet"])
    assert (accepted.verdict, accepted.accepted, accepted.against) == (verdict.WARN, ["pmi.unmet"], [])


def test_what_ranks_run_with_is_named():
    assert PLAN.way == "with Intel(R) MPI Library 2021.15, srun (pmi2), charliecloud"
    more = [
        *PLAN.start_options,
        StartOption("u", "udocker", "folder", "mpirun", "", None),
        StartOption("n", "native", *["x"] * 3, None),
    ]
    silent = MPI._replace(says="")
    assert PLAN._replace(start_options=more, mpi=silent).way == (
        "with intel 2021.15, srun (pmi2) or mpirun, charliecloud or udocker"
    )
    assert PLAN._replace(mpi=None).way.startswith("with the image's own MPI, srun")
