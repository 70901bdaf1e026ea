"""Find requests of a job that its partition cannot satisfy: nodes, time, cores and memory. Pure.

``check`` reports them for each job in a bundle, with the job's own numbers. ``run`` and ``deploy`` check one job, with
the user's options.
"""

from typing import Iterator

from deployer.contract.base.text import counted
from deployer.contract.bundle.job import Job, seconds
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.site import layout
from deployer.contract.site.plan import Plan

#: Kinds of sites without a batch system: a job runs on this machine, or on the hosts that the plan lists.
_LOCAL, _HOSTS = "local", "hosts"
GPUS, NODES, TIME = "gpu.count", "queue.nodes", "queue.time"
#: The codes of findings about a job's own numbers. Options replace these numbers, so ``run`` checks them again.
CODES = (GPUS, layout.CODE, layout.MEMORY, NODES, TIME)


def of_job(plan: Plan, job: Job) -> Iterator[Finding]:
    """Yield findings against a job with its own numbers under a plan."""
    shape = layout.objection(job.ranks_per_node, job.threads, plan.node, job.memory)
    findings = [*([shape] if shape else []), *of_request(plan, job.nodes, job.time)]
    for finding in findings:
        yield finding._replace(subject=f"job {job.name}", job=job.name)


def of_request(plan: Plan, nodes: int, time: str) -> Iterator[Finding]:
    """Yield findings against a number of nodes and a time limit in the plan's own partition."""
    limits, hosts, named = plan.limits, len(plan.batch.hosts), name(plan)
    if plan.scheduler == _LOCAL and nodes > 1:
        reason = "%s has no batch system: a job has one node, not %d" % (plan.site, nodes)
        yield _finding(NODES, reason, "--nodes 1")
    if plan.scheduler == _HOSTS and nodes > hosts:
        reason = "%d nodes are asked for, but the plan of %s names %s" % (nodes, plan.site, counted(hosts, "host"))
        yield _finding(NODES, reason, "--nodes %d at most, or more partitions.NAME.hosts in the site's profile" % hosts)
    if limits.max_nodes is not None and nodes > limits.max_nodes:
        reason = "%d nodes are asked for, but a job in %s may have %d" % (nodes, named, limits.max_nodes)
        remedy = "--nodes %d at most; capture the site again if it has grown" % limits.max_nodes
        yield _finding(NODES, reason, remedy)
    if limits.max_time is not None and seconds(time) > seconds(limits.max_time):
        reason = f"a time limit of {time} is asked for, but a job in {named} may have {limits.max_time}"
        remedy = f"--time {limits.max_time} at most, and let the job continue from its checkpoint (--again)"
        yield _finding(TIME, reason, remedy)


def name(plan: Plan) -> str:
    """Describe the plan's partition."""
    return "{} of {}".format(plan.partition or "the default partition", plan.site)


def _finding(code: str, reason: str, remedy: str) -> Finding:
    return Finding(code, ERROR, "", reason, remedy)
