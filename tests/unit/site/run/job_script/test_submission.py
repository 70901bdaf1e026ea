"""What the batch system is asked for, and what is refused before it is asked."""

import shlex

import pytest

from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle import limits
from deployer.contract.site.plan import Batch, GpuRequest, Limits
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import JobRequest
from deployer.site.run.job_script.submission import SubmissionOptions, ask
from tests import running as made

#: An island of SuperMUC-NG.
LIMITED = made.PLAN._replace(limits=Limits(max_nodes=792, max_time="2-00:00:00", account=True))


def words(plan=LIMITED, nodes=768, time="12:00:00", environment=None, **options):
    asked = ask(plan, SubmissionOptions(**options), nodes, time, environment or {})
    scheduler = SCHEDULERS[plan.scheduler]
    request = JobRequest("hello", "/j", "/j/output.log", nodes, 1, 1, time, 60)
    own = len(scheduler.directives(request))
    lines = scheduler.directives(request._replace(**asked._asdict()))[own:]
    return [word for line in lines for word in shlex.split(line)]


def test_what_the_user_gives_stands_in_the_script():
    found = words(
        account="pn12ab",
        constraint="work&scratch",
        reservation="r1",
        directives=["--exclusive", "--mail-type=END", "-x=cn7"],
        plan=LIMITED._replace(directives=["--ear=off"]),
    )
    assert found == [
        "--partition=batch",
        "--account=pn12ab",
        "--constraint=work&scratch",
        "--reservation=r1",
        "--ear=off",
        "--exclusive",
        "--mail-type=END",
        "-x=cn7",
    ]


def test_the_account_comes_from_the_option_the_plan_or_the_environment_in_this_order():
    plan = LIMITED._replace(account="plans")
    environment = {"SBATCH_ACCOUNT": "shells", "SLURM_ACCOUNT": "other"}
    assert "--account=mine" in words(plan, account="mine", environment=environment)
    assert "--account=plans" in words(plan, environment=environment)
    assert "--account=shells" in words(environment=environment)
    assert "--account=other" in words(environment={"SLURM_ACCOUNT": "other"})
    assert words(LIMITED._replace(directives=["--account=site"])) == ["--partition=batch", "--account=site"]


def test_no_account_where_the_site_asks_for_one_is_refused():
    with pytest.raises(Refused, match="jobs on lab must name the account") as error:
        words()
    assert "--account NAME" in error.value.hint
    assert words(made.PLAN) == ["--partition=batch"]  # a site that does not ask


@pytest.mark.parametrize(
    ("nodes", "time", "message"),
    [
        (793, "12:00:00", r"793 nodes are asked for, but a job in batch of lab may have 792 \(queue.nodes\)"),
        (1, "2-00:00:01", r"2-00:00:01 is asked for, but a job in batch of lab may have 2-00:00:00 \(queue.time\)"),
    ],
)
def test_more_than_the_partition_gives_is_refused_with_the_arithmetic(nodes, time, message):
    with pytest.raises(Refused, match=message) as error:
        words(nodes=nodes, time=time, account="a")
    assert ("capture the site again if it has grown" in error.value.hint) == (nodes == 793)
    assert words(nodes=792, time="48:00:00", account="a")
    # Of another partition the plan knows nothing.
    assert words(nodes=nodes, time=time, account="a", partition="large")[0] == "--partition=large"


def test_without_a_batch_system_a_job_has_one_node():
    local = made.PLAN._replace(scheduler="local")
    with pytest.raises(Refused, match="lab has no batch system: a job has one node, not 2"):
        words(local, nodes=2)
    assert ask(local, SubmissionOptions(), 1, "01:00:00", {}).queue == "batch"


@pytest.mark.parametrize(
    "word", ["exclusive", "--", "", "--nodes=9", "-N9", "--time=1", "-t=1", "--wrap=x", "--x\n#SBATCH y", "--qos high"]
)
def test_words_that_would_contradict_the_script_or_are_none(word):
    with pytest.raises(UsageError):
        words(account="a", directives=[word])


def test_the_plans_requests_stand_in_the_script():
    batch = Batch("normal", "long", "one", "gpu", "-gpu", (), GpuRequest("gres", 4, "v100"))
    plan = LIMITED._replace(batch=batch, account="pawsey1")
    assert words(plan) == [
        "--clusters=one",
        "--partition=normal",
        "--account=pawsey1-gpu",
        "--qos=long",
        "--constraint=gpu",
        "--gres=gpu:v100:4",
    ]
    assert "--constraint=gpu&nvme" in words(plan, constraint="nvme")  # both hold
    assert "--account=mine-gpu" in words(plan, account="mine-gpu")
    assert "--gpus-per-node=4" in words(plan._replace(batch=Batch(gpus=GpuRequest("gpus-per-node", 4))))
    assert words(made.PLAN._replace(batch=Batch(queue=""))) == []  # the batch system's default


@pytest.mark.parametrize("word", ["--gres=gpu:1", "--gpus=2", "-G1", "--gpus-per-node=1"])
def test_the_users_own_request_for_gpus_counts(word):
    plan = LIMITED._replace(account="a", batch=Batch(gpus=GpuRequest("gres", 4)))
    assert [each for each in words(plan, directives=[word]) if "G" in each or "g" in each] == [word]


