"""Start two more processes, and add their ranks."""

import sys

from mpi4py import MPI

if len(sys.argv) > 1:
    parent = MPI.Comm.Get_parent()
    parent.reduce(MPI.COMM_WORLD.rank + 1, root=0)
    parent.Disconnect()
else:
    children = MPI.COMM_WORLD.Spawn(sys.executable, [__file__, "child"], maxprocs=2)
    total = children.reduce(None, root=MPI.ROOT if MPI.COMM_WORLD.rank == 0 else MPI.PROC_NULL)
    if MPI.COMM_WORLD.rank == 0:
        print(f"sum {total} of {MPI.COMM_WORLD.size} ranks")
    children.Disconnect()
