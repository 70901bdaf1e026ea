"""Squares from a pool of ranks."""

from mpi4py import MPI
from mpipool import MPIExecutor


def square(number):
    return number * number


with MPIExecutor() as pool:
    pool.workers_exit()
    total = sum(pool.map(square, range(10)))
    print(f"{MPI.COMM_WORLD.size} ranks, squares {total}")
