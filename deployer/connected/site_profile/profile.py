"""Site profiles as files: inheritance with ``extends``, the line of each value, and the file of facts.

With ``extends``, a file is merged over another: mappings are merged key by key, other values are replaced, and null
removes a value. Facts of libraries would make a profile too long to review, so capture writes them into a second
file. The profile refers to that file by name and SHA-256.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from deployer.connected.ground.yaml_model import Document, KeyPath, Problem, checked
from deployer.connected.site_profile import drift
from deployer.connected.site_profile.machine import Driver, Fabric, NodeGpus
from deployer.connected.site_profile.model import Lacking, Mpi, Partition, Profile, SiteFiles, SiteScheduler, age
from deployer.connected.site_profile.search import CURATED, find
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.base.guess import guess
from deployer.contract.base.json_records import Fields
from deployer.contract.site import facts as captured
from deployer.system import files

__all__ = [
    "CURATED", "Driver", "Fabric", "Lacking", "Mpi", "NodeGpus", "Partition", "Profile", "Resolved",
    "SiteFiles", "SiteScheduler", "age", "comparable", "known", "load", "of_host", "resolve", "schema",
]  # fmt: skip

_T = TypeVar("_T")

_WHAT = "a site profile"
_MAX_BASES = 8
#: The size limit in bytes. A file of facts has about 1 MB per MPI.
_MAX_FACTS = 32 * 1024 * 1024


class Resolved(NamedTuple):
    """A profile merged from its files.

    Attributes:
        paths: its files, starting with the requested one.
        layers: finds the origin of each value.
    """

    profile: Profile
    paths: list[Path]
    layers: "Layers"


class Layers:
    """Merged documents, each over the previous one. Finds the document of each value."""

    def __init__(self, documents: list[Document]) -> None:
        self._documents = documents
        self.problems = [problem for document in documents for problem in document.problems]

    def at(self, place: KeyPath) -> tuple[Path, int]:
        """Return file and line of the value at ``place``, or of the innermost existing value around it."""
        return self._of(place).at(place)

    def written(self, place: KeyPath) -> str:
        """Return a scalar exactly as its file has it, and an empty text for other values."""
        return self._of(place).written(place)

    def _of(self, place: KeyPath) -> Document:
        around = (place[:length] for length in range(len(place), -1, -1))
        return next(each for outer in around for each in reversed(self._documents) if each.has(outer))


def load(site: str) -> Profile:
    """Return the profile ``site``: a name that ``search`` finds, or the path of a YAML or JSON file.

    Raises:
        UsageError: the profile does not exist, or it has errors.
    """
    return resolve(site).profile


def resolve(site: str) -> Resolved:
    """Return the profile ``site`` with the origin of its values.

    Raises:
        UsageError: the profile does not exist, or it has errors. All errors are listed with file and line.
        IntegrityError: the SHA-256 of the file of facts differs from the one in the profile.
    """
    paths = [find(site)]
    documents = [Document(paths[0], _WHAT)]
    raws = [documents[0].mapping()]
    while isinstance(raws[-1].get("extends"), str):
        file, line = documents[-1].at(("extends",))
        try:
            base = find(raws[-1]["extends"], paths[-1], paths)
            if not base.is_file():
                raise UsageError(f"there is no file {base}")
        except UsageError as error:
            raise UsageError(f"{file}:{line}: extends: {error.message}", error.hint) from error
        if base.resolve() in {path.resolve() for path in paths} or len(paths) > _MAX_BASES:
            text = f"{file}:{line}: extends: {base} is circular, or leads through more than {_MAX_BASES} files"
            raise UsageError(text)
        paths.append(base)
        documents.append(Document(base, _WHAT))
        raws.append(documents[-1].mapping())
    layers = Layers(documents[::-1])
    raw: dict[str, Any] = {}
    for each, document in zip(reversed(raws), reversed(documents), strict=True):
        layers.problems += _misspelled(raw, each, document)
        raw = merged(raw, each)
    named = next((at for at, each in enumerate(raws) if isinstance(each.get("facts"), dict)), None)
    if named is not None:
        raw = _with_facts(raw, paths[named])
    return Resolved(checked(Profile, raw, layers, paths[0]), paths, layers)


def of_host(host: str, hint: str, python: Sequence[str] = (), workspace: str = "~") -> Profile:
    """Return a minimal profile for a site whose host alone is known. Raises UsageError for an invalid host."""
    login = {"host": host, **({"python": list(python)} if python else {})}
    source = {"kind": "unverified", "where": "the command line"}
    record = {"format": 1, "name": "unknown", "source": source, "login": login, "workspace": workspace}
    try:
        return Profile.model_validate(record)
    except ValueError as error:
        raise UsageError(f"{host!r} is not a host for ssh", hint) from error


def schema() -> dict[str, Any]:
    """Return the JSON schema of profiles. It requires only the keys that cannot be inherited with ``extends``."""
    found = Profile.model_json_schema(mode="validation")
    found["required"] = ["format", "name"]
    return found


def comparable(profile: Profile) -> dict[str, Any]:
    """Return a profile as a JSON object for ``drift``: each partition with all its facts."""
    return drift.resolved(profile.model_dump(mode="json"))


def known(value: _T | None, profile: Profile, *place: str) -> _T:
    """Return ``value``, a required fact at ``place``. Raises Lacking if it is None."""
    if value is None:
        raise Lacking(
            f"the profile of {profile.name} lacks {'.'.join(place)}",
            f"`deployer profile validate {profile.name}` lists all that is missing, with lines to paste",
            place,
        )
    return value


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return ``over`` merged over ``base``: mappings are merged, other values are replaced, null removes a value."""
    result = {key: value for key, value in base.items() if over.get(key, value) is not None}
    for key, value in over.items():
        if isinstance(value, dict):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, dict) else {}, value)
        elif value is not None:
            result[key] = value
    return result