@pytest.mark.parametrize(
    ("kind", "word", "model", "line"),
    [
        ("slurm", "gres", "v100", "--gres=gpu:v100:2"),
        ("slurm", "gpus-per-node", "v100", "--gpus-per-node=v100:2"),
        ("slurm", "gpus-per-node", None, "--gpus-per-node=2"),
        ("pbs", "ngpus", None, "-l select=1:ncpus=2:mpiprocs=2:ngpus=2"),
        ("lsf", "gpu", "TeslaV100", '-gpu "num=2/host:gmodel=TeslaV100"'),
        ("gridengine", "cuda", None, "-l cuda=1"),
    ],
)
def test_gpus_per_node_in_the_words_of_each_batch_system(kind, word, model, line):
    plan = made.PLAN._replace(scheduler=kind, batch=Batch(gpus=GpuRequest(word, 4, model), parallel_environment="mpi"))
    if kind in ("slurm", "pbs", "lsf"):
        plan = plan._replace(batch=plan.batch._replace(parallel_environment=None))

    def lines(**options):
        asked = ask(plan, SubmissionOptions(**options), 1, "01:00:00", {})
        return SCHEDULERS[kind].directives(
            asked._replace(name="hello", folder="/j", log="/j/output.log", ranks_per_node=2, time="1", seconds=60)
        )

    assert line in lines(gpus=2)
    assert lines(gpus=4) == lines()
    assert not any(word + "=" in each or "gpu" in each for each in lines(gpus=0))


@pytest.mark.parametrize(
    ("gpus", "options", "message"),
    [
        (GpuRequest("gres", 4), {"gpus": 5}, "5 GPUs per node are asked for, but a node of batch of lab has 4"),
        (GpuRequest("gres", 4), {"gpus": -1}, "--gpus -1: not a number of GPUs"),
        (GpuRequest("gres", 4), {"gpus": 1, "directives": ["--gres=gpu:2"]}, "--gres=gpu:2 requests GPUs already"),
        (None, {"gpus": 1}, "the plan of batch of lab does not know how jobs request GPUs"),
    ],
)
def test_gpus_that_a_node_does_not_have_or_that_two_options_request(gpus, options, message):
    plan = made.PLAN._replace(batch=Batch(gpus=gpus))
    with pytest.raises((Refused, UsageError), match=message):
        ask(plan, SubmissionOptions(**options), 1, "01:00:00", {})


def test_a_directive_with_the_sites_own_word_for_gpus_counts():
    batch = Batch(gpus=GpuRequest("cuda", 4), parallel_environment="mpi")
    plan = made.PLAN._replace(scheduler="gridengine", batch=batch)
    assert ask(plan, SubmissionOptions(directives=["-l cuda=1"]), 1, "01:00:00", {}).gpus is None
    assert ask(plan, SubmissionOptions(directives=["-l barracuda=1"]), 1, "01:00:00", {}).gpus == batch.gpus


def test_the_limits_are_those_of_the_queue():
    plan = LIMITED._replace(account="a", batch=Batch(queue="normal"))
    with pytest.raises(Refused, match="may have 792"):
        words(plan, nodes=793)
    assert words(plan, nodes=793, partition="other")


def test_a_limit_that_was_forced_or_accepted_is_left_to_the_batch_system():
    for waived in (limits.CODES, ["queue.nodes", "queue.time"]):
        found = ask(LIMITED, SubmissionOptions(account="a"), 900, "9-00:00:00", {}, waived=waived)
        assert found.account == "a"
    with pytest.raises(Refused, match=r"\(queue.time\)"):
        ask(LIMITED, SubmissionOptions(account="a"), 900, "9-00:00:00", {}, waived=["queue.nodes"])
    # A laptop does not know the account that the user's environment has at the site.
    assert ask(LIMITED, SubmissionOptions(), 1, "00:10:00", None).account is None


def test_nodes_with_different_numbers_of_gpus_give_what_the_ranks_need():
    plan = made.PLAN._replace(batch=Batch(gpus=GpuRequest("gres", 0)))
    cases = ((None, None), (None, 4), (2, 4), (0, None), (None, 0))
    asked = [ask(plan, SubmissionOptions(gpus=gpus), 1, "01:00:00", {}, needed).gpus for gpus, needed in cases]
    assert asked == [None, GpuRequest("gres", 4), GpuRequest("gres", 2), None, None]


@pytest.mark.parametrize(
    ("kind", "line"), [("slurm", "--exclusive"), ("pbs", "-l place=scatter:excl"), ("lsf", "-x"), ("gridengine", None)]
)
def test_whole_nodes_in_the_words_of_each_batch_system(kind, line):
    plan = made.PLAN._replace(scheduler=kind, batch=Batch(exclusive=True))
    if line is None:
        with pytest.raises(Refused, match="Grid Engine cannot request what the plan of lab says: exclusive"):
            ask(plan, SubmissionOptions(), 1, "01:00:00", {})
        return
    asked = ask(plan, SubmissionOptions(), 1, "01:00:00", {})
    request = asked._replace(name="hello", folder="/j", log="/j/output.log", time="1", seconds=60)
    assert line in SCHEDULERS[kind].directives(request)
    assert line not in SCHEDULERS[kind].directives(request._replace(exclusive=False))
