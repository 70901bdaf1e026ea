"""prove.py FRAMEWORK SONAME OUT: Horovod's allreduce over two ranks is right, on the MPI library that is meant.

Every rank checks; rank 0 writes what it saw to OUT, as JSON. Nothing but the loader's path chooses the library.
"""

import ctypes
import importlib
import json
import os
import sys
from typing import Any

_RANKS = 2
_LENGTH = 10000  # larger than what is sent along with a message's head


def main(framework: str, soname: str, out: str) -> None:
    """Raise SystemExit with the reason unless all is as it should be."""
    horovod: Any = importlib.import_module("horovod.tensorflow" if framework == "tensorflow" else "horovod.torch")
    horovod.init()
    rank, size = horovod.rank(), horovod.size()
    mine = [float(rank + 1 + position % 7) for position in range(_LENGTH)]
    total = _sum(framework, horovod, mine)
    expected = [size * (size + 1) / 2 + size * (position % 7) for position in range(_LENGTH)]
    mapped = _mapped()
    if size != _RANKS:
        sys.exit(f"rank {rank} is in a world of {size}, not {_RANKS}")
    if total != expected:
        sys.exit(f"rank {rank}: the sum over the ranks is wrong, it begins {total[:3]}, not {expected[:3]}")
    if [os.path.realpath(path) for path in mapped] != [os.path.realpath(_found(soname))]:
        sys.exit(f"rank {rank} uses {mapped or 'no MPI library'}, not {soname}")
    if rank == 0:
        record = {"size": size, "sum": total[0], "library": mapped[0], "says": _says(soname)}
        with open(out, "w", encoding="utf-8") as stream:
            json.dump(record, stream)
        sys.stdout.write(f"proven: {record}\n")
    horovod.shutdown()


def _sum(framework: str, horovod: Any, values: list[float]) -> list[float]:
    if framework == "tensorflow":
        constant = importlib.import_module("tensorflow").constant
        return [float(value) for value in horovod.allreduce(constant(values), op=horovod.Sum).numpy()]
    tensor = importlib.import_module("torch").tensor(values)
    return [float(value) for value in horovod.allreduce(tensor, op=horovod.Sum).tolist()]


def _mapped() -> list[str]:
    """Return the MPI libraries that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "/" in line}
    return sorted(path for path in paths if os.path.basename(path).startswith(("libmpi.so", "libmpich.so")))


def _found(soname: str) -> str:
    """Return the first of that name in the folders that this process was told to search."""
    folders = os.environ["LD_LIBRARY_PATH"].split(":")
    return next(path for path in (f"{folder}/{soname}" for folder in folders) if os.path.exists(path))


def _says(soname: str) -> str:
    """Return the first line of MPI_Get_library_version."""
    text, length = ctypes.create_string_buffer(8193), ctypes.c_int()
    ctypes.CDLL(soname).MPI_Get_library_version(text, ctypes.byref(length))
    return " ".join(text.value.decode().splitlines()[0].split())


if __name__ == "__main__":
    main(*sys.argv[1:])
