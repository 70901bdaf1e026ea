"""What check takes for granted, held against real runs on the lab: what Intel MPI opens by name at run time."""

import re
from pathlib import Path

from deployer.connected.linker import plugins
from deployer.connected.site_profile import profile as profiles
from tests.integration.conftest import Alice

_HELLO = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
size = ctypes.c_int()
library.MPI_Init(None, None)
library.MPI_Comm_size(ctypes.c_int(0x44000000), ctypes.byref(size))
print("size", size.value, flush=True)
library.MPI_Finalize()
"""
_OPENED = re.compile(r"file=(\S+) \[0\];  dynamically loaded by (\S+) \[0\]")


def test_libfabric_and_its_providers_are_opened_by_name(captured: Path, alice: Alice) -> None:
    """Two ranks on two nodes under LD_DEBUG."""
    mpi = profiles.load(str(captured)).mpi["intel-2021.15"]
    (captured.parent / "hello.py").write_text(_HELLO)
    traces = captured.parent / "trace"
    search = ":".join(f"{mpi.prefix}/{folder}" for folder in mpi.libraries)
    said = alice(
        f"mkdir -p -m 777 {traces.name} && srun --mpi=pmi2 -N2 -n2 -t1 env I_MPI_ROOT={mpi.prefix} FI_PROVIDER=tcp "
        f"LD_LIBRARY_PATH={search} LD_DEBUG=files LD_DEBUG_OUTPUT=$PWD/{traces.name}/t "
        f"python3 hello.py {mpi.library_path} </dev/null"
    )
    assert said.count("size 2\n") == 2
    opened = set()
    for path in traces.iterdir():
        opened |= {(Path(file).name, Path(by).name) for file, by in _OPENED.findall(path.read_text(errors="replace"))}
    assert plugins.FABRIC in {file for file, by in opened if by.startswith("libmpi.so.12")}
    providers = {file for file, by in opened if by.startswith("libfabric.so") and file.endswith("-fi.so")}
    assert providers
    assert providers <= {f"lib{name}-fi.so" for name in plugins.PROVIDERS}