#: The keys that a new entry of a group must have. An entry without them changes an existing entry.
_NEEDED = {"partitions": ("node",), "mpi": ("family", "prefix")}


def _misspelled(base: dict[str, Any], over: dict[str, Any], document: Document) -> Iterator[Problem]:
    """Yield an error for each partition and MPI that a profile changes but the extended profile lacks."""
    for group, needed in _NEEDED.items():
        below, above = base.get(group), over.get(group)
        if not (isinstance(below, dict) and isinstance(above, dict)):
            continue
        for name, value in above.items():
            near = guess(str(name), map(str, below)) if name not in below else ""
            if near and isinstance(value, dict) and not all(value.get(key) for key in needed):
                text = f"what it extends has no such entry{near}; a new one needs {' and '.join(needed)}"
                yield Problem(*document.at((group, str(name))), (group, str(name)), text)


def _with_facts(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return ``raw`` with the facts from its file of facts, limited to the entries in ``raw``."""
    named = raw["facts"]
    if not isinstance(named.get("file"), str) or not isinstance(named.get("sha256"), str):
        return raw  # the model reports the error
    place = path.parent / named["file"]
    hint = "the profile names it under facts: it belongs beside the profile"
    data = files.read_bytes(str(place), hint, _MAX_FACTS)
    if hashlib.sha256(data).hexdigest() != named["sha256"]:
        hint = "take both from one capture, or capture again"
        raise IntegrityError(f"{place} is not the file of facts that {path} names", hint)
    found = captured.read(data, str(place))
    result = dict(raw, login=_filled(raw.get("login"), found.login))
    for group, known in (("mpi", found.mpi), ("partitions", found.partitions)):
        there = raw.get(group)
        if isinstance(there, dict):
            result[group] = {name: _filled(value, known.get(name)) for name, value in there.items()}
    return result


def _filled(value: Any, tree: Fields | None) -> Any:
    if not isinstance(value, dict) or tree is None:
        return value
    return {**{key: tree.record[key] for key in captured.KEYS if key in tree.record}, **value}
