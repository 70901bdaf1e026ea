"""A short Allreduce that measures the network's correctness and speed in a few milliseconds.

Like ``rank``, this module imports as little as possible.
"""

import ctypes
import time

MYPY = False
if MYPY:
    from typing import Any, Dict, List

    from deployer.site.rank.mpi import Library

#: Number of sums of one double, and of ``_MANY`` doubles (1 MiB); the first of each is not measured.
_SMALL, _LARGE = 20, 4
_MANY = 131072
_DOUBLE = 8


def measure(library: "Library") -> "Dict[str, Any]":
    """Compute sums over all ranks, which must all call this, and time them with this rank's clock.

    The times include about a microsecond for the call from Python. Return the fields of ``measurements.Allreduce``.

    Raises:
        MpiError: MPI returned an error.
    """
    right = library.size * (library.size - 1) / 2.0
    given = (ctypes.c_double * _MANY)(*([float(library.rank)] * _MANY))
    taken = (ctypes.c_double * _MANY)()
    medians = [_median(library, given, taken, 1, _SMALL), _median(library, given, taken, _MANY, _LARGE)]
    wrong = [value for value in (taken[0], taken[_MANY // 2], taken[_MANY - 1]) if value != right]
    return {
        "nanoseconds": int(medians[0] * 1e9),
        "bytes": _MANY * _DOUBLE,
        "bytes_per_second": int(_MANY * _DOUBLE / medians[1]),
        "wrong": "the sum over %d ranks is %g, not %g" % (library.size, wrong[0], right) if wrong else None,
    }


def _median(library: "Library", given: object, taken: object, count: int, times: int) -> float:
    times_taken: "List[float]" = []
    for _ in range(times + 1):
        begun = time.perf_counter()
        library.sum(given, taken, count)
        times_taken.append(max(time.perf_counter() - begun, 1e-9))
    return sorted(times_taken[1:])[times // 2]
