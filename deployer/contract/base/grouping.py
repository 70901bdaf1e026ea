"""Values by a key that several of them have. Pure."""

from typing import Dict, Iterable, List, Tuple, TypeVar

_K = TypeVar("_K")
_T = TypeVar("_T")


def grouped(pairs: Iterable[Tuple[_K, _T]]) -> Dict[_K, List[_T]]:
    """Return the values of each key, both in the order of ``pairs``, which are keys with values."""
    groups: Dict[_K, List[_T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
