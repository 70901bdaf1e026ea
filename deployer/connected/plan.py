"""plan: a site profile and a bundle resolved to exact binds, environment and variants."""

import hashlib
from collections.abc import Sequence

from deployer.connected.profile import Mpi, Partition, Profile
from deployer.contract import records
from deployer.contract.errors import Refused, UsageError
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
    Raises Refused where the site's MPI is of none of them, UsageError where the site has no such partition.
    """
    name = partition or next(iter(profile.partitions))
    if name not in profile.partitions:
        raise UsageError(f"site {profile.name} has no partition {name!r}", f"it has: {', '.join(profile.partitions)}")
    chosen = profile.partitions[name]
    mpi = profile.mpi[chosen.mpi] if chosen.mpi else None
    host_mpi = _host_mpi(mpi) if mpi else None
    if host_mpi and abis and host_mpi.abi not in abis:
        raise Refused(
            f"{bundle} cannot run on {profile.name}: the site's MPI, {host_mpi.says}, is of the family {host_mpi.abi} "
            f"({SONAMES[host_mpi.abi]}), and the bundle has programs for {', '.join(abis)} only",
            f"add {host_mpi.abi} to mpi in the definition, build and pack it again",
        )
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
        mpi=host_mpi,
        binds=[Bind(mpi.prefix, mpi.prefix, "the site's MPI, on the same path")] if mpi else [],
        environment=environment,
        pass_environment=[*_PASSED, *(_PASSED_OPENMPI if host_mpi and host_mpi.abi == OPENMPI else ())],
        variants=_variants(profile, chosen, host_mpi),
        abi=host_mpi.abi if host_mpi else next(iter(abis), None),
    )


def digest(profile: Profile) -> str:
    """Return the digest of a profile's facts, however its YAML is laid out."""
    facts = records.dumps(profile.model_dump(mode="json"))
    return "sha256:" + hashlib.sha256(facts).hexdigest()


def _host_mpi(mpi: Mpi) -> HostMpi:
    library = mpi.library or f"lib/{SONAMES[ABIS[mpi.family]]}"
    return HostMpi(mpi.family, mpi.version, mpi.prefix, f"{mpi.prefix}/{library}", mpi.says)


def _environment(mpi: Mpi) -> dict[str, str]:
    """Return what makes the loader find the site's MPI before the image's, whole: a half-bound tree is worse than none.

    Without LD_LIBRARY_PATH, Intel MPI dlopens the container's libfabric (seen in the lab).
    """
    folders = [f"{mpi.prefix}/{folder}" for folder in mpi.libraries]
    environment = {"LD_LIBRARY_PATH": ":".join(folders), "MPI4PY_MPIABI": _MPI4PY[ABIS[mpi.family]]}
    if mpi.family == "intel":
        environment["I_MPI_ROOT"] = mpi.prefix
    if mpi.family == "openmpi":
        environment["OPAL_PREFIX"] = mpi.prefix
        # The launcher's PMIx offers its data in files of the host and munge's socket as well; neither is in the
        # container, where the library would warn of each.
        environment |= {"PMIX_MCA_gds": "hash", "PMIX_MCA_psec": "native"}
    if mpi.providers:
        environment["FI_PROVIDER_PATH"] = f"{mpi.prefix}/{mpi.providers}"
    return environment


def _variants(profile: Profile, partition: Partition, mpi: HostMpi | None) -> list[Variant]:
    """Return the ways to run, best first, of what the site has and its policy allows."""
    # Open MPI's shared memory copies from process to process, which the kernel allows within one user namespace only.
    join = mpi is not None and mpi.abi == OPENMPI
    return [
        Variant(f"{runtime}-folder", runtime, "folder", partition.launcher, partition.pmi, None, join)
        for runtime in profile.policy.runtimes
        if runtime in profile.runtimes
    ]
