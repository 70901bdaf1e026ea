"""Add the ranks."""

from mpi4py import MPI

total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
if MPI.COMM_WORLD.rank == 0:
    print(f"sum {total} of {MPI.COMM_WORLD.size} ranks")
