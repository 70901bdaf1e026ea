"""Drift: what of a site profile is no longer so, from the profile and what was captured since; and what that means.

Facts that one of the two does not know are no drift. Both are JSON objects of a profile, each partition with all that
holds in it.
"""

import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from deployer.contract.findings import ERROR, NOTE, WARNING
from deployer.contract.records import Record

CHANGED, GONE, NEW = "changed", "gone", "new"

#: What a profile says at its top for the nodes of all partitions, where they do not say otherwise.
SHARED = (
    "architecture", "os", "kernel", "glibc", "libzstd", "pythons", "user_namespaces", "fuse", "runtimes", "launchers",
    "fabric", "driver", "filesystems", "files", "links",
)  # fmt: skip
#: What is decided, or says where facts come from: no facts of the site.
_NO_FACTS = (
    "format", "name", "extends", "description", "source", "facts", "notes", "host", "python", "policy", "workspace",
)  # fmt: skip
#: Objects whose keys are the things themselves: one that is not there any more is gone.
_THINGS = ("mpi", "partitions", "runtimes", "filesystems", "pythons", "libraries", "files", "links", "environment")
#: Sizes of file systems are never quite the same.
_TOLERANCE = 0.1

_MEANINGS = (
    (r"^mpi\.[^/]+\.(files|links)\.", ERROR, "a file of this MPI was replaced: capture and check again"),
    (r"^mpi\.[^/]+\.identity$", ERROR, "this MPI was replaced: run refuses plans made before (mpi.host-drift)"),
    (r"^mpi\.[^/]+\.module$", ERROR, "jobs load a module that is not there: correct it and make new plans"),
    (r"^mpi\.[^/]+\.environment\.", WARNING, "the site tunes this MPI in another way: make new plans"),
    (r"^mpi\.", ERROR, "jobs would bind what is not there, or another MPI: correct the profile and make new plans"),
    (r"^scheduler\.pmi$", ERROR, "with a PMI that is gone ranks are worlds of one: choose another"),
    (r"^partitions\.[^/]+\.node\.cpu\.flags$", ERROR, "programs that use an instruction set that is gone are killed"),
    (r"^partitions\.[^/]+\.node\.", WARNING, "layouts are made for another node: make new plans"),
    (r"^partitions\.[^/]+\.nodes$", NOTE, "the site has more nodes, or less"),
    (r"^partitions\.[^.]+$", WARNING, "the partition cannot be named in jobs any more"),
    (r"\.user_namespaces$", ERROR, "containers without rights need user namespaces"),
    (r"\.fuse$", WARNING, "images in one file cannot be mounted without FUSE"),
    (r"\.runtimes\.", ERROR, "plans name a container runtime of which another version, or none, is there"),
    (r"\.driver\.", WARNING, "the GPU's driver was replaced: check bundles that use GPUs again"),
    (r"\.fabric\.", WARNING, "the fast network looks different: check again, or jobs may fall back to TCP"),
    (r"\.(files|links)\.", WARNING, "a system library that jobs may get was replaced: capture and check again"),
    (r"\.glibc$", WARNING, "libraries that are bound into images may need this C library: check again"),
    (r"\.filesystems\.", WARNING, "room for images or data has changed"),
    (r"\.(libzstd|pythons)", WARNING, "what install and run need on this machine has changed"),
)  # fmt: skip


class Drift(NamedTuple):
    """One fact: its place in the profile, CHANGED, GONE or NEW, what was written and what is, and what it means.

    ``severity`` is ERROR where jobs fail by it, WARNING where they may, NOTE else.
    """

    place: str
    kind: str
    was: Any
    now: Any
    severity: str
    meaning: str

    def record(self) -> Record:
        return dict(self._asdict())

    def __str__(self) -> str:
        if self.kind == NEW:
            return "new      %s: %s" % (self.place, _short(self.now))
        if self.kind == GONE:
            return "gone     %s: was %s" % (self.place, _short(self.was))
        return "changed  %s: %s -> %s" % (self.place, _short(self.was), _short(self.now))


def compare(before: Record, after: Record) -> List[Drift]:
    """Return how ``after`` differs from ``before``, the gravest first."""
    whole = "scheduler" in after  # one node's capture knows one partition
    found = [
        drift
        for drift in (_judged(*each) for each in _differences(before, after, ""))
        if whole or not (drift.kind == GONE and re.match(r"^partitions\.[^.]+$", drift.place))
    ]
    order = {ERROR: 0, WARNING: 1, NOTE: 2}
    return sorted(found, key=lambda drift: (order[drift.severity], drift.place))


def worst(found: List[Drift]) -> Optional[str]:
    """Return the gravest severity, None where nothing has changed."""
    return found[0].severity if found else None


_Difference = Tuple[str, str, Any, Any]


def _differences(before: Record, after: Record, above: str) -> Iterator[_Difference]:
    things = above.rpartition(".")[2] in _THINGS
    for key in sorted(set(before) | set(after)):
        if key in _NO_FACTS and not things:
            continue
        place = "%s.%s" % (above, key) if above else key
        was, now = before.get(key), after.get(key)
        if isinstance(was, dict) and isinstance(now, dict) and "dynamic" not in was:
            yield from _differences(was, now, place)
        elif key not in after:
            if things:
                yield place, GONE, was, None
        elif key not in before:
            if things:
                yield place, NEW, None, now
        elif isinstance(was, list) and isinstance(now, list):
            yield from _of_lists(place, was, now)
        elif not _same(place, was, now):
            yield place, CHANGED, was, now


def _of_lists(place: str, was: List[Any], now: List[Any]) -> Iterator[_Difference]:
    gone, new = [item for item in was if item not in now], [item for item in now if item not in was]
    if gone:
        yield place, GONE, gone, None
    if new:
        yield place, NEW, None, new


def _same(place: str, was: Any, now: Any) -> bool:
    if was == now:
        return True
    if isinstance(was, str) and isinstance(now, str):  # "2021.15" and "2021.15.0": one says more than the other
        short, long = sorted((was, now), key=len)
        return bool(short) and re.match(r"^\d", short) is not None and long.startswith(short + ".")
    if isinstance(was, int) and isinstance(now, int) and ".filesystems./" in "." + place:
        return abs(was - now) <= _TOLERANCE * max(was, now)
    return False


def _judged(place: str, kind: str, was: Any, now: Any) -> Drift:
    if kind == NEW:
        return Drift(place, kind, was, now, NOTE, "the profile does not know of it")
    for pattern, severity, meaning in _MEANINGS:
        if re.search(pattern, place):
            return Drift(place, kind, was, now, severity, meaning)
    return Drift(place, kind, was, now, NOTE, "it is said in another way")


def _short(value: Any) -> str:
    """Return a value in a few words: of a library its build id."""
    if isinstance(value, dict) and isinstance(value.get("dynamic"), dict):
        return "build id %s" % (value["dynamic"].get("build_id") or "none")
    if isinstance(value, dict):
        return ", ".join("%s %s" % (key, _short(each)) for key, each in value.items() if not isinstance(each, dict))[
            :200
        ]
    if isinstance(value, list):
        return ", ".join(map(_short, value))[:200]
    return str(value)[:200]


def resolved(profile: Record) -> Record:
    """Return a profile with what it says at its top in each partition that does not say it."""
    top = {key: profile[key] for key in SHARED if key in profile}
    result: Dict[str, Any] = {key: value for key, value in profile.items() if key not in SHARED}
    partitions = profile.get("partitions")
    if isinstance(partitions, dict):
        result["partitions"] = {
            name: dict(top, **own) if isinstance(own, dict) else own for name, own in partitions.items()
        }
    return result
