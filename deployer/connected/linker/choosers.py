"""Packages that choose their serial or their parallel build when they are imported: a declared table.

Each line was read in the package's own files.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.contract.plan import StartOption

#: The variable by which a launcher shows that a program is one of several: Open MPI's mpirun, Hydra (MPICH, Intel).
#: srun sets none of them.
_SET_BY = {"mpirun": "OMPI_COMM_WORLD_SIZE", "mpiexec.hydra": "MPI_LOCALNRANKS"}


class Chooser(NamedTuple):
    """A package with two builds.

    Attributes:
        name: the package.
        parallel: the folder of the build with MPI, below that of packages.
        variables: each of them in the environment makes it take that build.
        always: the one of them that a user may set.
        selector: the file that chooses, below the folder of packages, and the Debian package that has it.
        feature: a word of a program that needs the build with MPI.
    """

    name: str
    parallel: str
    variables: Collection[str]
    always: str
    selector: tuple[str, str]
    feature: str


#: Debian's python3-h5py-serial has h5py/__init__.py; python3-h5py-mpi adds its folder (3.7.0; of 3.13.0 too,
#: which no longer depends on the serial one).
CHOOSERS = (
    Chooser(
        "h5py",
        "/h5py/_debian_h5py_mpi/",
        ("OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "H5PY_ALWAYS_USE_MPI"),
        "H5PY_ALWAYS_USE_MPI",
        ("/h5py/__init__.py", "python3-h5py-serial"),
        "mpio",
    ),
)


def of_file(path: str) -> Chooser | None:
    """Return the chooser that a file belongs to, as part of its build with MPI."""
    return next((each for each in CHOOSERS if each.parallel in path), None)


def is_parallel(chooser: Chooser, environment: Mapping[str, str], option: StartOption, text: str) -> bool:
    """Return whether a program with the script ``text`` loads a package's build with MPI if it is started so."""
    if chooser.parallel.strip("/").rpartition("/")[2] in text:  # it is imported by its own name
        return True
    return not environment.keys().isdisjoint(chooser.variables) or _SET_BY.get(option.launcher) in chooser.variables


def selects(chooser: Chooser, path: str, view: JobFilesystem, text: str) -> bool:
    """Return whether the file is there that chooses for the build of which ``path`` is, or no choice is made."""
    folder = path.partition(chooser.parallel)[0]
    found = view.resolve(folder + chooser.selector[0])
    return found is not None or chooser.parallel.strip("/").rpartition("/")[2] in text
