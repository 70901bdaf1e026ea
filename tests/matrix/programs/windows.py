"""Ranks add to a file in turn, behind a lock of theirs."""

from mpi4py import MPI
from mpilock import sync

control = sync(MPI.COMM_WORLD)
with control.write(), open("turns.txt", "a") as stream:
    stream.write(f"{control.rank}\n")
MPI.COMM_WORLD.Barrier()
if control.master == control.rank:
    with open("turns.txt") as stream:
        print(f"{MPI.COMM_WORLD.size} ranks, turns {len(stream.readlines())}")
control.close()
