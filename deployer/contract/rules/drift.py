"""Drift: the differences between two site profiles, and what each one means.

Both are JSON objects of a profile, with all values in each partition (see ``resolved``).
"""

import re
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

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
_NOTHING: Tuple[Any, ...] = (None, "", [], {})

#: For each field of a profile, without the names of things: the severity of a change, and its meaning. The first
#: matching row counts. A test changes each field of the schema and requires a row that is correct for plans.
_MEANINGS = (
    (r"(^|\.)(format|description|notes|source)(\.|$)", NOTE, "documentation only: plans and bundles stay valid"),
    (r"^(extends|facts)(\.|$)", NOTE, "where the profile keeps its facts: their differences are listed too"),
    (r"^name$", WARNING, "plans are found by this name: make new plans"),
    (r"^workspace$", WARNING, "images and jobs go to another folder: make new plans and install there"),
    (r"^(modules|module_paths|scripts)$", WARNING, "jobs load other modules: make new plans"),
    (r"^policy\.account$", WARNING, "whether jobs must name an account: make new plans"),
    (r"^policy(\.|$)", ERROR, "the site allows other runtimes: check bundles again and make new plans"),
    (r"^scheduler\.version$", NOTE, "plans stay valid if the scheduler still has their PMI"),
    (r"^scheduler\.pmi$", ERROR, "with a missing PMI each rank runs alone: choose another PMI and make new plans"),
    (r"^scheduler\.account$", WARNING, "jobs without --account are charged to another account: make new plans"),
    (r"^scheduler(\.|$)", ERROR, "jobs are submitted in another way: make new plans"),
    (r"^mpi\.\*\.(files|links)(\.|$)", ERROR, "a file of this MPI was replaced: capture, check and make new plans"),
    (r"^mpi\.\*\.identity$", ERROR, "this MPI was replaced: run refuses older plans (mpi.host-drift): make new plans"),
    (r"^mpi\.\*\.module$", ERROR, "jobs load a module that may not be there: correct it and make new plans"),
    (r"^mpi\.\*\.environment(\.|$)", WARNING, "the site tunes this MPI in another way: make new plans"),
    (r"^mpi(\.|$)", ERROR, "jobs would bind what is not there, or another MPI: correct the profile and make new plans"),
    (r"^login\.(host|transfer|inbox)$", WARNING, "push and --site connect to another host; plans stay valid"),
    (r"^login\.python$", WARNING, "the site half is started with another Python: make new plans"),
    (r"^login\.(user_namespaces|fuse|runtimes)(\.|$)", NOTE, "exec and shell on the login node can use other means"),
    (r"^login(\.|$)", NOTE, "what install and push find on the login node has changed; plans stay valid"),
    (r"^partitions$", WARNING, "another partition is the default one: make new plans"),
    (r"^partitions\.\*$", WARNING, "jobs can no longer use this partition: make new plans"),
    (r"\.node\.cpu\.flags$", ERROR, "programs that use a missing instruction set crash: check bundles again"),
    (r"\.node\.cpu(\.|$)", NOTE, "only the processors' name: plans stay valid; instruction sets are under flags"),
    (r"\.node\.gpus(\.|$)", WARNING, "the nodes have other GPUs: check bundles again and make new plans"),
    (r"\.node(\.|$)", WARNING, "the node has another shape, so layouts differ: make new plans"),
    (r"\.nodes$", NOTE, "the number of nodes has changed: plans stay valid"),
    (r"\.max_(nodes|time)$", WARNING, "`run` uses the limits in the plan: make new plans"),
    (r"\.mpi$", ERROR, "jobs of this partition get another MPI: check bundles again and make new plans"),
    (r"\.(launcher|pmi)$", ERROR, "ranks are started in another way: check bundles again and make new plans"),
    (r"(^|\.)launch$", WARNING, "ranks start by another launcher: make new plans"),
    (r"(^|\.)mounts$", WARNING, "jobs see other folders of the site: make new plans, and pack again"),
    (r"\.(queue|qos|cluster|constraint|gpu_request|storage|parallel_environment|hosts)$", ERROR,
     "jobs request other nodes: make new plans"),
    (r"\.(exclusive|request_memory)$", WARNING, "jobs request another part of their nodes: make new plans"),
    (r"\.account(_suffix)?$", WARNING, "jobs are charged to another account: make new plans"),
    (
        r"\.(modules|module_paths|scripts|environment|directives)(\.|$)", WARNING,
        "the site sets up its jobs in another way: make new plans",
    ),
    (r"(^|\.)user_namespaces$", ERROR, "unprivileged containers need user namespaces: make new plans"),
    (r"(^|\.)fuse$", WARNING, "images in one file cannot be mounted without FUSE: make new plans"),
    (r"(^|\.)runtimes(\.|$)", ERROR, "plans may name a container runtime that is not there: make new plans"),
    (r"(^|\.)launchers$", WARNING, "the programs that start ranks have changed: make new plans"),
    (r"(^|\.)driver(\.|$)", WARNING, "the GPU's driver was replaced: check bundles again and make new plans"),
    (r"(^|\.)devices$", WARNING, "jobs see other devices of the nodes: make new plans"),
    (r"(^|\.)fabric(\.|$)", WARNING, "the network looks different, or jobs may fall back to TCP: make new plans"),
    (r"(^|\.)network(\.|$)", WARNING, "jobs on several nodes are compared with another speed: make new plans"),
    (r"(^|\.)(files|links)(\.|$)", WARNING, "a system library that jobs may get has changed: make new plans"),
    (r"(^|\.)glibc$", WARNING, "libraries that are bound into images may need this C library: check bundles again"),
    (r"(^|\.)page_size$", WARNING, "programs may not support the pages of this kernel: check bundles again"),
    (r"(^|\.)filesystems(\.|$)", WARNING, "room for images or data has changed: make new plans"),
    (r"(^|\.)(libzstd|pythons)(\.|$)", WARNING, "tools that `install` and `run` need have changed on this machine"),
    (r"(^|\.)architecture$", ERROR, "the architecture has changed: make new plans, and check bundles again"),
    (r"(^|\.)(os|kernel)$", NOTE, "the nodes' system was updated: check bundles again if other facts also changed"),
)  # fmt: skip
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

    def record(self) -> Record:
        return dict(self._asdict())

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

    @property
    def holds_things(self) -> bool:
        return self.field.rpartition(".")[2] in _THINGS

    def below(self, key: str) -> "_Path":
        name = _ANY if self.holds_things else key
        return _Path(".".join(filter(None, (self.place, key))), ".".join(filter(None, (self.field, name))))


def between(before: Record, after: Record) -> List[Drift]:
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


def _meaning(field: str) -> Tuple[str, str]:
    meanings = ((severity, meaning) for pattern, severity, meaning in _MEANINGS if re.search(pattern, field))
    return next(meanings, UNKNOWN)


_Difference = Tuple[_Path, str, Any, Any]


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


def _of_lists(path: _Path, was: List[Any], now: List[Any]) -> Iterator[_Difference]:
    gone, new = [item for item in was if item not in now], [item for item in now if item not in was]
    if gone:
        yield path, GONE, gone, None
    if new:
        yield path, NEW, None, new


def _short(value: Any) -> str:
    """Return a value in a few words; a library is represented by its build ID."""
    if isinstance(value, dict) and isinstance(value.get("dynamic"), dict):
        return "build id %s" % (value["dynamic"].get("build_id") or "none")
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
    result: Dict[str, Any] = {key: value for key, value in profile.items() if key not in SHARED}
    if isinstance(partitions, dict):
        result["partitions"] = {
            name: {**own, **top, **{key: value for key, value in own.items() if value not in _NOTHING}}
            if isinstance(own, dict)
            else own
            for name, own in partitions.items()
        }
    return result
