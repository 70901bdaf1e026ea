"""Variables that are removed before a program starts: a launcher's among them tell ranks who they are. Pure."""

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Removed(NamedTuple):
    """Variables that a command removes.

    Attributes:
        pattern: a name, or a glob for names.
        certain: whether they are removed whenever the program starts, and all of them.
        by: the command, for messages: ``env -i``, ``unset $name``.
    """

    pattern: str
    certain: bool
    by: str


def of_branches(branches: Sequence[frozenset[Removed]]) -> frozenset[Removed]:
    """Return what is removed after one of several branches."""
    always = frozenset.intersection(*branches)
    return always | {each._replace(certain=False) for each in frozenset[Removed]().union(*branches) - always}


def lost(names: Collection[str], removed: Collection[Removed], environment: Mapping[str, str]) -> list[Removed]:
    """Return what removes one of these variables from an environment, the certain first."""
    absent = [name for name in names if name not in environment]
    found = {each for each in removed if any(fnmatch.fnmatchcase(name, each.pattern) for name in absent)}
    return sorted(found, key=lambda each: (not each.certain, each))
