"""h5py of Debian, which chooses its serial or parallel build when it is imported.

python3-h5py-serial contains h5py/__init__.py, which chooses; python3-h5py-mpi adds its folder. Read in 3.7.0 and 3.13.0
(the latter no longer depends on the serial package).
"""

from collections.abc import Mapping

from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.contract.site.plan import StartOption

NAME = "h5py"
#: The folder of the MPI build, below the folder of packages; the file that chooses, and its package.
_PARALLEL, CHOOSES, PACKAGE = "/h5py/_debian_h5py_mpi/", "/h5py/__init__.py", "python3-h5py-serial"
#: A word in the program's text that shows that it needs the MPI build.
FEATURE = "mpio"
#: The variable that a user may set.
ALWAYS = "H5PY_ALWAYS_USE_MPI"
#: The variable that tells a program it is one of several ranks, by launcher: Open MPI's mpirun and Hydra (MPICH,
#: Intel). srun sets neither.
_SET_BY = {"mpirun": "OMPI_COMM_WORLD_SIZE", "mpiexec.hydra": "MPI_LOCALNRANKS"}
#: Any one of them in the environment selects the MPI build.
VARIABLES = (*_SET_BY.values(), ALWAYS)


def is_parallel_build(path: str) -> bool:
    """Return whether a file belongs to the MPI build."""
    return _PARALLEL in path


def _names_it(text: str) -> bool:
    """Return whether a program with the script ``text`` imports the MPI build by its own name."""
    return _PARALLEL.split("/")[-2] in text


def is_parallel(environment: Mapping[str, str], option: StartOption, text: str) -> bool:
    """Return whether a program with the script ``text`` loads the MPI build under this start option."""
    return _names_it(text) or not environment.keys().isdisjoint(VARIABLES) or option.launcher in _SET_BY


def selects(path: str, view: JobFilesystem, text: str) -> bool:
    """Return whether the file that selects the build containing ``path`` exists, or no choice is made."""
    return view.resolve(path.partition(_PARALLEL)[0] + CHOOSES) is not None or _names_it(text)
