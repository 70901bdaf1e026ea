"""YAML files as strict typed models. All errors in a file are reported at once, each with its line and place.

An error reads ``FILE:LINE: jobs.train.time: message``, the form that compilers and editors use. For an unknown key or
word, the error suggests a known one.
"""

import datetime as dt
import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from deployer.contract.base.errors import UsageError
from deployer.contract.base.grouping import grouped
from deployer.contract.base.guess import guess
from deployer.contract.base.text import counted, fault, is_name, printable
from deployer.system import files

#: Handwritten files have a few kB. Larger ones are mistakes, and PyYAML would need minutes to read them.
_MAX_BYTES = 1024 * 1024
#: The most values in a file after alias expansion: a few lines of aliases can expand to billions of values.
_MAX_VALUES = 20_000
#: The most characters that may begin a value. PyYAML needs 700 bytes of memory and 20 us per value.
_STRUCTURE = "\n,:[{"
_MAX_STRUCTURE = 100_000

#: PyYAML's errors for a text with an invalid first character: Spack's `[:2.4.6]` and `@1.2`, `%gcc`.
_CANNOT_BEGIN = re.compile(r"expected the node content, but found '(:)'|found character '([@%`])' that cannot start")

#: The place of a value in a file: keys and list positions, outermost first.
KeyPath = tuple[str, ...]


class Model(BaseModel):
    """The base of all models of files: unknown keys are errors, and values are not converted to other types.

    Texts, and the keys of mappings, are one line without control characters. A model names its fields that may have
    ``many_lines``, and those that hold environment ``variables``. The JSON schema describes a key by the words of its
    ``Field``, or by those of the docstring.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    many_lines: ClassVar[frozenset[str]] = frozenset()
    variables: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        generated = handler(schema)
        own = handler.resolve_ref_schema(generated)
        own["description"] = _parts(cls)[0]
        for base in cls.__mro__:
            for name, words in described(base) if issubclass(base, Model) else ():
                if name in own["properties"]:
                    own["properties"][name].setdefault("description", words)
        return generated

    @field_validator("*")
    @classmethod
    def _no_control_characters(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        problems = [(place, why) for place, text in _texts(value) if (why := fault(text, name in cls.many_lines))]
        if name in cls.variables and isinstance(value, dict):
            words = "is not a name for a variable: use letters, digits and underscores, without a digit first"
            problems += [((printable(key),), words) for key in value if not is_name(key)]
        if problems:
            raise Problems(problems)
        return value


def _parts(model: type) -> tuple[str, str]:
    """Return a model's docstring in two parts: the text, and the part after ``Attributes:``."""
    text, _, attributes = inspect.cleandoc(model.__doc__ or "").partition("\n\nAttributes:\n")
    return text, attributes


def described(model: type) -> Iterator[tuple[str, str]]:
    """Yield the keys in a model's docstring, each with its description."""
    for entry in re.finditer(r"^    (\w+): (.*(?:\n {8}.*)*)", _parts(model)[1], re.MULTILINE):
        yield entry[1], " ".join(entry[2].split()).replace("``", "`")


def _texts(value: Any, place: "KeyPath" = ()) -> Iterator[tuple["KeyPath", str]]:
    """Yield the texts of a field, each with its place below the field. Nested models are not included."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, (*place, str(number)))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield (*place, printable(str(key))), str(key)
            yield from _texts(item, (*place, printable(str(key))))


#: For each pattern: the description of a valid text, for error messages.
FORMS: dict[str, str] = {}


def form(pattern: str, words: str, max_length: int | None = None) -> StringConstraints:
    """Return the constraint that a text must match ``pattern``.

    Args:
        words: a description of a valid text, with an example, for error messages.
    """
    FORMS[pattern] = words
    return StringConstraints(pattern=pattern, max_length=max_length)


Sha256 = Annotated[str, form(r"^[0-9a-f]{64}$", "64 hexadecimal digits in lower case, as sha256sum prints them")]


def unless_refused(check: Callable[[Any], Any]) -> AfterValidator:
    """Return a validator that returns what ``check`` returns, and fails if it raises UsageError."""

    def validate(value: Any, info: ValidationInfo) -> Any:
        try:
            return check(value)
        except UsageError as error:  # pydantic collects ValueErrors and reports all of them at once
            message = error.message.removeprefix(f"{info.field_name}: ")  # the place is printed anyway
            raise ValueError(f"{message} ({error.hint})") from error

    return AfterValidator(validate)


class Problems(ValueError):
    """Several errors from one validator, each with its place below the validator's field."""

    def __init__(self, found: Sequence[tuple[KeyPath, str]]) -> None:
        super().__init__("; ".join(message for _, message in found))
        self.found = found


