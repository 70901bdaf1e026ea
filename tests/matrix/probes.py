"""Small programs, each with one ordinary habit of users, and the site where each is tried. Pure.

A program below the image's /tmp is not among them: `pack` refuses it.
"""

from __future__ import annotations

from typing import Any

from deployer.contract.site.plan import APP
from tests.matrix.app import VENV, App
from tests.matrix.pairs import Pair, Site
from tests.matrix.wrappers import DIRECT

_SUM: dict[str, Any] = {"right": r"^sum 3 of 2 ranks", "world": r"^sum .* of (\d+) ranks"}
_INTEL = Site("bookworm", "intel-2021.15", "srun", "pmi2", "charliecloud")
_OPENMPI = Site("bookworm", "openmpi-5.0.11", "srun", "pmix", "charliecloud")


def _python(name: str, script: str, *words: str, mpi: str = "mpich-5.0.2", modules: str = "mpi4py-4.1.2") -> App:
    """Return a script in a virtual environment with mpi4py and an MPI."""
    command = (f"{VENV}/bin/python", f"{APP}/{script}", *words)
    return App(f"probe-{name}", "bookworm", "", "Python", (), command, scripts=(script,), venv=mpi, modules=modules,
               **_SUM)  # fmt: skip


_ADDS = _python("adds", "adds.py")
_ADDS_OPENMPI = _python("adds-openmpi", "adds.py", mpi="openmpi-5.0.11")
PROBES: tuple[Pair, ...] = (
    *(Pair(_ADDS, _INTEL, habit) for habit in (
        "nvidia-smi", "nvidia-smi or true", "if nvidia-smi", "module load", "small tools", "substituted",
        "set -e module", "returns", "unset loop", "env -i", "env I_MPI_FABRICS=shm", "export FI_PROVIDER=tcp",
    )),
    *(Pair(_ADDS_OPENMPI, _OPENMPI, habit) for habit in (
        "unset loop", "env OMPI_MCA_btl=self,vader", "export OMPI_MCA_pml=ucx",
    )),
    Pair(_python("ctypes", "ranks_by_ctypes.py"), _INTEL, DIRECT),
    Pair(_python("pandas", "pandas_first.py"), _INTEL, DIRECT),
    Pair(_python("cv2", "cv2_first.py", modules="cv2"), _INTEL, DIRECT),
    Pair(_python("other-abi", "adds.py")._replace(
        command=("env", "MPI4PY_MPIABI=openmpi", f"{VENV}/bin/python", f"{APP}/adds.py")), _INTEL, DIRECT),
    Pair(_python("spawn", "spawn.py"), _INTEL, DIRECT),
    Pair(_python("pool", "pool.py"), _INTEL, DIRECT),
    Pair(_python("spawn-openmpi", "spawn.py", mpi="openmpi-5.0.11"), _OPENMPI, DIRECT),
    Pair(_python("python2", "python2.txt"), _INTEL, DIRECT),
    Pair(_python("no-data", "reads.py", "/deployer/data/set/file"), _INTEL, DIRECT),
)  # fmt: skip
