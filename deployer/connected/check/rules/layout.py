"""Rule of the layout and the limits of jobs: that the partition has what they ask for."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.contract import limits
from deployer.contract.findings import Finding


def numbers(case: Case) -> Iterator[Finding]:
    """job.layout, job.memory, queue.nodes, queue.time: a job asks for more than its partition or its nodes have."""
    for job in case.manifest.jobs:
        yield from limits.of_job(case.plan, job)
