"""Sample a normal distribution: one rank gives work to the others."""

import sys

import emcee
import numpy as np
from mpi4py import MPI
from schwimmbad import MPIPool


def log_probability(x):
    return -0.5 * np.sum(x**2)


with MPIPool() as pool:
    if not pool.is_master():
        pool.wait()
        sys.exit(0)
    np.random.seed(1)
    sampler = emcee.EnsembleSampler(8, 1, log_probability, pool=pool)
    sampler.run_mcmc(np.random.randn(8, 1), 50)
    print(f"{MPI.COMM_WORLD.size} ranks, {len(sampler.get_chain(flat=True))} samples")
