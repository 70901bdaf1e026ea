"""A test that needs two ranks, run by mpi-pytest."""

import pytest
from mpi4py import MPI


@pytest.mark.parallel(nprocs=2)
def test_sum():
    total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
    print(f"\nsum {total} of {MPI.COMM_WORLD.size} ranks")
    assert total == 3
