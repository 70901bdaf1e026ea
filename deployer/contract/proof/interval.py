"""The mean of a few measurements and its 95 % interval, by Student's t distribution. Pure."""

import math
import statistics
from typing import Optional, Sequence

_CONFIDENCE = 0.95
#: An upper limit for t, which is 12.7 for one degree of freedom.
_LARGEST = 16.0
_STEPS = 60


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return math.fsum(values) / len(values)


def half_width(values: Sequence[float]) -> Optional[float]:
    """Return half the width of the mean's 95 % interval, t s / sqrt(n); None for a single value."""
    if len(values) < 2:
        return None
    return quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def spread(values: Sequence[float]) -> float:
    """Return what published benchmark scripts print after ``+-``: 1.96 standard deviations of the values.

    It describes a single value, not the mean, and does not shrink with more values.
    """
    return 1.96 * statistics.pstdev(values)


def quantile(free: int) -> float:
    """Return t such that 95 % of the distribution with ``free`` degrees of freedom lies between -t and t."""
    low, high = 0.0, _LARGEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _between(middle, free) < _CONFIDENCE else (low, middle)
    return high


def _between(t: float, free: int) -> float:
    """Return the probability between -t and t, as a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(free))
    square = math.cos(angle) ** 2
    odd = free % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for number in range(1 + odd, free, 2):
        total += term
        term *= square * number / (number + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
