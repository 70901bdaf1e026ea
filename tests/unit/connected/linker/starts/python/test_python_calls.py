"""Calls that start more ranks, and calls that remove variables, are found in a script's text."""

import pytest

from deployer.connected.linker.starts.python import python_calls

POOL = "from mpi4py.futures import MPIPoolExecutor\n"


@pytest.mark.parametrize(("text", "certain"), [
    (POOL + "with MPIPoolExecutor() as pool: pool.map(f, [1])", True),
    (POOL + "try:\n    pool = MPIPoolExecutor()\nexcept OSError: pass", True),
    (POOL + "def main():\n    with MPIPoolExecutor(4): pass\nif __name__ == '__main__':\n    main()", True),
    (POOL + "import sys\ndef main():\n    pool = MPIPoolExecutor()\nsys.exit(main())", True),
    ("-c " + POOL + "MPIPoolExecutor()", True),
    ("import mpi4py.futures as futures\npool = futures.MPIPoolExecutor()", True),
    ("from mpi4py import MPI\nother = MPI.COMM_SELF.Spawn('worker', maxprocs=2)", True),
    ("from mpi4py import MPI\nMPI.COMM_WORLD.Spawn_multiple(['a', 'b'])", True),
    (POOL + "if size == 1:\n    pool = MPIPoolExecutor()", False),
    (POOL + "if rank: raise SystemExit\nMPIPoolExecutor()", False),
    (POOL + "pool = MPIPoolExecutor() if serial else None", False),
    (POOL + "def never(): MPIPoolExecutor()", False),
])  # fmt: skip
def test_calls_that_start_more_ranks(text: str, certain: bool) -> None:
    (call,) = python_calls.spawns(text)
    assert call.certain is certain


@pytest.mark.parametrize("text", [
    "from mpi4py.futures import MPICommExecutor\nwith MPICommExecutor(comm) as pool: pass",
    "import pexpect\npexpect.Spawn('mpi')",
    POOL,
    POOL + "MPIPoolExecutor(",
    "from mpi4py import MPI\nSpawn()",
    "",
])  # fmt: skip
def test_scripts_that_start_none(text: str) -> None:
    assert python_calls.spawns(text) == []


@pytest.mark.parametrize(("text", "patterns"), [
    ("import os\nos.environ.clear()\nfrom mpi4py import MPI", {"*"}),
    ("import os\nos.environ.pop('PMI_FD', None)", {"PMI_FD"}),
    ("import os\nfor k in list(os.environ):\n    if k.startswith('PMI'):\n        del os.environ[k]", {"*"}),
    ("from os import environ\nenviron.pop(name)", {"*"}),
    ("import os\nos.unsetenv('PMI_FD')", {"PMI_FD"}),
    ("from mpi4py import MPI\nimport os\nos.environ.clear()", set()),  # MPI has started
    ("import os\nos.environ['A'] = 'b'\nvalues.pop('PMI_FD')\ndel values['PMI_FD']", set()),
    ("os.environ.pop(", set()),
])  # fmt: skip
def test_variables_that_a_script_removes(text: str, patterns: set[str]) -> None:
    found = python_calls.removed(text)
    assert {each.pattern for each in found} == patterns
    assert not any(each.certain for each in found)
