"""Find the launcher of an image's own MPI by its programs. Pure.

The laptop searches the image that it checks; the site searches the installed image.
"""

from typing import NamedTuple, Optional

from deployer.contract.bundle.command import SHELL, CommandSearch, Unsure, locate
from deployer.contract.site.plan import MPICH_ABI, OPENMPI

HYDRA, MPIRUN = "mpiexec.hydra", "mpirun"
#: The launcher of each MPI family.
OF_ABI = {MPICH_ABI: HYDRA, OPENMPI: MPIRUN}
#: The programs of each launcher: Debian installs several MPIs side by side, and ``mpirun`` may belong to another one.
_PROGRAMS = {HYDRA: (HYDRA,), MPIRUN: ("mpirun.openmpi", MPIRUN)}
#: The daemons of each launcher, by the family and the version that they indicate.
_DAEMONS = {
    HYDRA: (("hydra_bstrap_proxy", "intel", ""), ("hydra_pmi_proxy", "mpich", "")),
    MPIRUN: (("orted", "openmpi", "4"), ("prted", "openmpi", "5")),
}


class ImageLauncher(NamedTuple):
    """A launcher in an image.

    Attributes:
        program: its path.
        family: the family of its MPI.
        version: the first number of its MPI's version; empty if unknown.
    """

    program: str
    family: str
    version: str


def find(launcher: str, place: CommandSearch) -> Optional[ImageLauncher]:
    """Return the image's ``launcher``, a value of ``OF_ABI``; None if it or its daemon is missing."""
    program = next(filter(None, (_path(name, place) for name in _PROGRAMS[launcher])), None)
    if program is None:
        return None
    for daemon, family, version in _DAEMONS[launcher]:
        if _path(daemon, place):
            return ImageLauncher(program, family, version)
    return None


def lacks(launcher: str, place: CommandSearch, python: Optional[str]) -> Optional[str]:
    """Return what an image lacks to start ranks with its own ``launcher``; None if nothing is missing."""
    if find(launcher, place) is None:
        daemons = " or ".join(daemon for daemon, _, _ in _DAEMONS[launcher])
        return f"no {launcher} with {daemons} in its PATH"
    if _path(SHELL, place) is None:
        return f"no {SHELL}"
    return None if python else "no Python"


def _path(name: str, place: CommandSearch) -> Optional[str]:
    for folder in [""] if name.startswith("/") else place.path.split(":"):
        try:
            program = locate("{}/{}".format(folder.rstrip("/"), name.lstrip("/")), place)
        except Unsure:  # a folder that is bound over the image
            continue
        if program:
            return program.path
    return None
