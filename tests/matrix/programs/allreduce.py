"""A rank of the matrix in Python, by mpi4py: the same checks, and the same record, as allreduce.c."""

import importlib
import json
import os
import sys
from array import array
from pathlib import Path
from typing import Any

LENGTH = 10000
_WORDS = ("/libmpi", "-fi.so", "/libfabric", "/libucp", "/libopen-pal", "/libmpich")


def mapped() -> list[Any]:
    """Return path and inode of the mapped files that tell of MPI or a network."""
    found = {}
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if len(fields) == 6 and any(word in fields[5] for word in _WORDS):
                found[fields[5].strip()] = int(fields[4])
    return [list(item) for item in found.items()]


def write(record: dict[str, Any]) -> None:
    """Write this rank's record, into a file of its own: all singletons are rank 0."""
    path = Path(os.environ["DEPLOYER_RESULT"]).with_name(f"matrix-{record['host']}-{os.getpid()}.json")
    path.write_text(json.dumps(record), encoding="utf-8")


def main() -> None:
    """Write the record, and end with 1 where the sum is wrong."""
    mpi: Any = importlib.import_module("mpi4py.MPI")

    world = mpi.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    mine = array("d", (rank + 1 + place % 7 for place in range(LENGTH)))
    total = array("d", bytes(8 * LENGTH))
    world.Allreduce(mine, total, op=mpi.SUM)
    wrong = sum(total[place] != size * (size + 1) / 2 + size * (place % 7) for place in range(LENGTH))
    says = mpi.Get_library_version().splitlines()[0].strip("\0 ")
    record = {"rank": rank, "size": size, "wrong": wrong, "host": os.uname().nodename, "says": says, "mapped": mapped()}
    write(record)
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
