"""The summary of a profile: what it describes, how old it is, and what only a capture of the site can add."""

import datetime as dt
from collections.abc import Iterator
from typing import NamedTuple

from deployer.connected.site_profile.model import Partition, Profile, age
from deployer.connected.site_profile.plan import gpu_word
from deployer.contract.base.text import counted

_UNKNOWN = "unknown"


class Summary(NamedTuple):
    """The summary of a profile.

    Attributes:
        batch: the batch system.
        runtimes: the runtimes that the policy allows.
        mpi: the MPIs of the partitions.
        kind: captured, document, or unverified: the origin of most facts.
        days: the age in days of the oldest facts with a date, None if none has one.
    """

    batch: str
    runtimes: str
    mpi: str
    kind: str
    days: int | None

    def __str__(self) -> str:
        kind = {"document": "documented"}.get(self.kind, self.kind)
        old = "no date" if self.days is None else f"{counted(self.days, 'day')} old"
        return f"{self.batch}; {self.runtimes}; {self.mpi}; {kind}, {old}"


def summary(profile: Profile, today: dt.date) -> Summary:
    """Return the summary of a profile."""
    scheduler, policy = profile.scheduler, profile.policy
    used = [name for name in profile.partitions for name in profile.partition(name)[1].mpi]
    families = [f"{profile.mpi[name].family} {profile.mpi[name].version or ''}".strip() for name in used]
    days = [each.days for each in age(profile, today) if each.days is not None]
    return Summary(
        " ".join(filter(None, [scheduler.kind, scheduler.version])) if scheduler else "batch system " + _UNKNOWN,
        ", ".join(policy.runtimes) if policy else "runtimes " + _UNKNOWN,
        ", ".join(dict.fromkeys(families)) or "MPI of the image",
        profile.source.kind,
        max(days, default=None),
    )


def only_captured(profile: Profile) -> list[str]:
    """Return the missing facts of a profile that a capture of the site can find."""
    scheduler = profile.scheduler
    pmi = ["PMI types of srun"] if scheduler and scheduler.kind == "slurm" and not scheduler.pmi else []
    own = {name: profile.partition(name)[1] for name in profile.partitions}
    facts = (f"partitions.{name}: {fact}" for name, each in own.items() for fact in _of_partition(profile, each))
    return list(dict.fromkeys([*pmi, *facts]))


def _of_partition(profile: Profile, partition: Partition) -> Iterator[str]:
    node = partition.node
    known = {
        "sockets": node and node.sockets,
        "threads per core": node and node.threads_per_core,
        "NUMA domains": node and node.numa_domains,
        "memory for jobs": node and node.memory_mb,
        "instruction sets": node and node.cpu and node.cpu.flags,
        "page size": partition.architecture != "aarch64" or partition.page_size,
        "user namespaces": partition.user_namespaces is not None,
        "glibc": partition.glibc,
        "file systems": partition.filesystems,
        "network devices": partition.fabric and partition.fabric.devices,
        "how jobs request GPUs": profile.scheduler is None or gpu_word(profile.scheduler, partition),
        "version of the GPU driver": not partition.gpus or (partition.driver and partition.driver.version),
    }
    yield from (fact for fact, value in known.items() if not value)
    yield from (f"version of {runtime}" for runtime, own in partition.runtimes.items() if own.version is None)
    yield from (f"libraries of MPI {name}" for name in partition.mpi if not profile.mpi[name].files)
