"""plan: a site profile and a bundle resolved to exact binds, environment and variants."""

import hashlib
from collections.abc import Sequence

from deployer.connected.profile import Mpi, Partition, Profile, known
from deployer.contract import records
from deployer.contract.errors import Refused
from deployer.contract.plan import ABIS, MPICH_ABI, OPENMPI, SONAMES, Bind, HostMpi, NodeShape, Plan, Variant

#: What the job's processes may see of the host's environment; all else is taken away. Slurm's and PMI's variables are
#: how a rank learns who it is.
_PASSED = ("SLURM_*", "SLURMD_*", "PMI_*", "PMIX_*", "PMI2_*")
#: Open MPI is set up by the site in variables that its module sets, and its launcher speaks by them.
_PASSED_OPENMPI = ("OMPI_*", "PRTE_*")

#: What mpi4py calls the families. Its wheel holds both, and would take the one whose library it finds first.
_MPI4PY = {MPICH_ABI: "mpich", OPENMPI: "openmpi"}


def make_plan(profile: Profile, bundle: str, abis: Sequence[str] = (), partition: str | None = None) -> Plan:
    """Return the plan for ``bundle`` (NAME:VERSION) on a partition, the profile's first where none is named.

    ``abis`` are the MPI families that the bundle's programs run on, the image's own first; empty where nobody knows.
    Raises Refused where the site's MPI is of none of them, UsageError where the site has no such partition, Unknown
    where the profile does not say what a plan cannot do without.
    """
    name, chosen = profile.partition(partition)
    mpi = profile.mpi[chosen.mpi] if chosen.mpi else None
    host_mpi = _host_mpi(mpi) if mpi else None
    if host_mpi and abis and host_mpi.abi not in abis:
        raise Refused(
            f"{bundle} cannot run on {profile.name}: the site's MPI, {host_mpi.says or host_mpi.family}, is of the "
            f"family {host_mpi.abi} ({SONAMES.get(host_mpi.abi, 'unknown')}), and the bundle has programs for "
            f"{', '.join(abis)} only",
            f"add {host_mpi.abi} to mpi in the definition, build and pack it again",
        )
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
        mpi=host_mpi,
        binds=_binds(mpi) if mpi else [],
        environment=environment,
        pass_environment=[*_PASSED, *(_PASSED_OPENMPI if host_mpi and host_mpi.abi == OPENMPI else ())],
        variants=_variants(profile, name, chosen, host_mpi),
        abi=host_mpi.abi if host_mpi else next(iter(abis), None),
    )


def digest(profile: Profile) -> str:
    """Return the digest of a profile's facts, however its YAML is laid out."""
    facts = records.dumps(profile.model_dump(mode="json"))
    return "sha256:" + hashlib.sha256(facts).hexdigest()


def _host_mpi(mpi: Mpi) -> HostMpi:
    return HostMpi(mpi.family, mpi.version or "", mpi.prefix, mpi.library_path, mpi.says or "", mpi.identity)


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
    """Return the site's MPI and what it needs, on their own paths; a folder that holds the prefix is enough."""
    needed = [Bind(path, path, "what the site's MPI needs, on the same path") for path in mpi.binds]
    if any(f"{mpi.prefix}/".startswith(f"{path}/") for path in mpi.binds):
        return needed
    return [Bind(mpi.prefix, mpi.prefix, "the site's MPI, on the same path"), *needed]


def _allowed(profile: Profile, runtime: str) -> bool:
    return runtime in known(profile.policy, profile, "policy.runtimes").runtimes


def _environment(mpi: Mpi) -> dict[str, str]:
    """Return what makes the loader find the site's MPI before the image's, whole: a half-bound tree is worse than none.

    Without LD_LIBRARY_PATH, Intel MPI dlopens the container's libfabric (seen in the lab).
    """
    folders = [f"{mpi.prefix}/{folder}" for folder in mpi.libraries]
    environment = {"LD_LIBRARY_PATH": ":".join(folders)}
    if mpi.family in ABIS:
        environment["MPI4PY_MPIABI"] = _MPI4PY[ABIS[mpi.family]]
    if mpi.family == "intel":
        environment["I_MPI_ROOT"] = mpi.prefix
    if mpi.family == "openmpi":
        environment["OPAL_PREFIX"] = mpi.prefix
        # The launcher's PMIx offers its data in files of the host and munge's socket as well; neither is in the
        # container, where the library would warn of each.
        environment |= {"PMIX_MCA_gds": "hash", "PMIX_MCA_psec": "native"}
    if mpi.providers:
        environment["FI_PROVIDER_PATH"] = f"{mpi.prefix}/{mpi.providers}"
    return environment | mpi.environment


def _variants(profile: Profile, name: str, partition: Partition, mpi: HostMpi | None) -> list[Variant]:
    """Return the ways to run, best first, of what the site has and its policy allows."""
    policy = known(profile.policy, profile, "policy.runtimes")
    pmi = known(partition.pmi, profile, f"partitions.{name}.pmi")
    # Open MPI's shared memory copies from process to process, which the kernel allows within one user namespace only.
    join = mpi is not None and mpi.abi == OPENMPI
    return [
        Variant(f"{runtime}-folder", runtime, "folder", partition.launcher, pmi, None, join)
        for runtime in policy.runtimes
        if runtime in partition.runtimes
    ]
