"""An MPI among the system's own libraries, as distributions package it, and folders that an MPI has outside its prefix.

Its library folder cannot be bound: the host's C library is in it. So its libraries are single host files, with all that
they need, under their sonames. Its plugins, help texts and settings are folders of host files, and variables lead to
them. Without these variables, Open MPI would load the plugins of the image's own release, from the same path.
"""

import posixpath

from deployer.connected.site_profile.binds.system import CapturedHost, library
from deployer.connected.site_profile.forms import FolderVariable
from deployer.connected.site_profile.profile import Mpi
from deployer.contract.errors import Unknown
from deployer.contract.hostfiles import DIRECTORY, FOLDER, LINK, HostFile
from deployer.contract.plan import ABIS, MPICH_ABI, OPENMPI

_PLUGINS = "OPAL_PKGLIBDIR"
#: Where the container has each folder, below the folder of host files.
_NAMES: dict[FolderVariable, str] = {
    "OPAL_PKGLIBDIR": "lib/openmpi",
    "OPAL_PKGDATADIR": "lib/openmpi-help",
    "OPAL_SYSCONFDIR": "lib/openmpi-settings",
    "PMIX_PKGLIBDIR": "lib/pmix",
    "PMIX_PKGDATADIR": "lib/pmix-help",
}
#: The names by which programs are linked to a library of MPICH's ABI: everyone's, and Debian's.
_MPICH_NAMES = ("libmpi.so.12", "libmpich.so.12")


def check(name: str, mpi: Mpi) -> None:
    """Raise Unknown if facts are missing that are required to bind an MPI of the system."""
    if not mpi.files:
        missing = "its libraries were not captured"
    elif mpi.family == OPENMPI and _PLUGINS not in mpi.folders:
        missing = "the folder of its plugins is unknown"
    else:
        return
    raise Unknown(
        f"mpi.{name}: it is among the system's own libraries in {mpi.prefix}, and {missing}",
        "capture the site again with this version of deployer (for Open MPI, with ompi_info installed); or plan with "
        "the image's own MPI (mpi: null in the partition)",
    )


def files(mpi: Mpi) -> list[HostFile]:
    """Return the MPI's own libraries under their sonames, if it is among the system's; not what they need."""
    if not mpi.in_system:
        return []
    own = {facts.dynamic.soname or posixpath.basename(path): path for path, facts in sorted(mpi.files.items())}
    soname = mpi.soname or posixpath.basename(mpi.library_path)
    found = {f"{mpi.prefix}/{path}": name for name, path in own.items() if name != soname}
    found[mpi.library_path] = soname
    host = [library(path, "the site's MPI, from a system folder", name) for path, name in found.items()]
    if ABIS.get(mpi.family) == MPICH_ABI:
        others = [name for name in _MPICH_NAMES if name != soname]
        host += [HostFile(f"lib/{name}", LINK, soname, "another name of the site's MPI library") for name in others]
    return host


def folders(mpi: Mpi) -> list[HostFile]:
    """Return the folders that the MPI finds by variables."""
    return [
        HostFile(_NAMES[variable], DIRECTORY, path, f"a folder of the site's MPI, {variable}")
        for variable, path in mpi.folders.items()
    ]


def plugins(host: CapturedHost, mpi: Mpi) -> list[str]:
    """Return the captured files in the folders that the MPI finds by variables."""
    return sorted(path for path in host.files.files if posixpath.dirname(path) in mpi.folders.values())


def environment(mpi: Mpi) -> dict[str, str]:
    """Return the variables that lead to the folders.

    Those of Open MPI are set for an MPI of the system even if it has no such folder: the image's would be used instead.
    """
    wanted: list[FolderVariable] = list(mpi.folders)
    if mpi.in_system and mpi.family == OPENMPI:
        wanted += [name for name in _NAMES if name.startswith("OPAL_") and name not in wanted]
    return {name: f"{FOLDER}/{_NAMES[name]}" for name in wanted}
