"""What check takes for granted, held against real runs on the lab: what MPI libraries open by name at run time."""

import re
from pathlib import Path

import pytest

from deployer.connected.linker import plugins
from deployer.connected.linker.job_filesystem import Captured, JobFilesystem
from deployer.connected.linker.loader import Loader
from deployer.connected.site_profile import profile as profiles
from tests.integration.conftest import Alice

_HELLO = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
world = ctypes.c_int(0x44000000)
if hasattr(library, "ompi_mpi_comm_world"):
    world = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, "ompi_mpi_comm_world")))
size = ctypes.c_int()
library.MPI_Init(None, None)
library.MPI_Comm_size(world, ctypes.byref(size))
print("size", size.value, flush=True)
library.MPI_Finalize()
"""
_OPENED = re.compile(r"file=(\S+) \[0\];  dynamically loaded by (\S+) \[0\]")


@pytest.mark.parametrize(
    ("name", "pmi", "variables"),
    [
        ("intel-2021.15", "pmi2", "I_MPI_ROOT={prefix} FI_PROVIDER=tcp"),
        ("openmpi-5.0.11", "pmix", "OPAL_PREFIX={prefix} PMIX_MCA_gds=hash PMIX_MCA_psec=native"),
    ],
)
def test_the_table_has_all_that_a_real_run_opened(
    captured: Path, alice: Alice, name: str, pmi: str, variables: str
) -> None:
    """Two ranks on two nodes under LD_DEBUG; what libraries of the MPI opened must be in the declared table."""
    mpi = profiles.load(str(captured)).mpi[name]
    (captured.parent / "hello.py").write_text(_HELLO)
    traces = captured.parent / f"trace-{name}"
    search = ":".join(f"{mpi.prefix}/{folder}" for folder in mpi.libraries)
    said = alice(
        f"mkdir -p -m 777 {traces.name} && srun --mpi={pmi} -N2 -n2 -t1 env {variables.format(prefix=mpi.prefix)} "
        f"LD_LIBRARY_PATH={search} LD_DEBUG=files LD_DEBUG_OUTPUT=$PWD/{traces.name}/t "
        f"python3 hello.py {mpi.library_path} </dev/null"
    )
    assert said.count("size 2\n") == 2
    opened = set()
    for path in traces.iterdir():
        opened |= set(_OPENED.findall(path.read_text(errors="replace")))
    own = {(Path(file).name, opener) for file, opener in opened if opener.startswith(mpi.prefix + "/")}
    assert len(own) > 3  # the trace is one

    files = {f"{mpi.prefix}/{path}": facts for path, facts in mpi.files.items()}
    links = {f"{mpi.prefix}/{path}": target for path, target in mpi.links.items()}
    loader = Loader(JobFilesystem(Captured(files, links)), search.split(":"))
    loader.dlopen(mpi.library_path)
    plugins.open_fabric(loader)
    declared = {plugin.name for plugin in plugins.declared(loader)}
    assert {(file, opener) for file, opener in own if file not in declared} == set()
