"""Variables removed before a program starts. Some of a launcher's variables give ranks their identity. Pure."""

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Removed(NamedTuple):
    """Variables that a command removes.

    Attributes:
        pattern: a name, or a glob for names.
        certain: whether all of them are removed whenever the program starts.
        by: the command, for messages: ``env -i``, ``unset $name``.
    """

    pattern: str
    certain: bool
    by: str


def of_branches(branches: Sequence[frozenset[Removed]]) -> frozenset[Removed]:
    """Return the variables removed after one of several branches."""
    always = frozenset.intersection(*branches)
    return always | {removed._replace(certain=False) for removed in frozenset[Removed]().union(*branches) - always}


def lost(names: Collection[str], removed: Collection[Removed], environment: Mapping[str, str]) -> list[Removed]:
    """Return the removals that explain why some of these variables are absent, certain ones first."""
    absent = [name for name in names if name not in environment]
    matching = {removal for removal in removed if any(fnmatch.fnmatchcase(name, removal.pattern) for name in absent)}
    return sorted(matching, key=lambda removal: (not removal.certain, removal))
