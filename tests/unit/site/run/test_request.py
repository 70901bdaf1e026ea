"""What follows from a request, a job and plans alone: the same at the site and on the laptop."""

import pytest

from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle import limits
from deployer.contract.rules import verdict
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.site.plan import Limits
from deployer.site.run.prepare.request import RunRequest, foresee, settle
from deployer.site.storage import site_plans
from tests import running as made

REQUEST = RunRequest("hello", "train")
PLAN = made.PLAN._replace(limits=Limits(max_nodes=1, max_time="00:20:00"))


def settled(plan=PLAN, **options):
    return settle(site_plans.of([plan], []), "hello", made.JOBS, REQUEST._replace(**options), {})


def checked(*codes, accepted=()):
    return verdict.judged([Finding(code, ERROR, "job train", "x", "y") for code in codes], accepted)


def test_options_replace_the_numbers_that_check_has_judged():
    plan = PLAN._replace(checked=checked(*limits.CODES))
    found = settled(plan, nodes=1, time="20m")
    assert (found.job.nodes, found.job.time, found.plan.checked.verdict) == (1, "00:20:00", verdict.RUN)
    found = settled(plan._replace(checked=checked("queue.nodes", "mpi.mixed")), nodes=1, time="20m")
    assert [each.code for each in found.plan.checked.against] == ["mpi.mixed"]


@pytest.mark.parametrize(
    ("numbers", "code"),
    [({"nodes": 2}, "queue.nodes"), ({"time": "00:30:00"}, "queue.time"), ({"threads": 5}, "job.layout")],
)
def test_a_job_with_options_is_refused_with_the_code_of_check(numbers, code):
    fitting = {"nodes": 1, "time": "00:01:00", "threads": 1}
    with pytest.raises(Refused, match=rf"\({code}\)$"):
        settled(**{**fitting, **numbers})
    job = made.JOBS[0]._replace(**{**fitting, **numbers})
    assert [each.code for each in limits.of_job(PLAN, job)] == [code]


def test_limits_that_may_have_changed_can_be_forced_or_accepted_but_not_the_size_of_a_node():
    assert settled(force=True).asked.queue == "batch"
    assert settled(PLAN._replace(checked=checked(accepted=["queue.nodes", "queue.time"]))).asked.queue == "batch"
    with pytest.raises(Refused, match=r"\(job.layout\)"):
        settled(force=True, threads=5)
    with pytest.raises(Refused, match=r"\(job.memory\)"):
        settled(force=True, memory_mb=9000)


def test_what_needs_the_site_is_not_foreseen():
    plan = PLAN._replace(limits=Limits(account=True), account="$GROUP", workspace="$SCRATCH/x")
    found = site_plans.of([plan], [])
    foresee(found, "hello", made.JOBS, REQUEST)
    foresee(site_plans.of([plan._replace(account=None)], []), "hello", made.JOBS, REQUEST)
    with pytest.raises(Refused, match="must name the account"):
        settle(site_plans.of([plan._replace(account=None, workspace="~")], []), "hello", made.JOBS, REQUEST, {})
    with pytest.raises(UsageError, match="hello has no job shrt, perhaps you meant 'short'"):
        foresee(found, "hello", made.JOBS, REQUEST._replace(job="shrt"))
    with pytest.raises(Refused, match="no start option with apptainer"):
        foresee(found, "hello", made.JOBS, REQUEST._replace(runtime="apptainer"))
