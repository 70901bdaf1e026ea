"""Drift: the differences between two site profiles, and what each one means.

Both are JSON objects of a profile, with all values in each partition (see ``resolved``).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.ground import own_data
from deployer.contract.base.json_records import Record
from deployer.contract.rules.findings import ERROR, NOTE, WARNING

CHANGED, GONE, NEW = "changed", "gone", "new"

#: Fields at the top of a profile that apply to the nodes of all partitions, unless a partition overrides them.
SHARED = (
    "architecture", "os", "kernel", "page_size", "glibc", "libzstd", "pythons", "user_namespaces", "fuse", "runtimes",
    "launchers", "fabric", "network", "devices", "driver", "filesystems", "files", "links",
)  # fmt: skip
#: Objects whose keys are names of things: if a key is missing, the thing is gone.
_THINGS = ("mpi", "partitions", "runtimes", "filesystems", "pythons", "libraries", "files", "links", "environment")
#: Replaces the name of a thing in the path of a field.
_ANY = "*"
#: Values that mean "not specified" in a profile.
_NOTHING: tuple[Any, ...] = (None, "", [], {})

#: For each field of a profile: the severity of a change, and its meaning.
_MEANINGS = own_data.load_yaml(Path(__file__).with_suffix(".yaml"))
#: For a field that is not in the table: correct for every field.
UNKNOWN = (WARNING, "the profile has changed: check bundles again and make new plans")
_ORDER = {ERROR: 0, WARNING: 1, NOTE: 2}


class Drift(NamedTuple):
    """A difference in one fact.

    Attributes:
        place: the path of the fact in the profile.
        kind: CHANGED, GONE or NEW.
        was: the value before.
        now: the value after.
        severity: ERROR if jobs fail because of it, WARNING if they may fail, else NOTE.
        meaning: the consequence for plans, bundles and jobs.
    """

    place: str
    kind: str
    was: Any
    now: Any
    severity: str
    meaning: str

    def __str__(self) -> str:
        if self.kind == NEW:
            return f"new      {self.place}: {_short(self.now)}"
        if self.kind == GONE:
            return f"gone     {self.place}: was {_short(self.was)}"
        return f"changed  {self.place}: {_short(self.was)} -> {_short(self.now)}"


class _Path(NamedTuple):
    """The path of a field: ``place`` for people; in ``field`` the names of things are replaced with ``*``."""

    place: str = ""
    field: str = ""

    def below(self, key: str) -> "_Path":
        name = _ANY if self.field.rpartition(".")[2] in _THINGS else key
        return _Path(".".join(filter(None, (self.place, key))), ".".join(filter(None, (self.field, name))))


def between(before: Record, after: Record) -> list[Drift]:
    """Return every difference between two profiles, the most severe first, unknown and missing fields included."""
    drifts = []
    for path, kind, was, now in _all_differences(before, after, _Path()):
        severity, meaning = _meaning(path.field)
        if kind == NEW and path.field in ("partitions.*", "mpi.*"):
            severity, meaning = NOTE, "existing plans do not use it and stay valid"
        elif kind == NEW and severity == ERROR:
            severity = WARNING  # something was added
        drifts.append(Drift(path.place, kind, was, now, severity, meaning))
    default = [next(iter(profile.get("partitions") or ()), None) for profile in (before, after)]
    if default[0] != default[1] and None not in default:
        drifts.append(Drift("partitions", CHANGED, default[0], default[1], *_meaning("partitions")))
    return sorted(drifts, key=lambda drift: (_ORDER[drift.severity], drift.place, drift.kind))


def _meaning(field: str) -> tuple[str, str]:
    meanings = ((severity, meaning) for pattern, severity, meaning in _MEANINGS if re.search(pattern, field))
    return next(meanings, UNKNOWN)


_Difference = tuple[_Path, str, Any, Any]


def _all_differences(before: Record, after: Record, above: _Path) -> Iterator[_Difference]:
    for key in sorted(set(before) | set(after)):
        path = above.below(key)
        was, now = before.get(key), after.get(key)
        if was == now or (was in _NOTHING and now in _NOTHING):
            continue
        if isinstance(was, dict) and isinstance(now, dict) and "dynamic" not in was:
            yield from _all_differences(was, now, path)
        elif was in _NOTHING:
            yield path, NEW, None, now
        elif now in _NOTHING:
            yield path, GONE, was, None
        else:
            items = _of_lists(path, was, now) if isinstance(was, list) and isinstance(now, list) else ()
            # The lists differ only in their order, which expresses preference or a search order.
            yield from list(items) or [(path, CHANGED, was, now)]


def _of_lists(path: _Path, was: list[Any], now: list[Any]) -> Iterator[_Difference]:
    gone, new = [item for item in was if item not in now], [item for item in now if item not in was]
    if gone:
        yield path, GONE, gone, None
    if new:
        yield path, NEW, None, new


def _short(value: Any) -> str:
    """Return a value in a few words; a library is represented by its build ID."""
    if isinstance(value, dict) and isinstance(value.get("dynamic"), dict):
        return f"build id {value['dynamic'].get('build_id') or 'none'}"
    if isinstance(value, dict):
        shown = {key: each for key, each in value.items() if not isinstance(each, dict) and each not in _NOTHING}
        return ", ".join(f"{key} {_short(each)}" for key, each in shown.items())[:200]
    if isinstance(value, list):
        return ", ".join(map(_short, value))[:200]
    return str(value)[:200]


def resolved(profile: Record) -> Record:
    """Return a profile whose partitions include the shared top-level values that they do not override."""
    partitions = profile.get("partitions")
    if not partitions:
        return profile
    top = {key: profile[key] for key in SHARED if key in profile}
    result: dict[str, Any] = {key: value for key, value in profile.items() if key not in SHARED}
    if isinstance(partitions, dict):
        result["partitions"] = {
            name: {**own, **top, **{key: value for key, value in own.items() if value not in _NOTHING}}
            if isinstance(own, dict)
            else own
            for name, own in partitions.items()
        }
    return result
