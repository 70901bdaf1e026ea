"""YAML files as strict typed models: all errors of a file at once, each with its line and its path in the file.

An error reads ``FILE:LINE: jobs.train.time: what is wrong``, as compilers and editors write it. Unknown keys and words
come with a guess.
"""

import datetime as dt
import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from deployer.contract.errors import UsageError
from deployer.system import files

#: What a person writes is a few kB. More is a mistake, and PyYAML would take minutes for it.
_MAX_BYTES = 1024 * 1024
#: Values in a file, each alias counted as what it stands for: a few lines of aliases can stand for billions.
_MAX_VALUES = 100_000

#: Where a value stands in a file: keys, and positions in lists, from the outside in.
Place = tuple[str, ...]


class Model(BaseModel):
    """The base of what people write: unknown keys are errors, and values keep their types."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Problems(ValueError):
    """Several errors that one validator found: each with its place below the validator's own field."""

    def __init__(self, found: Sequence[tuple[Place, str]]) -> None:
        super().__init__("; ".join(message for _, message in found))
        self.found = found


class _Problem(NamedTuple):
    path: Path
    line: int
    place: Place
    message: str

    def text(self) -> str:
        where = "".join(f"{word}: " for word in [".".join(self.place)] if word)
        return f"{self.path}:{self.line}: {where}{self.message}"


class Origin(Protocol):
    """Knows where values were written: one document, or several of which each is over the one before."""

    duplicates: list[_Problem]

    def at(self, place: Place) -> tuple[Path, int]:
        """Return file and line of what stands at ``place``, else of the innermost that is there around it."""

    def written(self, place: Place) -> str:
        """Return a scalar as it is written in the file."""


M = TypeVar("M", bound=Model)


def load_model(model: type[M], path: Path, what: str) -> M:
    """Return ``path`` as a ``model``; ``what`` names the kind of file in errors.

    Validators of the model find the folder of the file as their context. Raises UsageError: the file cannot be read, is
    no YAML, or has errors, all of which it names.
    """
    document = Document(path, what)
    return checked(model, document.mapping(), document, path)


def checked(model: type[M], raw: dict[str, Any], origin: Origin, path: Path) -> M:
    """Return ``raw`` as a ``model``; ``path`` is the file that the caller named. Raises UsageError with all errors."""
    found = None
    problems = list(origin.duplicates)
    try:
        found = model.model_validate(raw, context=path.parent)
    except ValidationError as error:
        problems += [_Problem(*origin.at(place), place, said) for place, said in _explained(error, model, origin)]
    if found is None or problems:
        said = [problem.text() for problem in sorted(problems)]
        if len(said) == 1:
            raise UsageError(said[0])
        raise UsageError(f"{path} has {len(said)} errors", details=said)
    return found


def _read(path: Path, hint: str) -> str:
    with files.errors_named(f"read {path}"):
        size = path.stat().st_size if path.is_file() else 0
    if size > _MAX_BYTES:
        raise UsageError(f"{path} has {size} bytes: more than the {_MAX_BYTES} that such a file may have")
    return files.read_text(str(path), hint)


