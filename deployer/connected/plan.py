"""plan: a site profile and a bundle resolved to exact binds, environment and variants."""

import hashlib

from deployer.connected.profile import Mpi, Partition, Profile, known
from deployer.contract import records
from deployer.contract.plan import Bind, HostMpi, NodeShape, Plan, Variant

#: What the job's processes may see of the host's environment; all else is taken away. Slurm's and PMI's variables are
#: how a rank learns who it is.
_PASSED = ("SLURM_*", "SLURMD_*", "PMI_*", "PMIX_*", "PMI2_*")


def make_plan(profile: Profile, bundle: str, partition: str | None = None) -> Plan:
    """Return the plan for ``bundle`` (NAME:VERSION) on a partition, the profile's first where none is named."""
    name, chosen = profile.partition(partition)
    mpi = profile.mpi[chosen.mpi] if chosen.mpi else None
    environment = {}
    if chosen.fabric and chosen.fabric.provider:
        environment["FI_PROVIDER"] = chosen.fabric.provider
    if mpi:
        environment |= _environment(mpi)
    environment |= chosen.environment
    return Plan(
        site=profile.name,
        partition=name,
        profile_digest=digest(profile),
        bundle=bundle,
        workspace=known(profile.workspace, profile, "workspace"),
        python=profile.login.python,
        node=_node(profile, name, chosen),
        scheduler=known(profile.scheduler, profile, "scheduler").kind,
        directives=chosen.directives,
        modules=_modules(profile, chosen, mpi),
        mpi=_host_mpi(mpi) if mpi else None,
        binds=_binds(mpi) if mpi else [],
        environment=environment,
        pass_environment=list(_PASSED),
        variants=_variants(profile, name, chosen),
    )


def digest(profile: Profile) -> str:
    """Return the digest of a profile's facts, however its YAML is laid out."""
    facts = records.dumps(profile.model_dump(mode="json"))
    return "sha256:" + hashlib.sha256(facts).hexdigest()


def _host_mpi(mpi: Mpi) -> HostMpi:
    return HostMpi(mpi.family, mpi.version, mpi.prefix, mpi.library_path, mpi.says or "", mpi.identity)


def _node(profile: Profile, name: str, partition: Partition) -> NodeShape:
    group = f"partitions.{name}.node"
    node = known(partition.node, profile, group)
    return NodeShape(*(known(getattr(node, each), profile, f"{group}.{each}") for each in NodeShape._fields))


def _modules(profile: Profile, partition: Partition, mpi: Mpi | None) -> list[str]:
    """Return the modules that a job loads: the site's, the partition's, the MPI's, the runtimes'."""
    runtimes = [runtime for name, runtime in partition.runtimes.items() if _allowed(profile, name)]
    named = [mpi.module if mpi else None, *(runtime.module for runtime in runtimes)]
    return list(dict.fromkeys([*profile.modules, *partition.modules, *filter(None, named)]))


def _binds(mpi: Mpi) -> list[Bind]:
    found = [Bind(mpi.prefix, mpi.prefix, "the site's MPI, on the same path")]
    return found + [Bind(path, path, "what the site's MPI needs, on the same path") for path in mpi.binds]


def _allowed(profile: Profile, runtime: str) -> bool:
    return runtime in known(profile.policy, profile, "policy.runtimes").runtimes


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
    return environment | mpi.environment


def _variants(profile: Profile, name: str, partition: Partition) -> list[Variant]:
    """Return the ways to run, best first, of what the site has and its policy allows."""
    policy = known(profile.policy, profile, "policy.runtimes")
    pmi = known(partition.pmi, profile, f"partitions.{name}.pmi")
    return [
        Variant(f"{runtime}-folder", runtime, "folder", partition.launcher, pmi, None)
        for runtime in policy.runtimes
        if runtime in partition.runtimes
    ]
