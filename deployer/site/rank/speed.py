"""Two short measurements through the job's own MPI library, before the payload starts: Allreduce and a ring.

The Allreduce over all ranks shows in a few milliseconds whether sums are correct. In the ring, the first rank of each
node measures the connection to the first rank of the next node, in both directions, and answers the node before it.
Pairs whose nodes differ measure at the same time. Like ``rank``, this module imports as little as possible.

In the ring, the asking rank sends one double, which announces what follows::

    1        the other rank returns it: latency is half of the round trip
    N > 1    N doubles follow; the other rank answers with one
    -N       the other rank sends N doubles
    0        the end
"""

import binascii
import ctypes
import os
import time

MYPY = False
if MYPY:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from deployer.site.rank.mpi import Library

_DOUBLE = 8
#: Doubles per message: 8 KiB, 64 KiB, 1 MiB and 4 MiB. A larger message is sent only if there is time for it.
_COUNTS = (1024, 8192, 131072, 524288)
#: Seconds for a pair, and for its latency. A node is in two pairs, so this is about 2 seconds.
_PAIR, _LATENCY = 0.8, 0.1
#: Messages of 8 bytes, and of the largest size in each direction. In all a node sends at most 26 MiB and receives
#: as many.
_PINGS, _TIMES = 40, 3
#: Seconds between attempts if a connection seems slow: a short disturbance is not its speed.
_AGAIN = 0.1
#: Number of sums of one double, and of ``_MANY`` doubles (1 MiB); the first of each is not measured.
_SMALL, _LARGE = 20, 4
_MANY = 131072
#: Bytes per second of a connection over which the large sum would take seconds, and its number of doubles then.
_SLOW, _FEW = 20_000_000, 1024


def allreduce(library: "Library", link: "Optional[Dict[str, Any]]" = None) -> "Dict[str, Any]":
    """Compute sums over all ranks, which must all call this, and time them with this rank's clock.

    The times include about a microsecond for the call from Python. Return the fields of ``measurements.Allreduce``.

    Args:
        link: this rank's result of ``ring``. If any of them is very slow, the large sum is 8 KiB.

    Raises:
        MpiError: MPI returned an error.
    """
    right = library.size * (library.size - 1) / 2.0
    slow = link is not None and min(link["bytes_per_second"], link["bytes_per_second_back"]) < _SLOW
    given = (ctypes.c_double * _MANY)(*([float(library.rank)] * _MANY))
    taken = (ctypes.c_double * _MANY)()
    library.sum((ctypes.c_double * 1)(slow), taken, 1)
    many = _FEW if taken[0] else _MANY
    medians = [_median(library, given, taken, 1, _SMALL), _median(library, given, taken, many, _LARGE)]
    wrong = [value for value in (taken[0], taken[many // 2], taken[many - 1]) if value != right]
    return {
        "nanoseconds": int(medians[0] * 1e9),
        "bytes": many * _DOUBLE,
        "bytes_per_second": int(many * _DOUBLE / medians[1]),
        "wrong": "the sum over %d ranks is %g, not %g" % (library.size, wrong[0], right) if wrong else None,
    }


def _median(library: "Library", given: object, taken: object, count: int, times: int) -> float:
    times_taken: "List[float]" = []
    for _ in range(times + 1):
        begun = time.perf_counter()
        library.sum(given, taken, count)
        times_taken.append(max(time.perf_counter() - begun, 1e-9))
    return sorted(times_taken[1:])[times // 2]


def ring(library: "Library", good: "Optional[Tuple[int, int]]" = None) -> "Optional[Dict[str, Any]]":
    """Measure the connection to the next node; all ranks must call this.

    Args:
        good: nanoseconds and bytes per second from which on attempts need no pause between them.

    Returns:
        the fields of ``measurements.NodeLink``; None if this rank measures none.

    Raises:
        MpiError: MPI returned an error.
    """
    first: "Dict[float, int]" = {}
    for rank, name in enumerate(library.gather(_number(os.uname().nodename))):
        first.setdefault(name, rank)
    leaders = sorted(first.values())
    if len(leaders) == 1 or library.rank not in leaders:
        return None
    count, place = len(leaders), leaders.index(library.rank)
    steps: "List[Tuple[int, Callable[[], Optional[Dict[str, Any]]]]]" = []
    if count > 2 or place == 0:  # two nodes are one pair
        steps.append((_turn(place, count), lambda: _ask(library, leaders[(place + 1) % count], good)))
    if count > 2 or place == 1:
        steps.append((_turn((place or count) - 1, count), lambda: _answer(library, leaders[place - 1])))
    steps.sort(key=lambda step: step[0])
    links = [step() for _, step in steps]
    return next(filter(None, links), None)


def _number(name: str) -> float:
    """Return a number for a node's name that a double holds exactly (52 bits)."""
    data = name.encode("utf-8", "replace")
    return float((binascii.crc32(data) & 0xFFFFFFFF) << 20 | binascii.crc32(data[::-1]) & 0xFFFFF)


def _turn(place: int, count: int) -> int:
    """Return when the pair of node ``place`` and its next one measures: each node is in one pair at a time."""
    return 2 if count % 2 and place == count - 1 else place % 2


def _ask(library: "Library", peer: int, good: "Optional[Tuple[int, int]]") -> "Dict[str, Any]":
    end = time.perf_counter() + _PAIR
    buffer = (ctypes.c_double * _COUNTS[-1])()

    def seconds(count: int) -> float:
        begun = time.perf_counter()
        library.send((ctypes.c_double * 1)(count), 1, peer)
        if count > 1:
            library.send(buffer, count, peer)
        library.receive(buffer, max(1, -count), peer)
        return max(time.perf_counter() - begun, 1e-9)

    shortest, until = seconds(1), time.perf_counter() + _LATENCY
    for _ in range(_PINGS):
        if time.perf_counter() > until:
            break
        shortest = min(shortest, seconds(1))
    count, times = 0, [(0.0, 0.0)]
    for larger in _COUNTS:
        if count and time.perf_counter() + sum(times[0]) * larger / count > end:
            break
        count, times = larger, [(seconds(larger), seconds(-larger))]
    while len(times) < _TIMES:
        is_good = not good or (shortest / 2 * 1e9 <= good[0] and count * _DOUBLE / max(times[-1]) >= good[1])
        pause = 0.0 if is_good else _AGAIN
        if time.perf_counter() + pause + sum(times[-1]) > end:
            break
        time.sleep(pause)
        shortest = min(shortest, seconds(1))
        times.append((seconds(count), seconds(-count)))
    there, back = map(min, zip(*times))
    library.send((ctypes.c_double * 1)(0), 1, peer)
    size = count * _DOUBLE
    return {
        "peer": peer,
        "nanoseconds": int(shortest / 2 * 1e9),
        "bytes": size,
        "bytes_per_second": int(size / there),
        "bytes_per_second_back": int(size / back),
    }


def _answer(library: "Library", peer: int) -> None:
    buffer = (ctypes.c_double * _COUNTS[-1])()
    asked = (ctypes.c_double * 1)()
    while True:
        library.receive(asked, 1, peer)
        count = int(asked[0])
        if not count:
            return
        if count > 1:
            library.receive(buffer, count, peer)
        library.send(buffer, max(1, -count), peer)
