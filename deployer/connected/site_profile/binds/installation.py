"""The site's MPI in the container: its complete prefix on the same path, and the variables to find it.

An incomplete MPI is worse than none. Without LD_LIBRARY_PATH, Intel MPI loads the container's libfabric (observed in
the lab). Open MPI's plugins differ between releases that have the same soname.
"""

import posixpath

from deployer.connected.site_profile.binds import packaged
from deployer.connected.site_profile.binds.system import CapturedHost, libraries, library, needs
from deployer.connected.site_profile.profile import Mpi
from deployer.contract.base.errors import Refused
from deployer.contract.rules.hostfiles import LIBRARIES, LINK, HostFile
from deployer.contract.site.plan import ABIS, MPICH_ABI, OPENMPI, SONAMES, Bind

#: mpi4py's names of the families. Its wheel supports both and would use the first library that it finds.
_MPI4PY = {MPICH_ABI: "mpich", OPENMPI: "openmpi"}

#: Debian's name for MPICH's library. Without it, a program linked to this name silently uses the container's library.
_DEBIAN = "libmpich.so.12"

_PMI = "I_MPI_PMI_LIBRARY"

#: Cray MPICH's folder for its library under the name of MPICH's ABI.
_CRAY, _CRAY_ABI = "cray", "lib-abi-mpich"

#: MVAPICH binds each rank's threads to one core, even if the launcher assigned more. The launcher pins the ranks.
_MVAPICH = {"MV2_ENABLE_AFFINITY": "0", "MVP_ENABLE_AFFINITY": "0"}


def check(name: str, mpi: Mpi) -> None:
    """Check that this MPI can be bound into a container.

    Raises:
        Refused: programs in containers cannot find its library.
        Unknown: facts are missing.
    """
    if mpi.family == _CRAY and posixpath.basename(mpi.library_path) != SONAMES[MPICH_ABI]:
        text = f"mpi.{name}: {mpi.library_path} is for programs of Cray's compilers; those of an image need "
        text += f"{SONAMES[MPICH_ABI]}, which Cray MPICH has in {mpi.prefix}/{_CRAY_ABI}"
        hint = f"set library to {_CRAY_ABI}/{SONAMES[MPICH_ABI]} in the profile, or ask the site for cray-mpich-abi"
        raise Refused(text, hint)
    if mpi.in_system:
        packaged.check(name, mpi)


def binds(mpi: Mpi) -> list[Bind]:
    """Return the binds of the installation and of its other folders, on the same paths.

    The prefix of an MPI in system folders is not bound: ``packaged`` handles its files.
    """
    needed = [Bind(path, path, "what the site's MPI needs, on the same path") for path in mpi.binds]
    if mpi.in_system or any(f"{mpi.prefix}/".startswith(f"{path}/") for path in mpi.binds):
        return needed
    return [Bind(mpi.prefix, mpi.prefix, "the site's MPI, on the same path"), *needed]


def alias(mpi: Mpi) -> list[HostFile]:
    """Return a link from Debian's name to the site's library. Programs that do not need the name ignore it."""
    if ABIS.get(mpi.family) != MPICH_ABI or mpi.in_system or mpi.library_path.endswith("/" + _DEBIAN):
        return []
    return [HostFile(f"lib/{_DEBIAN}", LINK, mpi.library_path, "Debian's name of the site's MPI library")]


def pmi(host: CapturedHost, mpi: Mpi, environment: dict[str, str]) -> list[HostFile]:
    """Return Intel MPI's PMI library if the site's settings point to a system library.

    Args:
        environment: receives the library's path in the container.
    """
    path = environment.get(_PMI, "")
    own = [bind.source for bind in binds(mpi)]
    if not path.startswith("/") or any(f"{path}/".startswith(f"{folder}/") for folder in own):
        return []
    found = library(path, "PMI, by which ranks learn who they are")
    environment[_PMI] = found.target
    return [found, *libraries(needs(host, [path]), "the scheduler's PMI needs it")]


def environment(mpi: Mpi) -> dict[str, str]:
    """Return the variables that put the site's MPI before the image's, and lead the MPI to its plugins."""
    folders = [] if mpi.in_system else [f"{mpi.prefix}/{folder}" for folder in mpi.libraries]
    of_family = {
        "intel": {"I_MPI_ROOT": mpi.prefix},
        "mvapich": _MVAPICH,
        # The launcher's PMIx also offers its data in host files (PMIX_SERVER_TMPDIR), and authentication with munge.
        # The container has neither, and the library would warn about both.
        "openmpi": {"OPAL_PREFIX": mpi.prefix, "PMIX_MCA_gds": "hash", "PMIX_MCA_psec": "native"},
    }
    found = {"LD_LIBRARY_PATH": ":".join([*folders, LIBRARIES]), "MPI4PY_MPIABI": _MPI4PY[ABIS[mpi.family]]}
    return found | of_family.get(mpi.family, {}) | packaged.environment(mpi)
