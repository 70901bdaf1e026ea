"""Add the ranks after the import of OpenCV, which needs libraries of a desktop."""

import cv2
from mpi4py import MPI

total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
if MPI.COMM_WORLD.rank == 0:
    print(f"sum {total} of {MPI.COMM_WORLD.size} ranks", cv2.__version__)
