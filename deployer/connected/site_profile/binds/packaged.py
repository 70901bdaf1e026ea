"""An MPI in system folders, as distributions package it, and folders of an MPI outside its prefix.

Its library folder cannot be bound, because it also has the host's C library. So its libraries and everything that they
need are single host files, under their sonames. Its plugins, help texts and settings are folders of host files, and
variables point to them. Otherwise Open MPI would load the plugins of the image's own release from the same path.
"""

import posixpath

from deployer.connected.site_profile.binds.system import CapturedHost, library
from deployer.connected.site_profile.forms import FolderVariable
from deployer.connected.site_profile.profile import Mpi
from deployer.contract.base.errors import Unknown
from deployer.contract.rules.hostfiles import DIRECTORY, FOLDER, LINK, HostFile
from deployer.contract.site.plan import ABIS, MPICH_ABI, OPENMPI

_PLUGINS = "OPAL_PKGLIBDIR"
#: The container path of each folder, below the folder of host files.
_NAMES: dict[FolderVariable, str] = {
    "OPAL_PKGLIBDIR": "lib/openmpi",
    "OPAL_PKGDATADIR": "lib/openmpi-help",
    "OPAL_SYSCONFDIR": "lib/openmpi-settings",
    "PMIX_PKGLIBDIR": "lib/pmix",
    "PMIX_PKGDATADIR": "lib/pmix-help",
}
#: The library names for MPICH's ABI that programs are linked to: the common one, and Debian's.
_MPICH_NAMES = ("libmpi.so.12", "libmpich.so.12")


def check(name: str, mpi: Mpi) -> None:
    """Raise Unknown if facts required to bind a system MPI are missing."""
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
    """Return the MPI's own libraries under their sonames, without dependencies, if it is in system folders."""
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
    """Return the folders that the MPI finds through variables."""
    return [
        HostFile(_NAMES[variable], DIRECTORY, path, f"a folder of the site's MPI, {variable}")
        for variable, path in mpi.folders.items()
    ]


def plugins(host: CapturedHost, mpi: Mpi) -> list[str]:
    """Return the captured files in the folders that the MPI finds through variables."""
    return sorted(path for path in host.files.files if posixpath.dirname(path) in mpi.folders.values())


def environment(mpi: Mpi) -> dict[str, str]:
    """Return the variables that point to the folders.

    Open MPI's are set for a system MPI even if it lacks the folder. Otherwise the image's folder would be used.
    """
    wanted: list[FolderVariable] = list(mpi.folders)
    if mpi.in_system and mpi.family == OPENMPI:
        wanted += [name for name in _NAMES if name.startswith("OPAL_") and name not in wanted]
    return {name: f"{FOLDER}/{_NAMES[name]}" for name in wanted}