class Problem(NamedTuple):
    """One error in a file.

    Attributes:
        path: the file.
        line: the line number, from 1.
        place: the keys that lead to the wrong value.
        message: what is wrong.
    """

    path: Path
    line: int
    place: KeyPath
    message: str

    def text(self) -> str:
        where = "".join(f"{word}: " for word in [".".join(self.place)] if word)
        return f"{self.path}:{self.line}: {where}{self.message}"


class Origin(Protocol):
    """Finds the origin of values in one document or in several merged ones."""

    problems: list[Problem]

    def at(self, place: KeyPath) -> tuple[Path, int]:
        """Return the file and line of the value at ``place``, or of the innermost existing value around it."""

    def written(self, place: KeyPath) -> str:
        """Return a scalar exactly as it is in the file, or an empty text for other values."""


M = TypeVar("M", bound=Model)


def load_model(model: type[M], path: Path, what: str) -> M:
    """Return the content of a YAML file as a model. The validators' context is the file's folder.

    Args:
        what: the kind of file, for error messages: "a site profile".

    Raises:
        UsageError: the file cannot be read, is not valid YAML, or has errors. All errors are listed.
    """
    document = Document(path, what)
    return checked(model, document.mapping(), document, path)


def checked(model: type[M], raw: dict[str, Any], origin: Origin, path: Path) -> M:
    """Return the content of a document as a model.

    Args:
        raw: the content.
        origin: finds the line of each error.
        path: the file given by the caller.

    Raises:
        UsageError: the content has errors. All errors are listed.
    """
    problems = list(origin.problems)
    try:
        checked_model = model.model_validate(raw, context=path.parent)
        if not problems:
            return checked_model
    except ValidationError as error:
        problems += [Problem(*origin.at(place), place, text) for place, text in _explained(error, model, origin)]
    texts = [problem.text() for problem in sorted(problems)]
    if len(texts) == 1:
        raise UsageError(texts[0])
    raise UsageError(f"{path} has {counted(len(texts), 'error')}", details=texts)


