"""The mean of a few measurements and its 95 % interval, by Student's t distribution. Pure."""

import math
import statistics
from typing import Optional, Sequence

#: Quantiles of Student's t for 95 %, for 1 to 9 degrees of freedom. For more, the coefficients of an expansion that is
#: exact to four decimals (Abramowitz and Stegun, 26.7.5).
_T = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157)
_SERIES = (1.959964, 2.372271, 2.822499, 2.55585, 1.589534)


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return math.fsum(values) / len(values)


def half_width(values: Sequence[float]) -> Optional[float]:
    """Return half the width of the mean's 95 % interval, t s / sqrt(n); None for a single value."""
    if len(values) < 2:
        return None
    return quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def quantile(free: int) -> float:
    """Return t such that 95 % of the distribution with ``free`` degrees of freedom lies between -t and t."""
    if free <= len(_T):
        return _T[free - 1]
    return sum(coefficient / float(free) ** power for power, coefficient in enumerate(_SERIES))
