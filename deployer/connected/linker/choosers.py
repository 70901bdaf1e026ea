"""Packages that choose their serial or parallel build when they are imported: a declared table.

Each row was taken from the package's own files.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.contract.site.plan import StartOption

#: The variable that tells a program it is one of several ranks, by launcher: Open MPI's mpirun and Hydra (MPICH,
#: Intel). srun sets neither.
_SET_BY = {"mpirun": "OMPI_COMM_WORLD_SIZE", "mpiexec.hydra": "MPI_LOCALNRANKS"}


class Chooser(NamedTuple):
    """A package with two builds.

    Attributes:
        name: the package.
        parallel: the folder of the MPI build, below the folder of packages.
        variables: any one of them in the environment selects the MPI build.
        always: the variable that a user may set.
        selector: the file that makes the choice, below the folder of packages, and the Debian package that contains it.
        feature: a word in the program's text that shows that it needs the MPI build.
    """

    name: str
    parallel: str
    variables: Collection[str]
    always: str
    selector: tuple[str, str]
    feature: str


#: Debian's python3-h5py-serial contains h5py/__init__.py; python3-h5py-mpi adds its folder. Read in 3.7.0 and 3.13.0
#: (the latter no longer depends on the serial package).
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
    """Return the chooser whose MPI build contains a file."""
    return next((chooser for chooser in CHOOSERS if chooser.parallel in path), None)


def is_parallel(chooser: Chooser, environment: Mapping[str, str], option: StartOption, text: str) -> bool:
    """Return whether a program with the script ``text`` loads a package's MPI build under this start option."""
    if chooser.parallel.strip("/").rpartition("/")[2] in text:  # imported by its own name
        return True
    return not environment.keys().isdisjoint(chooser.variables) or _SET_BY.get(option.launcher) in chooser.variables


def selects(chooser: Chooser, path: str, view: JobFilesystem, text: str) -> bool:
    """Return whether the file that selects the build containing ``path`` exists, or no choice is made."""
    folder = path.partition(chooser.parallel)[0]
    selector = view.resolve(folder + chooser.selector[0])
    return selector is not None or chooser.parallel.strip("/").rpartition("/")[2] in text
