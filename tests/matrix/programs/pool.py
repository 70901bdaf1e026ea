"""Give work to processes that are started for it."""

from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor

if __name__ == "__main__":
    with MPIPoolExecutor(2) as pool:
        total = sum(pool.map(abs, [-1, -2]))
    if MPI.COMM_WORLD.rank == 0:
        print(f"sum {total} of {MPI.COMM_WORLD.size} ranks")
