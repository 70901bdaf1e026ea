"""Sum the rank numbers over all ranks; rank 0 writes the result."""

import json
import os

from mpi4py import MPI


def main() -> None:
    """Print one line per rank, and write the sum to the file that DEPLOYER_RESULT names."""
    world = MPI.COMM_WORLD
    total = world.allreduce(world.rank, op=MPI.SUM)
    print(f"rank {world.rank} of {world.size}: sum {total}", flush=True)
    if world.rank == 0 and os.environ.get("DEPLOYER_RESULT"):
        with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
            json.dump({"world_size": world.size, "sum": total}, stream)


if __name__ == "__main__":
    main()
