"""The draft of a profile: facts with their source lines, and settings that a profile cannot express.

The first fact about a place is used; a later one that differs is noted.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from deployer.connected.ground.yaml_model import KeyPath, Problems
from deployer.connected.site_profile.model import Profile
from deployer.contract.base.json_records import Record
from deployer.contract.base.text import fault, printable

#: The most characters of a file's own text in a note, and the most notes in a draft. The rest is only counted.
_MAX_SHOWN, _MAX_NOTES = 120, 200
#: The most source lines to list for a value that several lines give.
_MAX_ORIGINS = 3


class FileLine(NamedTuple):
    """A line of an imported file.

    Attributes:
        file: its name, printable.
        line: 0: the whole file.
    """

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Unexpressed(NamedTuple):
    """A setting in a file that a profile cannot express.

    Attributes:
        kind: a short text that is the same for all such lines, for counting.
        text: the file's own text, printable and short.
        origin: the line that it came from.
    """

    kind: str
    text: str
    origin: FileLine

    def __str__(self) -> str:
        return f"{self.origin}: {self.kind}: {self.text}" if self.text else f"{self.origin}: {self.kind}"

    def record(self) -> Record:
        return {"file": self.origin.file, "line": self.origin.line, "kind": self.kind, "text": self.text}


class _Fact(NamedTuple):
    value: Any
    origins: list[FileLine]


class Draft:
    """Facts for one profile, by place. They may come from any number of files."""

    def __init__(self) -> None:
        self._facts: dict[KeyPath, _Fact] = {}
        self._notes: dict[Unexpressed, None] = {}

    def set(self, place: KeyPath, value: Any, origin: FileLine) -> None:
        """Add a fact. If the place already has another value, keep that and note ``value``."""
        known = self._facts.get(place)
        if known is None:
            self._facts[place] = _Fact(value, [origin])
        elif known.value == value:
            known.origins.append(origin)
        else:
            self.note(f"{'.'.join(place)} differs from {known.origins[0]}", _shown(value), origin)

    def get(self, *place: str) -> Any:
        """Return the value at a place, or None if unset."""
        known = self._facts.get(place)
        return known.value if known else None

    def note(self, kind: str, text: object, origin: FileLine) -> None:
        """Note a setting that the profile cannot express."""
        self._notes[Unexpressed(kind, _shown(text), origin)] = None

    @property
    def unexpressed(self) -> list[Unexpressed]:
        """Return the distinct notes."""
        return list(self._notes)

    def count(self) -> int:
        """Return the number of facts, without the description of the file itself."""
        return sum(place[0] not in ("format", "name", "description", "source") for place in self._facts)

    def finish(self) -> None:
        """Complete the draft. Nothing may be added afterwards.

        Facts that the profile's model rejects are removed and noted, with the reason.
        """
        while problems := self._problems():
            if not sum([self._drop(place, reason) for place, reason in problems]):
                raise RuntimeError(f"the draft lacks {problems[0]}")

    def _problems(self) -> list[tuple[KeyPath, str]]:
        """Return the places that the profile's model rejects, with the reasons."""
        found: list[tuple[KeyPath, str]] = []
        try:
            Profile.model_validate(self.tree())
        except ValidationError as error:
            for each in error.errors():
                place = tuple(map(str, each["loc"]))
                cause = (each.get("ctx") or {}).get("error")
                if isinstance(cause, Problems):
                    found += [((*place, *below), message) for below, message in cause.found]
                else:
                    found.append((place, str(cause or each["msg"])))
        return found

    def tree(self) -> dict[str, Any]:
        """Return the draft as nested mappings, in the order of the profile's model."""
        found: dict[str, Any] = {}
        ranks = {key: rank for rank, key in enumerate((*Profile.__annotations__, *Profile.model_fields)[::-1])}
        for place, fact in sorted(self._facts.items(), key=lambda item: -ranks.get(item[0][0], -1)):
            inner = found
            for word in place[:-1]:
                inner = inner.setdefault(word, {})
            if isinstance(fact.value, dict):
                inner.setdefault(place[-1], {}).update(copy.deepcopy(fact.value))
            else:
                inner[place[-1]] = copy.deepcopy(fact.value)
        notes = [str(each) for each in self.unexpressed[:_MAX_NOTES]]
        if len(self.unexpressed) > _MAX_NOTES:
            notes.append(f"and {len(self.unexpressed) - _MAX_NOTES} more that `profile import` prints")
        return {**found, "notes": notes} if notes else found

    def sources(self) -> dict[str, list[str]]:
        """Return the source lines of each fact, by its place."""
        return {".".join(place): [str(each) for each in fact.origins] for place, fact in self._facts.items()}

    def yaml(self) -> str:
        """Return the draft as YAML. A comment at each fact lists its source lines."""
        return "\n".join(["# yaml-language-server: $schema=schema.json", *self._lines((), self.tree(), "")]) + "\n"

    def _lines(self, above: KeyPath, tree: dict[str, Any], indent: str) -> Iterator[str]:
        for key, value in tree.items():
            place = (*above, key)
            if isinstance(value, dict) and value and place[0] != "source":
                yield f"{indent}{_written(key)}:{self._comment(place)}"
                yield from self._lines(place, value, indent + "  ")
            elif place == ("notes",):
                yield f"{indent}notes:"
                yield from (f"{indent}  - {_written(note)}" for note in value)
            else:
                yield f"{indent}{_written(key)}: {_written(value)}{self._comment(place)}"

    def _comment(self, place: KeyPath) -> str:
        fact = self._facts.get(place)
        origins = [str(each) for each in fact.origins if each.line] if fact else []
        if not origins:
            return ""
        more = " ..." if len(origins) > _MAX_ORIGINS else ""
        return f"  # {', '.join(origins[:_MAX_ORIGINS])}{more}"

    def _drop(self, place: KeyPath, reason: str) -> bool:
        """Remove the facts at and below ``place``, else its parent or siblings. Return False if nothing was found."""
        dropped = [known for known in self._facts if known[: len(place)] == place]
        dropped = dropped or [known for known in self._facts if place[: len(known)] == known][-1:]
        dropped = dropped or [known for known in self._facts if len(place) > 1 and known[:-1] == place[:-1]]
        for known in dropped:
            fact = self._facts.pop(known)
            text = f"{'.'.join(known)}: {_written(fact.value)}: {reason}"
            self.note("a value that a profile cannot have", text, fact.origins[0])
        return bool(dropped)


def _shown(value: object) -> str:
    text = printable(" ".join((value if isinstance(value, str) else _written(value)).split()))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _written(value: object) -> str:
    """Return a value as one line of YAML."""
    if isinstance(value, str) and fault(value):
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=2**31, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
