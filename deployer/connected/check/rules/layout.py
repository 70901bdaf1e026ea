"""Rule of the layout of jobs: that the memory that they ask for is in a node."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.contract.findings import ERROR, WARNING, Finding


def memory(case: Case) -> Iterator[Finding]:
    """job.memory: the ranks of a job on one node need more memory than a job may use there."""
    limit = case.plan.node.memory_mb
    for job in case.manifest.jobs:
        if job.memory is None or job.memory * job.ranks_per_node <= limit:
            continue
        fitting = limit // job.memory
        needs = f"{job.ranks_per_node} x {job.memory} MiB = {job.ranks_per_node * job.memory} MiB"
        yield Finding(
            "job.memory",
            WARNING if fitting else ERROR,
            f"job {job.name}",
            f"its ranks on a node need {needs}, but a job may use {limit} MiB per node of {case.plan.partition}",
            f"start it with --ranks-per-node {fitting} at most"
            if fitting
            else "correct `memory` of the job, which is MiB per rank, or use a partition with larger nodes",
        )
