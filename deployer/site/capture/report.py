"""A capture as files: a JSON profile short enough to review, and a separate file with the facts of libraries."""

import hashlib
import json
import os
from typing import Any, Dict, NamedTuple, Optional, Sequence

from deployer.contract.base import facts, json_records
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.base.json_records import Record
from deployer.system import files

_MAX_BYTES = 32 * 1024 * 1024
_WIDTH = 110
#: Fields whose value comes from the first of several captures.
_FIRST = ("name", "description", "source")


class CaptureReport(NamedTuple):
    """A capture.

    Attributes:
        profile: the site profile.
        facts: the content of the facts file, or None.
    """

    profile: Record
    facts: Optional[Record]


def write_report(path: str, captured: CaptureReport) -> None:
    """Write the profile to ``path`` and the facts next to it; each file is either complete or does not exist."""
    profile = dict(captured.profile)
    profile.pop("facts", None)
    if captured.facts is not None:
        data = json_records.dumps(captured.facts)
        place = facts_path(path)
        with files.published(place) as stream:
            stream.write(data)
        named = {"file": os.path.basename(place), "sha256": hashlib.sha256(data).hexdigest()}
        profile = _with_facts_named(profile, named)
    files.write_text(path, pretty(profile) + "\n")


def read(path: str) -> CaptureReport:
    """Read a profile and its facts. Raises UsageError, and IntegrityError if the facts belong to another profile."""
    profile = _json(_bytes(path), path)
    if "schema" in profile:
        raise UsageError("{} is not a profile but a record of {}".format(path, profile["schema"]))
    named = profile.get("facts")
    if not isinstance(named, dict):
        return CaptureReport(profile, None)
    place = os.path.join(os.path.dirname(path), str(named.get("file")))
    data = _bytes(place)
    if hashlib.sha256(data).hexdigest() != named.get("sha256"):
        raise IntegrityError(f"{place} is not the file of facts for {path}", "use both files of one capture")
    facts.read(data, place)
    return CaptureReport(profile, _json(data, place))


def whole(captured: CaptureReport) -> Record:
    """Return the profile with the facts inserted."""
    profile = dict(captured.profile)
    trees: Dict[str, Any] = captured.facts or {}
    for group in ("mpi", "partitions"):
        known = trees.get(group) or {}
        there = profile.get(group) or {}
        if isinstance(there, dict) and isinstance(known, dict):
            profile[group] = {name: dict(value, **(known.get(name) or {})) for name, value in there.items()}
    if isinstance(profile.get("login"), dict) and trees.get("login"):
        profile["login"] = dict(profile["login"], **trees["login"])
    return profile


def merge(captures: Sequence[CaptureReport]) -> CaptureReport:
    """Merge several captures of one site: the login node's first, then those of compute nodes.

    Later captures override earlier ones; contradictions are added to the notes.
    """
    profile: Record = {}
    trees: Record = {}
    notes = []
    for each in captures:
        notes += [note for note in each.profile.get("notes", []) if note not in notes]
        notes += _contradictions(profile, each.profile)
        profile = dict(_over(profile, each.profile), **{key: profile[key] for key in _FIRST if key in profile})
        for group, known in (each.facts or {}).items():
            if group in ("mpi", "partitions"):
                trees[group] = dict(trees.get(group) or {}, **known)
            elif known is not None:
                trees[group] = known
    if notes:
        profile["notes"] = notes
    if not trees:
        return CaptureReport(profile, None)
    return CaptureReport(
        profile, facts.record(trees.get("login"), trees.get("partitions") or {}, trees.get("mpi") or {})
    )


def _contradictions(before: Record, after: Record) -> "list[str]":
    found = []
    for name, mpi in (after.get("mpi") or {}).items():
        other = (before.get("mpi") or {}).get(name, {})
        if other.get("identity", mpi.get("identity")) != mpi.get("identity"):
            found.append(f"mpi.{name}: {_where(other)} and {_where(mpi)} have different files of it")
    return found


def _where(record: Record) -> str:
    return str(record.get("source", {}).get("where", "?"))


def _over(base: Record, over: Record) -> Record:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = _over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def facts_path(path: str) -> str:
    """Return the path of the facts file for the profile ``path``."""
    stem = path[: -len(".json")] if path.endswith(".json") else path
    return stem + ".facts.json"


def pretty(value: Any, indent: int = 0) -> str:
    """Return human-readable JSON: a value on one line if it fits, otherwise one key per line."""
    flat = json.dumps(value)
    inner = isinstance(value, dict) and any(isinstance(each, (dict, list)) for each in value.values())
    if not isinstance(value, (dict, list)) or (len(flat) + indent < _WIDTH and not inner):
        return flat
    space = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [f"{space}{json.dumps(key)}: {pretty(each, indent + 2)}" for key, each in value.items()]
        return "{{\n{}\n{}}}".format(",\n".join(parts), " " * indent)
    return "[\n{}\n{}]".format(",\n".join(space + pretty(each, indent + 2) for each in value), " " * indent)


def _with_facts_named(profile: Record, named: Record) -> Record:
    """Return the profile with the name of its facts file after its source."""
    result: Record = {}
    for key, value in profile.items():
        result[key] = value
        if key == "source":
            result["facts"] = named
    result.setdefault("facts", named)
    return result


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise UsageError("%s has more than %d bytes, the most for a capture" % (path, _MAX_BYTES))
    return data


def _json(data: bytes, path: str) -> Record:
    try:
        record = json_records.parse(data, path, limit=facts.MAX_MEMORY)
    except UsageError as error:
        hint = "a YAML profile: on the laptop, `deployer profile show SITE --json --files > FILE` writes it as JSON"
        raise UsageError(error.message, hint) from error
    if not isinstance(record, dict):
        raise UsageError(f"{path} is not a profile")
    return record
