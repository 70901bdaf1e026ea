"""A least-squares solution whose vectors and operators are spread over the ranks."""

import numpy as np
import pylops
import pylops_mpi
from mpi4py import MPI

size = MPI.COMM_WORLD.size
operator = pylops_mpi.MPIBlockDiag(ops=[pylops.Diagonal(np.arange(1.0, 6.0))])
model = pylops_mpi.DistributedArray(global_shape=5 * size)
model[:] = 3.0
start = pylops_mpi.DistributedArray(global_shape=5 * size)
start[:] = 0.0
found = pylops_mpi.cgls(operator, operator @ model, start, niter=20)[0].asarray()
if MPI.COMM_WORLD.rank == 0:
    print(f"{size} ranks, solution {found.mean():.4f}")
