"""A capture as files: a JSON profile short enough to review, and a separate file with the facts of libraries."""

import hashlib
import json
import os
from typing import Any, List, NamedTuple, Optional, Sequence

from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.base.json_records import Record
from deployer.contract.site import facts
from deployer.site.capture import redact
from deployer.system import files

_MAX_BYTES = 32 * 1024 * 1024
_WIDTH = 110
#: Fields whose value comes from the first of several captures.
_FIRST = ("name", "description", "source")
#: Groups of a profile whose items have facts.
_GROUPS = ("partitions", "mpi")


class SiteCapture(NamedTuple):
    """A capture.

    Attributes:
        profile: the site profile.
        facts: the content of the facts file, or None.
    """

    profile: Record
    facts: Optional[Record]

    def write(self, path: str) -> None:
        """Write the profile to ``path`` and the facts next to it; each file is either complete or does not exist."""
        profile = {key: value for key, value in self.profile.items() if key != "facts"}
        if self.facts is not None:
            data = json_records.dumps(self.facts)
            place = facts_path(path)
            files.write_bytes(place, data)
            keys = list(profile)
            first = keys[: keys.index("source") + 1] if "source" in profile else keys
            named = {"file": os.path.basename(place), "sha256": hashlib.sha256(data).hexdigest()}
            profile = {**{key: profile[key] for key in first}, "facts": named, **profile}
        files.write_text(path, pretty(profile) + "\n")

    def redacted(self, hidden: Sequence[str]) -> "SiteCapture":
        """Return the capture without confidential names and without the words in ``hidden``."""
        return SiteCapture(*map(redact.of(self.profile, hidden), self))


def read(path: str) -> SiteCapture:
    """Read a profile and its facts. Raises UsageError, and IntegrityError if the facts belong to another profile."""
    profile = _json(_bytes(path), path)
    if "schema" in profile:
        raise UsageError("{} is not a profile but a record of {}".format(path, profile["schema"]))
    named = profile.get("facts")
    if not isinstance(named, dict):
        return SiteCapture(profile, None)
    place = os.path.join(os.path.dirname(path), str(named.get("file")))
    data = _bytes(place)
    if hashlib.sha256(data).hexdigest() != named.get("sha256"):
        raise IntegrityError(f"{place} is not the file of facts for {path}", "use both files of one capture")
    facts.read(data, place)
    return SiteCapture(profile, _json(data, place))


def merge(captures: Sequence[SiteCapture]) -> SiteCapture:
    """Merge several captures of one site: the login node's first, then those of compute nodes.

    Later captures override earlier ones; contradictions are added to the notes.
    """
    profile: Record = {}
    notes: List[str] = []
    for each in captures:
        notes += [note for note in each.profile.get("notes", []) if note not in notes]
        notes += _contradictions(profile, each.profile)
        profile = dict(_over(profile, each.profile), **{key: profile[key] for key in _FIRST if key in profile})
    if notes:
        profile["notes"] = notes
    trees = [each.facts for each in captures if each.facts]
    if not trees:
        return SiteCapture(profile, None)
    login = next((tree["login"] for tree in reversed(trees) if tree.get("login") is not None), None)
    groups = ({name: item for tree in trees for name, item in (tree.get(key) or {}).items()} for key in _GROUPS)
    return SiteCapture(profile, facts.record(login, *groups))


def _contradictions(before: Record, after: Record) -> List[str]:
    found = []
    for name, mpi in (after.get("mpi") or {}).items():
        other = (before.get("mpi") or {}).get(name, {})
        if other.get("identity", mpi.get("identity")) != mpi.get("identity"):
            places = [each.get("source", {}).get("where", "?") for each in (other, mpi)]
            found.append("mpi.{}: {} and {} have different files of it".format(name, *places))
    return found


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


def _bytes(path: str) -> bytes:
    return files.read_bytes(path, limit=_MAX_BYTES, piped=True)


def _json(data: bytes, path: str) -> Record:
    try:
        record = json_records.parse(data, path, limit=facts.MAX_MEMORY)
    except UsageError as error:
        hint = "a YAML profile: on the laptop, `deployer profile show SITE --json --files > FILE` writes it as JSON"
        raise UsageError(error.message, hint) from error
    if not isinstance(record, dict):
        raise UsageError(f"{path} is not a profile")
    return record
