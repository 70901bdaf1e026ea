"""Add the ranks after the import of a package that is not there."""

import pandas as pd
from mpi4py import MPI

total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
if MPI.COMM_WORLD.rank == 0:
    print(f"sum {total} of {MPI.COMM_WORLD.size} ranks", pd.__version__)
