"""Add the ranks after reading the file that the job names."""

import sys

from mpi4py import MPI

with open(sys.argv[1], "rb") as stream:
    stream.read(1)
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
if MPI.COMM_WORLD.rank == 0:
    print(f"sum {total} of {MPI.COMM_WORLD.size} ranks")
