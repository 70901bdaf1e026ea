"""The JSON schemas of what commands print with --json, made from the types of their records.

Where a command makes its record without a type, the keys are here. `python -m scripts.output_schemas` writes the file
that `deployer schema --output` reads; a test compares it, and tests check every record that they print.
"""

import json
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from deployer.connected.bundle.about.diff import Difference
from deployer.connected.check.check import Verdict
from deployer.connected.deploy.deploy import Deployed
from deployer.connected.deploy.packing import DeployStage
from deployer.connected.fetch.recorder import Refusal
from deployer.connected.fetch.snapshot import HubSnapshot
from deployer.connected.ground.caches import CacheUsage, Pruned
from deployer.connected.ground.sign import Signed
from deployer.connected.ground.yaml_model import described
from deployer.connected.image.build import BuildResult
from deployer.connected.site_profile.drift import Drift
from deployer.connected.site_profile.gaps import Gap
from deployer.connected.transfer.capture_site import CapturedPartition
from deployer.connected.transfer.push import FolderPush, Pushed
from deployer.connected.transfer.push_plan import PushedPlan
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.bundle.scan import Scan, Vulnerability
from deployer.contract.proof.measured_runs import Run
from deployer.contract.rehearsal.rehearsal import Reached, Rehearsal
from deployer.contract.rules.findings import Finding
from deployer.contract.rules.verdict import Checked
from deployer.site.doctor.climb import Step
from deployer.site.install.gc import Garbage
from deployer.site.install.squash import Squashed
from deployer.site.jobs.jobs import Status
from deployer.site.run.where import ImagePlace
from deployer.site.storage.events import Event
from deployer.site.storage.store import Receipt
from scripts.reference import Schema

#: The types of several keys, with spaces between the keys; ``?`` is before those that may be missing.
_Keys = Mapping[str, Any]

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", Path: "string"}
_TEXT = str | None
_STAMP: _Keys = {"schema": str, "format min_reader": int}
_FINDING: _Keys = {"code severity subject message remedy": str, "?job": str}
_PAGE: _Keys = {"page": str}
_JOBS: _Keys = {"jobs": dict[str, str]}  # of a dry run
#: The keys that ``record`` of a type leaves out, and those that it adds or changes.
_OWN: Mapping[Any, tuple[str, _Keys]] = {
    BuildResult: ("", {"?others": list[BuildResult]}),
    CacheUsage: ("cache", {"name what folder pruned_by": str, "cap": int | None, "used": int}),
    Deployed: ("verdict", {"verdict": Verdict | None, "stages": list[DeployStage], "status": Status | None}),
    Gap: ("", {"place": str}),
    Manifest: ("", {**_STAMP, "?digest": str, "segments": int, "?keys": list[str] | None, "?packages": Any}),
    Pushed: ("then", {"squashfs": Squashed | None}),
    Reached: ("finding", {**_FINDING, "file": _TEXT, "line": int | None, "stack": list[list[Any]]}),
    Receipt: ("", {**_STAMP, "folder": str, "current": bool, "uses": dict[str, int]}),
    Rehearsal: ("", {**_STAMP, "verdict folder engine": str}),
    Run: ("", {"samples": int, "mean efficiency": float, "interval_95 container_to_native": float | None}),
    Scan: ("", {"scan": str, "key": _TEXT, "open": dict[str, int]}),
    Signed: ("", {"key": str}),
    Squashed: ("tool", {"mksquashfs": {"whose path version": str}}),
    Status: ("launch figures tasks", {
        "job bundle version site log": str, "?task": int, "?parameters": dict[str, Any], "?figures": dict[str, float],
        "?tasks": list[Status], "?repeated ?own": bool, "?continued_by": _TEXT, "?created": int, "?fetched": _TEXT,
        "?result": dict[str, Any] | None,
    }),
    Verdict: ("checked plan", {
        **get_type_hints(Checked), "way": str, "runtimes": [{"name": str, "against": _TEXT}],
        "memory_copies": list[str], "?others": list[Verdict],
    }),
}  # fmt: skip
#: Types whose ``record`` leaves out what has its default value.
_SHORT = (Finding, Job, Vulnerability)
_COUNTS = dict[str, tuple[int, int]]
_PACKED: _Keys = {
    "bundle name version digest": str, "size raw_size entries frames frames_reused": int, "changes": dict[str, int],
    "plans": dict[str, Checked],
}  # fmt: skip
_VERIFIED: _Keys = {"name version digest": str, "keys": list[str], "signers": list[str]}
_INSTALLED: _Keys = {
    "folder digest bundle": str, "known": bool, "warnings": list[str], "seconds": float, "squashfs": Squashed | None,
}  # fmt: skip
#: The forms of the record of each command.
COMMANDS: Mapping[str, Sequence[Any]] = {
    "build": [BuildResult],
    "cache list": [{"caches": list[CacheUsage]}],
    "cache prune": [{"dry_run": bool, "removed": list[Pruned]}],
    "cancel": [{"job job_id folder": str, "cancelled": bool}],
    "capture": [
        {"profile captured facts name": str, "seconds": float, "partitions": list[CapturedPartition],
         "decisions": [{"key why": str, "value": Any}], "missing notes": list[str],
         "differences": list[Drift]},
        {"profile": _TEXT, "facts": str, "notes": list[str], "?partitions": list[CapturedPartition]},
        _JOBS,
    ],
    "check": [Verdict],
    "config": [{"file": str, "settings": dict[str, Any]}],
    "deploy": [Deployed],
    "diff": [Difference],
    "doctor": [{**_STAMP, "healthy": bool, "broken": _TEXT, "exit_code": int, "rungs": list[Step]}],
    "explain": [[{"code topic": str, "notes": list[str], "?what ?why ?remedy ?evidence ?example": str}]],
    "fetch": [{
        "job folder ending": str, "received": int, "hosts": dict[str, int], "licences": dict[str, str],
        "downloads": [{"url sha256": str, "size": int}], "refusals": list[Refusal],
        "kept": {"home job": _COUNTS, "left": list[str]}, "replayed runs_code changed": list[str],
    }, {"data": list[HubSnapshot]}],
    "gc": [{"dry_run": bool, "garbage": list[Garbage]}, {"dry_run": bool, "job_folders": list[Any]}],
    "init": [{"folder": str, "files": list[str]}],
    "inspect": [
        Manifest, _PAGE, {"packages": list[str]},
        {"kind mode path": str, "size": int, "sha256 target": _TEXT},
    ],
    "install": [_INSTALLED],
    "jobs": [{"jobs": list[Status], "unreadable": list[str]}, {"tasks": list[Status]}],
    "join": [{"root store owner": str, "uid": int}],
    "lint": [{"findings": list[Finding], "image": str}],
    "list": [{"images": list[Receipt]}],
    "log": [{"events": list[Event]}],
    "pack": [{**_PACKED, "?others": [_PACKED]}],
    "plan": [{"plan site": str, "verdict": _TEXT, "partitions": dict[str, str]}],
    "profile diff": [{"differences": list[Drift]}],
    "profile list": [{"profiles": list[str], "about": dict[str, Any]}],
    "profile publish": [{"files": list[str]}],
    "profile show": [dict[str, Any]],
    "profile validate": [{"valid": bool, "names": list[str], "missing": dict[str, list[Gap]]}],
    "push": [Pushed, FolderPush, PushedPlan],
    "pyz": [{"path digest": str, "size": int}],
    "receipt": [{"receipt": str, "segments": int}],
    "receive": [_INSTALLED, {"folder": None, "missing": list[str]}],
    "rehearse": [Rehearsal],
    "remove": [{"removed": str, "?left": list[str]}],
    "report": [{**_STAMP, "runs": list[Run], "left_out": [{"job reason": str}]},
               {"tasks": list[Status]}, _PAGE],
    "reproduce": [{
        "bundle layer layer_again": str, "reproduced": bool, "settings builder": list[str], "packages": list[Any],
        "files": [{"path change reason": str}],
    }],
    "result": [Status],
    "retry": [{"job": str, "job_id": _TEXT, "tasks": list[int], "active": int}],
    "run": [Status, {"folder script": str}],
    "scan": [Scan],
    "sign": [Signed],
    "squash": [{"folder": str, "squashfs": Squashed | None}],
    "status": [Status],
    "take-plan": [{"plan bundle": str, "signers warnings": list[str]}],
    "take-scan": [{"scan bundle": str}],
    "verify": [_VERIFIED],
    "where": [ImagePlace],
}  # fmt: skip


