"""Values read from a configuration file, each with its line; what only a program could compute stays as its source."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from deployer.connected.ground.yaml_model import Document, KeyPath

#: Names that partitions of a profile, and queues of a batch system, can have.
NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")
QUEUE = re.compile(r"[A-Za-z0-9_][\w.@/+-]*")
#: Characters of an expression that are kept in a text.
_MAX_HOLE = 80
#: Python does not print numbers of more than 4300 digits.
_MAX_NUMBER = 2**63


class Computed(NamedTuple):
    """An expression that is not evaluated.

    Attributes:
        source: its text in the file.
    """

    source: str


class LocatedValue(NamedTuple):
    """A value with its line.

    Attributes:
        value: a scalar, a Computed, or a dict or list of LocatedValue. A text may have ``${...}`` for parts that are
            computed, and ``$NAME`` for variables of the environment.
        line: counted from 1.
    """

    value: Any
    line: int

    def get(self, key: str) -> "LocatedValue | None":
        """Return the value of a key, or None if this is not a mapping or lacks the key."""
        found = self.value.get(key) if isinstance(self.value, dict) else None
        return found if isinstance(found, LocatedValue) else None

    def items(self) -> Iterator[tuple[str, "LocatedValue"]]:
        """Yield keys and values; none if this is not a mapping."""
        if isinstance(self.value, dict):
            yield from self.value.items()

    def each(self) -> Iterator["LocatedValue"]:
        """Yield the members of a list; a scalar counts as a list of one."""
        if isinstance(self.value, list):
            yield from self.value
        elif self.value is not None and not isinstance(self.value, dict):
            yield self

    def text(self) -> str | None:
        """Return a text that is completely known, or None."""
        return self.value if isinstance(self.value, str) and is_known(self.value) else None

    def texts(self) -> list[str]:
        """Return the known texts of a list, or of a single text."""
        return [text for text in (each.text() for each in self.each()) if text is not None]

    def number(self) -> int | None:
        """Return a positive whole number, or None."""
        ok = isinstance(self.value, int) and not isinstance(self.value, bool) and self.value > 0
        return self.value if ok else None

    def computed(self) -> str | None:
        """Return the source of a value that is not evaluated, or None."""
        if isinstance(self.value, Computed):
            return self.value.source
        return self.value if isinstance(self.value, str) and not is_known(self.value) else None

    def shown(self) -> str:
        """Return the value for a note. A list or mapping is only named: its members may be shared, and very many."""
        if isinstance(self.value, list | dict):
            return "a list" if isinstance(self.value, list) else "a mapping"
        return self.computed() or str(self.value)


def hole(source: str) -> str:
    """Return the part of a text that stands for an expression: one word, without quotes or braces."""
    return "${" + re.sub(r"[^\w.?:=<>()\[\]*/+-]", "", source)[:_MAX_HOLE] + "}"


def is_known(text: str) -> bool:
    """Return whether no part of a text is computed."""
    return "${" not in text


def from_document(document: Document) -> LocatedValue:
    """Return the content of a YAML or JSON file. Raises UsageError if it has no keys."""

    def located(value: Any, place: KeyPath) -> LocatedValue:
        inner: Any = value
        if isinstance(value, dict):
            inner = {str(key): located(below, (*place, str(key))) for key, below in value.items()}
        elif isinstance(value, list):
            inner = [located(below, (*place, str(at))) for at, below in enumerate(value)]
        elif isinstance(value, int) and abs(value) > _MAX_NUMBER:
            inner = Computed("a large number")
        elif not isinstance(value, str | int | float | bool | None):
            inner = str(value)  # a date
        return LocatedValue(inner, document.at(place)[1])

    return located(document.mapping(), ())
