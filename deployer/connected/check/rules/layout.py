"""Rule for the layout and limits of jobs: that the partition can satisfy them."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.contract.bundle import limits
from deployer.contract.rules.findings import Finding


def numbers(case: Case) -> Iterator[Finding]:
    """job.layout, job.memory, queue.nodes, queue.time: a job requests more than its partition or its nodes have."""
    for job in case.manifest.jobs:
        yield from limits.of_job(case.plan, job)
