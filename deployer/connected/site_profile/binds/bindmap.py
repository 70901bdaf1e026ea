"""The bind map of a partition, combined from all topics for a plan."""

from collections.abc import Mapping
from typing import NamedTuple

from deployer.connected.site_profile.binds import collectives, fabric, gpu, installation, packaged, system
from deployer.connected.site_profile.binds.system import CapturedHost
from deployer.connected.site_profile.profile import Fabric, Mpi, Partition, Profile
from deployer.contract.rules.hostfiles import FILE, LIBRARIES, HostFile
from deployer.contract.site.plan import Bind


class BindMap(NamedTuple):
    """The host files that a job sees.

    Attributes:
        binds: binds of folders.
        host: single host files.
        environment: variables with which programs find the files.
        passed: names of host variables to pass to the job.
        identities: the identities of the libraries that come with the MPI, by path.
    """

    binds: list[Bind]
    host: tuple[HostFile, ...]
    environment: dict[str, str]
    passed: tuple[str, ...]
    identities: Mapping[str, str] = {}


def make(profile: Profile, name: str, partition: Partition) -> BindMap:
    """Return the bind map of the partition ``name`` with the first of its MPIs.

    Raises:
        Unknown: facts needed to bind the partition's MPI are missing, or the captured GPU driver has two versions.
    """
    chosen = next(iter(partition.mpi), None)
    mpi = profile.mpi[chosen] if chosen else None
    if mpi and chosen:
        installation.check(chosen, mpi)
    host = system.captured(profile.site_files(name, chosen), mpi.prefix if mpi and not mpi.in_system else "")
    network = partition.fabric or Fabric()
    of_mpi = _of_mpi(host, mpi, network) if mpi else BindMap([], (), {}, ())
    provider = {"FI_PROVIDER": network.provider} if network.provider and not mpi else {}
    of_gpus = _of_gpus(host, partition, network, alone=mpi is None)
    environment = {**of_gpus.environment, **fabric.sockets(network), **of_mpi.environment, **provider}
    environment |= (mpi.environment if mpi else {}) | partition.environment
    single = [*of_mpi.host, *of_gpus.host]
    if mpi:
        single += installation.pmi(host, mpi, environment)
    if mpi and mpi.family == "cray" and partition.gpus:
        single += collectives.gtl(host, partition.gpus.kind, environment)
    first: dict[str, HostFile] = {}
    for item in single:
        first.setdefault(item.name, item)
    binds = [*of_mpi.binds, *of_gpus.binds]
    return of_mpi._replace(binds=binds, host=tuple(first.values()), environment=environment, passed=of_gpus.passed)


def _of_gpus(host: CapturedHost, partition: Partition, network: Fabric, alone: bool) -> BindMap:
    """Return the bind map for programs on GPUs; with the fabric's libraries, if no MPI brings them (``alone``)."""
    if partition.gpus is None:
        return BindMap([], (), {}, ())
    driver, parts = partition.driver, fabric.Parts([], [], [])
    own = gpu.libraries(host, driver) if driver else []
    between = collectives.libraries(network, partition.gpus.kind)
    if between and alone:
        parts = fabric.parts(host, network)
    files = [*own, *between, *parts.host]
    needed = system.needs(host, [*parts.roots, *(item.source for item in files if item.kind == FILE)])
    files += system.libraries(needed, "the libraries for GPUs need it")
    found = {**gpu.environment(network), **collectives.environment(host, network, between), **fabric.providers(parts)}
    if files:
        found["LD_LIBRARY_PATH"] = LIBRARIES
    return BindMap(parts.binds, tuple(files), found, gpu.passed(partition.gpus))


def _of_mpi(host: CapturedHost, mpi: Mpi, network: Fabric) -> BindMap:
    parts = fabric.parts(host, network)
    core = system.tree_needs(host, mpi.library_path)
    plugins = fabric.fitting(host, (path for path in host.tree if path not in core), fabric.kind(network))
    own = packaged.files(mpi)
    roots = [mpi.library_path, *plugins, *(item.source for item in own), *packaged.plugins(host, mpi), *parts.roots]
    needed = system.needs(host, roots)
    single = [
        *own,
        *installation.alias(mpi),
        *packaged.folders(mpi),
        *parts.host,
        *system.libraries(needed, "the site's MPI needs it"),
    ]
    environment = installation.environment(mpi) | fabric.environment(host, mpi, network, parts)
    paths = [*host.tree, *(item.source for item in single if item.kind == FILE)]
    known = {path: facts.identity for path in paths if (facts := host.facts(path))}
    identities = {path: identity for path, identity in known.items() if identity}
    return BindMap([*installation.binds(mpi), *parts.binds], tuple(single), environment, (), identities)
