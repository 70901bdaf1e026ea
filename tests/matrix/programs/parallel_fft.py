"""A transform in three dimensions, its array spread over the ranks, and back."""

import numpy as np
from mpi4py import MPI
from mpi4py_fft import PFFT, newDistArray

transform = PFFT(MPI.COMM_WORLD, [16, 16, 16], dtype=float)
before = newDistArray(transform, False)
before[:] = np.random.RandomState(MPI.COMM_WORLD.rank).rand(*before.shape)
after = transform.backward(transform.forward(before.copy()))
same = MPI.COMM_WORLD.allreduce(bool(np.allclose(before, after)), MPI.LAND)
if MPI.COMM_WORLD.rank == 0:
    print(f"{MPI.COMM_WORLD.size} ranks, there and back: {same}")
