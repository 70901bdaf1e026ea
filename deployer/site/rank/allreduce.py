"""A short Allreduce: does the network sum right, and how fast is it. A few milliseconds, on an MPI that is started."""

import ctypes
import time
from typing import List

from deployer.contract.measurements import Allreduce
from deployer.site.rank.mpi import Library, World

#: How often one double is summed, and how often ``_MANY`` of them (1 MiB); the first round of each is not counted.
_SMALL, _LARGE = 20, 4
_MANY = 131072
_DOUBLE = 8


def measure(library: Library, world: World) -> Allreduce:
    """Sum over all ranks, which all have to call this; the clock is this rank's own.

    The time of a call from Python, about a microsecond, is in it. Raises DeployerError where MPI returns an error.
    """
    right = world.size * (world.size - 1) / 2.0
    given = (ctypes.c_double * _MANY)(*([float(world.rank)] * _MANY))
    taken = (ctypes.c_double * _MANY)()
    medians = [_median(library, given, taken, 1, _SMALL), _median(library, given, taken, _MANY, _LARGE)]
    wrong = [value for value in (taken[0], taken[_MANY // 2], taken[_MANY - 1]) if value != right]
    return Allreduce(
        int(medians[0] * 1e9),
        _MANY * _DOUBLE,
        int(_MANY * _DOUBLE / medians[1]),
        "the sum over %d ranks is %g, not %g" % (world.size, wrong[0], right) if wrong else None,
    )


def _median(library: Library, given: object, taken: object, count: int, times: int) -> float:
    found: List[float] = []
    for _ in range(times + 1):
        begun = time.perf_counter()
        library.sum(given, taken, count)
        found.append(max(time.perf_counter() - begun, 1e-9))
    return sorted(found[1:])[times // 2]
