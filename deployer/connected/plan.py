"""plan: a site profile and a bundle resolved to exact binds, environment and variants."""

import hashlib

from deployer.connected.profile import Mpi, Partition, Profile
from deployer.contract import records
from deployer.contract.errors import UsageError
from deployer.contract.plan import Bind, HostMpi, NodeShape, Plan, Variant

#: What the job's processes may see of the host's environment; all else is taken away. Slurm's and PMI's variables are
#: how a rank learns who it is.
_PASSED = ("SLURM_*", "SLURMD_*", "PMI_*", "PMIX_*", "PMI2_*")


def make_plan(profile: Profile, bundle: str, partition: str | None = None) -> Plan:
    """Return the plan for ``bundle`` (NAME:VERSION) on a partition, the profile's first where none is named."""
    name = partition or next(iter(profile.partitions))
    if name not in profile.partitions:
        raise UsageError(f"site {profile.name} has no partition {name!r}", f"it has: {', '.join(profile.partitions)}")
    chosen = profile.partitions[name]
    mpi = profile.mpi[chosen.mpi] if chosen.mpi else None
    environment = {"FI_PROVIDER": profile.fabric.provider}
    if mpi:
        environment |= _environment(mpi)
    return Plan(
        site=profile.name,
        partition=name,
        profile_digest=digest(profile),
        bundle=bundle,
        workspace=profile.workspace,
        python=profile.login.python,
        node=NodeShape(**chosen.node.model_dump()),
        scheduler=profile.scheduler.kind,
        directives=chosen.directives,
        modules=[mpi.module] if mpi and mpi.module else [],
        mpi=_host_mpi(mpi) if mpi else None,
        binds=[Bind(mpi.prefix, mpi.prefix, "the site's MPI, on the same path")] if mpi else [],
        environment=environment,
        pass_environment=list(_PASSED),
        variants=_variants(profile, chosen),
    )


def digest(profile: Profile) -> str:
    """Return the digest of a profile's facts, however its YAML is laid out."""
    facts = records.dumps(profile.model_dump(mode="json"))
    return "sha256:" + hashlib.sha256(facts).hexdigest()


def _host_mpi(mpi: Mpi) -> HostMpi:
    return HostMpi(mpi.family, mpi.version, mpi.prefix, f"{mpi.prefix}/{mpi.library}", mpi.says)


def _environment(mpi: Mpi) -> dict[str, str]:
    """Return what makes the loader find the site's MPI before the image's, whole: a half-bound tree is worse than none.

    Without LD_LIBRARY_PATH, Intel MPI dlopens the container's libfabric (seen in the lab).
    """
    folders = [f"{mpi.prefix}/{folder}" for folder in mpi.libraries]
    environment = {"LD_LIBRARY_PATH": ":".join(folders)}
    if mpi.family == "intel":
        environment["I_MPI_ROOT"] = mpi.prefix
    if mpi.providers:
        environment["FI_PROVIDER_PATH"] = f"{mpi.prefix}/{mpi.providers}"
    return environment


def _variants(profile: Profile, partition: Partition) -> list[Variant]:
    """Return the ways to run, best first, of what the site has and its policy allows."""
    return [
        Variant(f"{runtime}-folder", runtime, "folder", partition.launcher, partition.pmi, None)
        for runtime in profile.policy.runtimes
        if runtime in profile.runtimes
    ]
