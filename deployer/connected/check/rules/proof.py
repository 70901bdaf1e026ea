"""Rules for proofs: what a job will not prove about its ranks."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.contract.rules.findings import NOTE, Finding
from deployer.contract.site.plan import NATIVE


def outside(case: Case) -> Iterator[Finding]:
    """proof.outside: the image has no Python. This is a note: jobs run, but less is proven about them."""
    contained = any(option.runtime != NATIVE for option in case.plan.start_options)
    if case.manifest.image.python is None and contained:
        text = (
            "the image has no Python: there is no proof before the payload, whose ranks are watched from outside the "
            "container. They show their MPI library, hosts and CPUs, and what the launcher says of the world's size; "
            "network provider, thread level and a first MPI_Allreduce are not proven"
        )
        remedy = "add python3 to the image for a full proof before the payload"
        yield Finding("proof.outside", NOTE, case.plan.bundle, text, remedy)