class Document:
    """A YAML document and where each of its values stands. Raises UsageError when it is none, or a bomb."""

    def __init__(self, path: Path, what: str) -> None:
        text = _read(path, f"give the path of {what}")
        self._path = path
        self._what = what
        self._places: dict[Place, tuple[int, yaml.Node]] = {}
        self.duplicates: list[_Problem] = []
        try:
            self._loader = yaml.SafeLoader(text)
            self._root = self._loader.get_single_node()
            if self._root is not None:
                self._check_size()
                self._index((), self._root, self._root.start_mark.line + 1)
        except yaml.YAMLError as error:
            raise self._broken(error) from error
        except RecursionError:
            raise UsageError(f"{path} is nested too deeply") from None

    def value(self) -> Any:
        """Return the document as dicts, lists and scalars."""
        if self._root is None:
            return None
        try:
            return self._loader.construct_document(self._root)
        except yaml.YAMLError as error:
            raise self._broken(error) from error
        except ValueError as error:  # of a date such as 2026-13-45
            raise UsageError(f"{self._path} holds a value that is none: {error}") from error

    def mapping(self) -> dict[str, Any]:
        """Return the document, which must be one of keys."""
        raw = self.value()
        if not isinstance(raw, dict):
            raise UsageError(f"{self._path} is no {self._what.split(' ', 1)[-1]}: it holds no keys")
        return raw

    def has(self, place: Place) -> bool:
        """Return whether the document has something at ``place``."""
        return place in self._places

    def at(self, place: Place) -> tuple[Path, int]:
        """Return file and line of what stands at ``place``, else of the innermost that is there around it."""
        return self._path, self._places[self._known(place)][0]

    def written(self, place: Place) -> str:
        """Return a scalar as it is written in the file."""
        node = self._places[self._known(place)][1]
        return str(node.value) if isinstance(node, yaml.ScalarNode) else ""

    def _known(self, place: Place) -> Place:
        while place not in self._places:
            place = place[:-1]
        return place

    def _index(self, place: Place, node: yaml.Node, line: int) -> None:
        self._places[place] = (line, node)
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._index((*place, str(number)), item, item.start_mark.line + 1)
        elif isinstance(node, yaml.MappingNode):
            first: dict[str, int] = {}
            for key, item in node.value:
                name, at = str(key.value), key.start_mark.line + 1
                if name in first:
                    self.duplicates.append(
                        _Problem(self._path, at, (*place, name), f"stands twice: first on line {first[name]}")
                    )
                first.setdefault(name, at)
                self._index((*place, name), item, at)

    def _check_size(self) -> None:
        counts: dict[int, int] = {}

        def count(node: Any) -> int:
            if id(node) in counts:
                return counts[id(node)]
            counts[id(node)] = _MAX_VALUES + 1  # for one that holds itself
            below = [node.value] if isinstance(node, yaml.SequenceNode) else []
            below += node.value if isinstance(node, yaml.MappingNode) else []
            counts[id(node)] = 1 + sum(count(child) for group in below for child in group)
            return counts[id(node)]

        if count(self._root) > _MAX_VALUES:
            raise UsageError(
                f"{self._path} holds more than {_MAX_VALUES} values, its aliases written out",
                "an alias (*name) inside what it stands for never ends",
            )

    def _broken(self, error: yaml.YAMLError) -> UsageError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if mark is None:
            return UsageError(f"{self._path}: not valid YAML: {error}")
        said = " ".join(word for word in (getattr(error, "context", None), getattr(error, "problem", None)) if word)
        return UsageError(f"{self._path}:{mark.line + 1}: not valid YAML: {said}")


# ------------------------------------------------------------------------------------------------ in people's words


def _explained(error: ValidationError, model: type[BaseModel], origin: Origin) -> Iterator[tuple[Place, str]]:
    """Yield the place and the text of each error."""
    for problem in error.errors():
        place = tuple(str(part) for part in problem["loc"] if part != "[key]")
        cause = (problem.get("ctx") or {}).get("error")
        if isinstance(cause, Problems):
            yield from (((*place, *below), message) for below, message in cause.found)
        elif isinstance(cause, ValueError):
            yield place, str(cause)
        else:
            yield place, _in_words(problem, place, model, origin)


def _in_words(problem: ErrorDetails, place: Place, model: type[BaseModel], origin: Origin) -> str:
    kind, given = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return "unknown key" + _guess(place[-1], _known_keys(model))
    if kind == "missing":
        return "is missing"
    if kind == "literal_error" and isinstance(given, str):
        return f"{_lower(problem['msg'])}, not {given!r}" + _guess(given, re.findall(r"'([^']*)'", problem["msg"]))
    if kind == "string_type" and isinstance(given, bool | int | float | dt.date):
        written = origin.written(place)
        return f'must be text, and YAML reads {written} as something else: write "{written}", with quotes'
    if kind == "list_type" and isinstance(given, str):
        return f"must be a list: write [{', '.join(given.split())}]"
    if kind == "string_pattern_mismatch":
        return f"{given!r} is not of the form {(problem.get('ctx') or {}).get('pattern')}"
    return _lower(problem["msg"])


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _guess(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f", perhaps you meant {close[0]!r}" if close else ""


def _known_keys(model: type[BaseModel]) -> list[str]:
    """Return all the keys of a model and of the models in it: a guess may come from any of them."""
    schema = model.model_json_schema()
    parts = (schema, *schema.get("$defs", {}).values())
    return sorted({key for part in parts for key in part.get("properties", {})})