class Document:
    """A YAML document with the line of each value.

    Raises:
        UsageError: the file is not valid YAML, is too large, or its aliases expand to too many values.
    """

    def __init__(self, path: Path, what: str) -> None:
        text = files.read_text(str(path), f"give the path of {what}", _MAX_BYTES)
        if sum(map(text.count, _STRUCTURE)) > _MAX_STRUCTURE:
            raise UsageError(f"{path} has too many values; at most {_MAX_VALUES} are allowed")
        self._path = path
        self._what = what
        self._places: dict[KeyPath, tuple[int, yaml.Node]] = {}
        self.problems: list[Problem] = []
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
        except ValueError as error:  # raised for a date such as 2026-13-45
            raise UsageError(f"{self._path} holds an invalid value: {error}") from error

    def mapping(self) -> dict[str, Any]:
        """Return the document, which must be a mapping."""
        raw = self.value()
        if not isinstance(raw, dict):
            raise UsageError(f"{self._path} is not {self._what}: it has no keys")
        return raw

    def has(self, place: KeyPath) -> bool:
        """Return whether the document has a value at ``place``."""
        return place in self._places

    def at(self, place: KeyPath) -> tuple[Path, int]:
        """Return the file and line of the value at ``place``, or of the innermost existing value around it."""
        return self._path, self._places[self._known(place)][0]

    def written(self, place: KeyPath) -> str:
        """Return a scalar exactly as it is in the file, or an empty text for other values."""
        node = self._places[self._known(place)][1]
        return str(node.value) if isinstance(node, yaml.ScalarNode) else ""

    def _known(self, place: KeyPath) -> KeyPath:
        while place not in self._places:
            place = place[:-1]
        return place

    def _index(self, place: KeyPath, node: yaml.Node, line: int) -> None:
        self._places[place] = (line, node)
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._index((*place, str(number)), item, item.start_mark.line + 1)
        elif isinstance(node, yaml.MappingNode):
            first: dict[str, int] = {}
            for key, item in node.value:
                name, at = str(key.value), key.start_mark.line + 1
                if name in first:
                    text = f"is given twice: first on line {first[name]}"
                    self.problems.append(Problem(self._path, at, (*place, name), text))
                first.setdefault(name, at)
                self._index((*place, name), item, at)

    def _check_size(self) -> None:
        counts: dict[int, int] = {}

        def count(node: Any) -> int:
            if id(node) in counts:
                return counts[id(node)]
            counts[id(node)] = _MAX_VALUES + 1  # for a value that contains itself
            below = [node.value] if isinstance(node, yaml.SequenceNode) else []
            below += node.value if isinstance(node, yaml.MappingNode) else []
            counts[id(node)] = 1 + sum(count(child) for group in below for child in group)
            return counts[id(node)]

        if count(self._root) > _MAX_VALUES:
            hint = "an alias (*name) refers to itself"
            raise UsageError(f"{self._path} has more than {_MAX_VALUES} values when its aliases are expanded", hint)

    def _broken(self, error: yaml.YAMLError) -> UsageError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if mark is None:
            return UsageError(f"{self._path}: not valid YAML: {error}")
        text = " ".join(word for word in (getattr(error, "context", None), getattr(error, "problem", None)) if word)
        first = _CANNOT_BEGIN.search(text)
        hint = f"put a text that begins with {first[1] or first[2]} in quotes" if first else ""
        return UsageError(f"{self._path}:{mark.line + 1}: not valid YAML: {text}", hint)


# ------------------------------------------------------------------------------------------------ texts of errors


def _explained(error: ValidationError, model: type[BaseModel], origin: Origin) -> Iterator[tuple[KeyPath, str]]:
    """Yield the place and text of each error."""
    for problem in error.errors():
        place = tuple(str(part) for part in problem["loc"] if part != "[key]")
        cause = (problem.get("ctx") or {}).get("error")
        if isinstance(cause, Problems):
            yield from (((*place, *below), message) for below, message in cause.found)
        elif isinstance(cause, ValueError):
            yield place, str(cause)
        else:
            yield place, _in_words(problem, place, model, origin)


_DATE = "must be a date, YYYY-MM-DD"

