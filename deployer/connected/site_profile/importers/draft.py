"""The draft of a profile: facts with the line that each comes from, and what a file says that a profile cannot express.

All importers write to one draft, so that several files describe one site. The first fact about a place counts; a later
one that differs is noted.
"""

import copy
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from deployer.connected.ground.yaml_model import KeyPath, Problems
from deployer.connected.site_profile.model import Profile
from deployer.contract.json_records import Record
from deployer.contract.text import fault, printable

#: Characters of a file's own text in a note, and notes in a draft. The rest is counted.
_MAX_SHOWN, _MAX_NOTES = 120, 200
#: Lines that are named after a value that several lines gave.
_MAX_ORIGINS = 3
#: Facts without which their neighbours cannot be written, with the words of the note about these.
_NEEDED = {
    ("scheduler", "kind"): "the batch system is not known",
    ("policy", "runtimes"): "no allowed runtime is known",
}


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
    """Something that a file says and a profile cannot express.

    Attributes:
        kind: a few words that are the same for all such lines, for counting.
        text: the file's own text, printable and short.
        origin: its line.
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
    """Facts for one profile, by place, from any number of files."""

    def __init__(self) -> None:
        self._facts: dict[KeyPath, _Fact] = {}
        self._listed: dict[KeyPath, set[str]] = {}  # by a list's place: its values, as text
        self._for_all: list[tuple[KeyPath, Any, FileLine, frozenset[str]]] = []
        self._notes: dict[Unexpressed, None] = {}

    def set(self, place: KeyPath, value: Any, origin: FileLine) -> None:
        """Add a fact. If the place has another value, that one stays and ``value`` is noted."""
        known = self._facts.get(place)
        if known is None:
            self._facts[place] = _Fact(value, [origin])
        elif known.value == value:
            known.origins.append(origin)
        else:
            self.note(f"{'.'.join(place)} differs from {known.origins[0]}", _shown(value), origin)

    def add(self, place: KeyPath, values: Iterable[Any], origin: FileLine) -> None:
        """Append values to the list at a place."""
        if place not in self._listed:
            known = self._facts.get(place)
            if known:
                self._facts[place] = known._replace(value=list(known.value))  # not to change another's list
            self._listed[place] = set(map(repr, known.value if known else ()))
        listed = self._listed[place]
        new = [value for value in values if repr(value) not in listed]
        if new:
            fact = self._facts.setdefault(place, _Fact([], []))
            fact.value.extend(new)
            fact.origins.append(origin)
            listed.update(map(repr, new))

    def for_all(self, place: KeyPath, value: Any, origin: FileLine, but: Iterable[str] = ()) -> None:
        """Add a fact about each partition, also about those that are added later. A partition's own fact counts.

        Args:
            but: partitions that it is not about.
        """
        self._for_all.append((place, value, origin, frozenset(but)))

    def get(self, *place: str) -> Any:
        """Return the value at a place, or None."""
        known = self._facts.get(place)
        return known.value if known else None

    def replace(self, place: KeyPath, value: Any) -> None:
        """Give a known fact another value, of the same origin."""
        self._facts[place] = self._facts[place]._replace(value=value)
        self._listed.pop(place, None)

    def note(self, kind: str, text: object, origin: FileLine) -> None:
        """Note what the profile cannot express."""
        self._notes[Unexpressed(kind, _shown(text), origin)] = None

    @property
    def unexpressed(self) -> list[Unexpressed]:
        """Return the notes, each once."""
        return list(self._notes)

    def partitions(self) -> list[str]:
        """Return the names of the partitions, the default first."""
        return list(dict.fromkeys(place[1] for place in self._facts if place[0] == "partitions" and len(place) > 1))

    def count(self) -> int:
        """Return the number of facts, without the description of the file itself."""
        return sum(place[0] not in ("format", "name", "description", "source") for place in self._facts)

    def finish(self) -> None:
        """Complete the draft: nothing may be added after it.

        What the profile's model does not accept is removed and noted, with the reason.
        """
        names = self.partitions()
        for place, value, origin, but in self._for_all:
            for name in [each for each in names if each not in but]:
                there = ("partitions", name, *place)
                if isinstance(value, list):
                    self.add(there, value, origin)
                elif there not in self._facts:
                    self.set(there, value, origin)
            if not names:
                self.note(f"a fact about all partitions, and none is named: {'.'.join(place)}", value, origin)
        for needed, kind in _NEEDED.items():
            if needed not in self._facts:
                for place in [each for each in self._facts if each[:-1] == needed[:-1]]:
                    fact = self._facts.pop(place)
                    self.note(f"{kind}: {'.'.join(place)}", fact.value, fact.origins[0])
        while problems := self._problems():
            # From the end, so that the numbers of a list's members stay right.
            if not sum([self._drop(place, reason) for place, reason in reversed(problems)]):
                raise RuntimeError(f"the draft lacks {problems[0]}")

    def _problems(self) -> list[tuple[KeyPath, str]]:
        """Return the places that the profile's model does not accept, with the reasons."""
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
        """Return the lines of each fact, by its place."""
        return {".".join(place): [str(each) for each in fact.origins] for place, fact in self._facts.items()}

    def yaml(self) -> str:
        """Return the draft as YAML, with a comment at each fact that names its lines."""
        return "\n".join(["# yaml-language-server: $schema=schema.json", *self._lines((), self.tree(), "")]) + "\n"

    def _lines(self, above: KeyPath, tree: dict[str, Any], indent: str) -> Iterator[str]:
        for key, value in tree.items():
            place = (*above, key)
            if isinstance(value, dict) and value and place not in self._facts:
                yield f"{indent}{_written(key)}:"
                yield from self._lines(place, value, indent + "  ")
            elif isinstance(value, dict) and value and place[0] != "source":
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
        """Remove the value at ``place``, what is below it, or the facts around it. Return False if there is none."""
        below = [each for each in self._facts if each[: len(place)] == place and each != place]
        around = next((place[:size] for size in range(len(place), 0, -1) if place[:size] in self._facts), None)
        if around is not None and self._facts[around].value != {}:
            fact = self._facts[around]
            if isinstance(fact.value, list) and len(place) > len(around) and len(fact.value) > 1:
                at = int(place[len(around)])
                self._facts[around] = fact._replace(value=fact.value[:at] + fact.value[at + 1 :])
                self._impossible(around, fact.value[at], reason, fact.origins[0])
                return True
            below = [around]
        elif not below and around is not None:
            below = [around]
        elif not below and len(place) > 1:  # a required value is missing, because it was removed before
            below = [each for each in self._facts if each[: len(place) - 1] == place[:-1]]
        for each in below:
            fact = self._facts.pop(each)
            self._impossible(each, fact.value, reason, fact.origins[0])
        return bool(below)

    def _impossible(self, place: KeyPath, value: Any, reason: str, origin: FileLine) -> None:
        self.note("a value that a profile cannot have", f"{'.'.join(place)}: {_written(value)}: {reason}", origin)


def _shown(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else _written(value)).split())
    text = printable(text)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _written(value: object) -> str:
    """Return a value as one line of YAML."""
    if isinstance(value, str) and fault(value):
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=2**31, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
