"""The site's MPI in the container: its whole prefix on its own path, and the environment that makes it be found.

A half-bound tree is worse than none: without LD_LIBRARY_PATH, Intel MPI loads the container's libfabric (seen in the
lab), and Open MPI's parts differ between releases under the same soname.
"""

from deployer.connected.site_profile.binds.system import CapturedHost, libraries, library, needs
from deployer.connected.site_profile.profile import Mpi
from deployer.contract.errors import Unknown
from deployer.contract.hostfiles import LIBRARIES, LINK, HostFile
from deployer.contract.plan import ABIS, MPICH_ABI, OPENMPI, Bind

#: What mpi4py calls the families. Its wheel holds both, and would take the one whose library it finds first.
_MPI4PY = {MPICH_ABI: "mpich", OPENMPI: "openmpi"}

#: Prefixes that belong to the system: bound on their own path they would take the place of the image's own.
_SYSTEM = ("/", "/usr", "/usr/local", "/usr/lib", "/usr/lib64", "/lib", "/lib64")

#: Debian's name for MPICH's library. Without this a program that is linked to it keeps the container's, silently.
_DEBIAN = "libmpich.so.12"

_PMI = "I_MPI_PMI_LIBRARY"


def check(name: str, mpi: Mpi) -> None:
    """Raise Unknown if it is not known how to bring this MPI into a container."""
    if mpi.family not in ABIS:
        raise Unknown(
            f"mpi.{name}: what {mpi.family} needs in a container is unknown: no real one has been captured yet",
            "capture the site and send the capture to deployer's makers; or plan with the image's own MPI (mpi: null)",
        )
    if mpi.prefix in _SYSTEM:
        raise Unknown(
            f"mpi.{name}: it is among the system's own libraries in {mpi.prefix}, which cannot be bound as a whole",
            "name an MPI in a prefix of its own, or plan with the image's own (mpi: null in the partition)",
        )


def binds(mpi: Mpi) -> list[Bind]:
    """Return the installation and what it needs besides, on their paths; a folder that holds the prefix is enough."""
    needed = [Bind(path, path, "what the site's MPI needs, on the same path") for path in mpi.binds]
    if any(f"{mpi.prefix}/".startswith(f"{path}/") for path in mpi.binds):
        return needed
    return [Bind(mpi.prefix, mpi.prefix, "the site's MPI, on the same path"), *needed]


def alias(mpi: Mpi) -> list[HostFile]:
    """Return Debian's name of the library as a link to the site's: harmless if nothing asks for it."""
    if ABIS.get(mpi.family) != MPICH_ABI or mpi.library_path.endswith("/" + _DEBIAN):
        return []
    return [HostFile(f"lib/{_DEBIAN}", LINK, mpi.library_path, "Debian's name of the site's MPI library")]


def pmi(host: CapturedHost, mpi: Mpi, environment: dict[str, str]) -> list[HostFile]:
    """Return the library through which Intel MPI speaks to the scheduler, if the site's settings name a system library.

    ``environment`` gets the path that it has in the container.
    """
    path = environment.get(_PMI, "")
    if not path.startswith("/") or any(f"{path}/".startswith(f"{folder}/") for folder in (mpi.prefix, *mpi.binds)):
        return []
    found = library(path, "PMI, by which ranks learn who they are")
    environment[_PMI] = found.target
    return [found, *libraries(needs(host, [path]), "the scheduler's PMI needs it")]


def environment(mpi: Mpi) -> dict[str, str]:
    """Return what makes the loader find the site's MPI before the image's, and the MPI its own parts."""
    folders = [f"{mpi.prefix}/{folder}" for folder in mpi.libraries]
    found = {"LD_LIBRARY_PATH": ":".join([*folders, LIBRARIES])}
    if mpi.family in ABIS:
        found["MPI4PY_MPIABI"] = _MPI4PY[ABIS[mpi.family]]
    if mpi.family == "intel":
        found["I_MPI_ROOT"] = mpi.prefix
    if mpi.family == "openmpi":
        found["OPAL_PREFIX"] = mpi.prefix
        # The launcher's PMIx offers its data in files of the host (PMIX_SERVER_TMPDIR) and munge's socket as well;
        # neither is in the container, where the library would warn of each.
        found |= {"PMIX_MCA_gds": "hash", "PMIX_MCA_psec": "native"}
    return found