def schemas() -> dict[str, Schema]:
    """Return the JSON schema of each command's record."""
    return {command: _schema(command, forms) for command, forms in COMMANDS.items()}


def _schema(command: str, forms: Sequence[Any]) -> Schema:
    shown = _Shown()
    found = [shown.of(form) for form in forms]
    top = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"deployer {command} --json"}
    return {**top, **(found[0] if len(found) == 1 else {"anyOf": found}), "$defs": shown.types}


def text() -> str:
    """Return the text of the file that the package has: a line per command."""
    lines = (f"{json.dumps(command)}: {json.dumps(found)}" for command, found in schemas().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


class _Shown:
    """The schemas of types, each in ``types`` by the name of its class."""

    def __init__(self) -> None:
        self.types: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type, of the keys of a record, or of a list with one of them."""
        if isinstance(kind, Mapping):
            return self._keys(kind)
        if isinstance(kind, list):
            return {"type": "array", "items": self.of(kind[0])}
        if kind in _SIMPLE or kind is None:
            return {"type": _SIMPLE[kind] if kind else "null"}
        if hasattr(kind, "_fields"):
            return self._record(kind)
        origin, inner = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(each) for each in inner]}
        if origin is None:
            return {}
        if issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        return {"type": "array", "items": self.of(inner[0])}

    def _record(self, kind: Any) -> Schema:
        name = kind.__name__
        if name not in self.types:
            self.types[name] = {}  # it may contain itself
            without, own = _OWN.get(kind, ("", {}))
            may_lack = kind._field_defaults if kind in _SHORT else ()
            hints = {
                "?" * (key in may_lack) + key: hint
                for key, hint in get_type_hints(kind, localns={"Verdict": Verdict}).items()
            }
            kept = {key: hint for key, hint in hints.items() if key not in without.split()}
            words = dict(described(kind))
            self.types[name] = self._keys({**kept, **own}, words)
        return {"$ref": f"#/$defs/{name}"}

    def _keys(self, keys: _Keys, words: Mapping[str, str] = {}) -> Schema:
        """Return the schema of an object, whose keys may have descriptions in ``words``."""
        each = {key: self.of(kind) for several, kind in keys.items() for key in several.split()}
        properties = {
            name: {**kind, "description": words[name]} if name in words else kind
            for name, kind in ((key.lstrip("?"), kind) for key, kind in each.items())
        }
        required = [key for key in each if not key.startswith("?")]
        return {"type": "object", "properties": properties, "required": required}


#: Where the package has the schemas.
FILE = Path(__file__).parents[1] / "deployer" / "cli" / "laptop" / "outputs.json"

if __name__ == "__main__":
    FILE.write_text(text())
