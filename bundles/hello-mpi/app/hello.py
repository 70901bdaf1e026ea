"""Each rank adds its number to a sum over all ranks; rank 0 checks the sum and writes what it saw."""

import json
import os
import socket
import sys

from mpi4py import MPI


def main() -> int:
    """Return 0 when the sum over all ranks is right."""
    world = MPI.COMM_WORLD
    total = world.allreduce(world.rank, op=MPI.SUM)
    hosts = world.gather(socket.gethostname(), root=0)
    expected = world.size * (world.size - 1) // 2
    print(f"rank {world.rank} of {world.size} on {socket.gethostname()}: sum {total}", flush=True)
    if world.rank == 0 and os.environ.get("DEPLOYER_RESULT"):
        library = MPI.Get_library_version().rstrip("\0").strip().splitlines()[0]
        seen = {"world_size": world.size, "sum": total, "hosts": hosts, "mpi_library": library}
        with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
            json.dump(seen, stream)
    return 0 if total == expected else 1


if __name__ == "__main__":
    sys.exit(main())