#: Error texts, by pydantic's name for the kind of error. The wrong value is appended. Pydantic's own texts are never
#: printed, because they describe inputs, instances and patterns.
WORDS: dict[str, str] = {
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("date_from_datetime_inexact", "date_from_datetime_parsing", "date_parsing", "date_type"), _DATE),
    **dict.fromkeys(("dict_type", "model_attributes_type", "model_type"), "must hold keys, KEY: VALUE"),
    **dict.fromkeys(("finite_number", "int_from_float", "int_parsing", "int_type"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    "greater_than_equal": "must be at least {ge}",
    "int_parsing_size": "must be a number of fewer digits",
    "invalid_key": "keys must be text: write this one with quotes",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list: write [A, B]",
    "literal_error": "must be {expected}",
    "string_too_long": "must have at most {max_length} characters",
    "string_type": "must be text",
    "string_unicode": "must be text in UTF-8",
    "too_short": "must have at least {min_length} entries",
}


#: The most of a wrong value to print: characters of a text, bits of a number.
_MAX_SHOWN, _MAX_BITS = 60, 64


def _in_words(problem: ErrorDetails, place: KeyPath, model: type[BaseModel], origin: Origin) -> str:
    kind, given, context = problem["type"], problem["input"], problem.get("ctx") or {}
    if kind == "extra_forbidden":
        return _unknown_key(place, model)
    if kind == "missing":
        return "is missing"
    if kind == "string_type" and isinstance(given, bool | int | float | dt.date):
        written = origin.written(place)
        if len(written) > _MAX_SHOWN:
            return "must be text, and YAML reads it as something else: write it with quotes"
        return f'must be text, and YAML reads {written} as something else: write "{written}", with quotes'
    if kind == "list_type" and isinstance(given, str):
        return f"must be a list: write [{', '.join(given.split())}]"
    if kind == "string_pattern_mismatch":
        valid = FORMS.get(str(context["pattern"]), "written in another way")
        return f"{_value(given)} is not valid: it must be {valid}"
    if kind == "too_short" and not given:
        return "must not be empty"
    near = ""
    if kind == "literal_error" and isinstance(given, str):
        near = guess(given, re.findall(r"'([^']*)'", context["expected"]))
    return f"{WORDS.get(kind, 'is not valid').format(**context)}, {_shown(given)}{near}"


def _shown(given: object) -> str:
    """Return the end of a sentence, with the wrong value."""
    if given is None:
        return "and has no value"
    if isinstance(given, dict | list):
        return "not keys" if isinstance(given, dict) else "not a list"
    if isinstance(given, int) and given.bit_length() > _MAX_BITS:  # Python refuses to print some of them
        return "not a number of this size"
    return f"not {_value(given)}"


def _value(given: object) -> str:
    """Return a wrong value for an error message: one line, in quotes if it is text."""
    text = str(given).lower() if isinstance(given, bool) else repr(given) if isinstance(given, str) else str(given)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _unknown_key(place: KeyPath, model: type[BaseModel]) -> str:
    """Return the error text of an unknown key.

    It suggests a similar key at the same place, or the same or a similar key at another place.
    """
    word, own, homes = place[-1], _keys_at(model, place[:-1]), _homes(model)
    if word in homes:
        return f"unknown key here: {word!r} belongs under {homes[word]}"
    near = guess(word, own)
    if near:
        return "unknown key" + near
    for meant in difflib.get_close_matches(word, homes, n=1):
        return f"unknown key, perhaps you meant {meant!r}, which belongs under {homes[meant]}"
    return f"unknown key; known here: {', '.join(own)}"


@cache
def _homes(model: type[BaseModel]) -> dict[str, str]:
    """Return the right place of each key of a model and its nested models, for error texts."""
    places = grouped((key, ".".join(home) or "the top") for home, key in _all_keys(model, ()))
    return {key: " or ".join(homes[:2]) for key, homes in places.items()}


def _keys_at(model: type[BaseModel], place: KeyPath) -> list[str]:
    """Return the keys of the model at ``place`` below ``model``."""
    there: Any = model
    for part in place:
        below = _below(there)
        there = below.get(part, below.get("NAME"))
    return sorted(_below(there))


def _all_keys(model: Any, home: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Yield each key of a model and its nested models, after the model's place. NAME means any name."""
    for key, kind in _below(model).items():
        if key != "NAME":
            yield home, key
        yield from _all_keys(kind, (*home, key))


def _below(kind: Any) -> dict[str, Any]:
    """Return the types below a model by key, or below a mapping or list by NAME; empty for other types."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _below(inner[0])
    if origin in (list, dict):
        return {"NAME": inner[-1]} if _below(inner[-1]) else {}
    return next(filter(None, map(_below, inner)), {}) if origin in (Union, UnionType) else {}
