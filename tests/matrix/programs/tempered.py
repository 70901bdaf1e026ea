"""Chains of several temperatures, one for each rank."""

import numpy as np
from mpi4py import MPI
from PTMCMCSampler import PTMCMCSampler

sampler = PTMCMCSampler.PTSampler(
    2, lambda x: -0.5 * np.sum(x**2), lambda x: 0.0, np.eye(2), outDir="chains", verbose=False
)
sampler.sample(np.zeros(2), 500, isave=100, burn=1000, covUpdate=1000)
chains = MPI.COMM_WORLD.gather(np.shape(sampler._chain)[1])
if MPI.COMM_WORLD.rank == 0:
    print(f"{len(chains)} ranks, parameters {chains[0]}")
