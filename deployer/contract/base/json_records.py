"""Records as JSON: one canonical form, and readers whose errors name the invalid field.

Every record has ``schema`` (its kind), ``format`` (its version) and ``min_reader`` (the oldest format version whose
reader understands it). Readers skip unknown fields, so that newer writers can add fields. A change that old readers
must not skip raises ``min_reader``.

Texts have one line without control characters. Three kinds of text may have several lines: words of commands and values
of variables (``words``), names of files (``path``), and all texts in a record that a job writes about itself (``own``).
They are escaped when they are printed.
"""

import json
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Type, TypeVar

from deployer.contract.base import text as texts
from deployer.contract.base.errors import DeployerError, UsageError

FORMAT = 1

#: Bytes of memory that one document may need, as counted by ``memory``. Plans, receipts and results need under 1 MB.
MAX_MEMORY = 100_000_000
#: The same for the largest documents: a bundle's manifest, and the result of a job with thousands of ranks.
MAX_LARGE = 440_000_000

_ASCII = bytes(range(128))
_MAX_DIGITS = 20  # of any number in a record: all are counts, sizes, offsets or times
_MAX_SECONDS = 1e12
#: The most bytes of memory that one byte of a document needs.
_LARGEST_FACTOR = 300

Record = Dict[str, Any]
_T = TypeVar("_T")


def dumps(record: Any) -> bytes:
    """Return the canonical bytes of a record: sorted keys, no white space, ASCII, one newline at the end."""
    return (json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True) + "\n").encode("ascii")


def pretty(record: Any) -> str:
    """Return a record as text for people: indented, with keys in the record's order."""
    return json.dumps(record, indent=2) + "\n"


def pretty_rows(record: Mapping[str, Any], rows: str) -> str:
    """Return a record as ``pretty`` does, but with one line for each item of the list ``rows``.

    Python writes indented JSON ten times slower, which matters for tens of thousands of ranks.
    """
    fields = []
    for name, value in record.items():
        if name == rows and value:
            text = "[\n    {}\n  ]".format(",\n    ".join(map(json.dumps, value)))
        else:
            text = json.dumps(value, indent=2).replace("\n", "\n  ")
        fields.append(f"  {json.dumps(name)}: {text}")
    return "{{\n{}\n}}\n".format(",\n".join(fields))


def stamped(schema: str, record: Mapping[str, Any]) -> Record:
    """Return ``record`` with the three fields that begin every record."""
    return dict({"schema": "deployer." + schema, "format": FORMAT, "min_reader": FORMAT}, **record)


def memory(data: bytes) -> int:
    """Return roughly the most bytes of memory needed to parse a JSON document, without parsing it.

    The factors were measured on CPython 3.6, where an empty object takes 240 bytes for two bytes of the document
    (docs/limits.md). Characters in texts that look like structure are counted too.
    """
    # The bytes (twice), their text, and the strings made from it. One wide character makes a whole text four times as
    # large; an escaped character makes a string wide.
    width = 10 if data.translate(None, _ASCII) else 7 if b"\\u" in data else 4
    return (
        width * len(data)
        + 280 * data.count(b"{")
        + 100 * data.count(b"[")
        + 75 * data.count(b",")
        + 50 * data.count(b":")
    )


def parse(data: bytes, what: str, error: Type[DeployerError] = UsageError, limit: int = MAX_MEMORY) -> Any:
    """Parse JSON from an untrusted source.

    Args:
        what: the document's name for errors.
        error: the class of error to raise.
        limit: bytes of memory; a document that needs more is not parsed.

    Raises:
        DeployerError: ``error``, if the document is not JSON, needs too much memory, has an object with a repeated key,
            or has a number with more than 20 digits.
    """
    needed = memory(data) if _LARGEST_FACTOR * len(data) > limit else 0
    if needed > limit:
        message = "%s is too large: parsing its %d bytes takes up to %d MB of memory, and %d MB are allowed"
        raise error(message % (what, len(data), needed // 10**6, limit // 10**6))
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as reason:
        raise error(f"{what} is not valid JSON: {reason}") from reason


def is_deeper(value: Any, most: int) -> bool:
    """Return whether a document's lists and objects are nested deeper than ``most`` levels."""
    level = [value]
    for _ in range(most):
        level = [inner for outer in level for inner in _inner(outer)]
    return any(isinstance(inner, (list, dict)) for inner in level)


def _inner(value: Any) -> List[Any]:
    """Return the lists and objects in a list or an object."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [inner for inner in items if isinstance(inner, (list, dict))]


def loads(
    data: bytes,
    schema: str,
    what: str,
    error: Type[DeployerError] = UsageError,
    limit: int = MAX_MEMORY,
    own: bool = False,
) -> "Fields":
    """Parse a record.

    Args:
        what: the record's name for errors, for instance "the plan for lab".
        error: the class of error to raise.
        limit: bytes of memory; a document that needs more is not parsed.
        own: the record may contain any text.

    Raises:
        DeployerError: ``error``, if the data is not a record of this schema or needs too much memory.
        UsageError: the record needs a newer reader.
    """
    fields = Fields(parse(data, what, error, limit), what, error, own)
    if fields.text("schema") != "deployer." + schema:
        raise error("{} is a {!r} record, not deployer.{}".format(what, fields.text("schema"), schema))
    written, needed = fields.number("format"), fields.number("min_reader")
    if not 1 <= needed <= written:
        raise error("%s: format %d cannot need a reader of format %d" % (what, written, needed))
    if needed > FORMAT:
        raise UsageError(
            "%s has format %d and needs a reader of format %d; this deployer reads format %d"
            % (what, written, needed, FORMAT),
            "use a newer deployer, for instance the one that wrote the file",
        )
    return fields


class Fields:
    """Typed access to a JSON object. An error about a missing or mistyped field names the field by its path."""

    def __init__(self, record: Any, what: str, error: Type[DeployerError] = UsageError, own: bool = False) -> None:
        if not isinstance(record, dict):
            raise error(f"{what} is not a JSON object")
        self.record: Record = record
        self.what = what
        self.error = error
        self.own = own
        if not own:
            for name in record:
                if not isinstance(name, str):  # YAML also has keys that are not text
                    raise error(f"{what}: a key is not text: {name!r}")
                self._check(None, name)

    def _check(self, name: Optional[str], value: str, lines: bool = False) -> str:
        """Return ``value`` of the field ``name``; raise an error if it contains characters that are not allowed.

        Without a name, the value is a key.
        """
        problem = None if self.own else texts.fault(value, lines)
        if problem:
            where = "a key" if name is None else f"field {name!r}"
            raise self.error(f"{texts.printable(self.what)}: {where}: {problem}", "write it without")
        return value

    def _get(self, name: str, kind: Type[_T]) -> _T:
        value = self.record.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            state = "is missing" if name not in self.record else "is not of type " + kind.__name__
            raise self.error(f"{self.what}: field {name!r} {state}")
        return value

    def text(self, name: str, lines: bool = False) -> str:
        """Return a string field; with ``lines`` it may have several lines, such as another program's message."""
        value = self.record.get(name)
        return value if self.own and type(value) is str else self._check(name, self._get(name, str), lines)

    def path(self, name: str) -> str:
        """Return a file name with any characters that a file system allows; it is never used as shell text."""
        return self.text(name, lines=True)

    def maybe_text(self, name: str) -> Optional[str]:
        """Return a string field, or None if it is null or missing."""
        return None if self.record.get(name) is None else self.text(name)

    def number(self, name: str) -> int:
        """Return a non-negative integer field."""
        value = self.record.get(name)
        if type(value) is not int or value < 0:
            self._get(name, int)
            raise self.error(f"{self.what}: field {name!r} is negative")
        return value

    def seconds(self, name: str) -> float:
        """Return a field of seconds, possibly with a fraction."""
        value: Any = self.record.get(name)
        if type(value) not in (int, float) or not 0 <= value < _MAX_SECONDS:
            raise self.error(f"{self.what}: field {name!r} is not a number of seconds")
        return float(value)

    def maybe_number(self, name: str) -> Optional[int]:
        """Return a non-negative integer field, or None if it is null or missing."""
        return None if self.record.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        return self._get(name, bool)

    def maybe_flag(self, name: str) -> Optional[bool]:
        """Return a field that is true or false, or None if it is null or missing."""
        return None if self.record.get(name) is None else self.flag(name)

    def texts(self, name: str, lines: bool = False) -> List[str]:
        """Return a list of strings."""
        values = self._get(name, list)
        if not all(isinstance(value, str) for value in values):
            raise self.error(f"{self.what}: field {name!r} is not a list of strings")
        return [self._check(name, value, lines) for value in values]

    def words(self, name: str) -> List[str]:
        """Return a list of strings that may have several lines each, such as a command."""
        return self.texts(name, lines=True)

    def mapping(self, name: str, lines: bool = False) -> Dict[str, str]:
        """Return an object whose values are strings; with ``lines``, these may have several lines each."""
        values = self._get(name, dict)
        if not all(isinstance(value, str) for value in values.values()):
            raise self.error(f"{self.what}: field {name!r} has a value that is not a string")
        for key, value in values.items():
            self._check(name, key)
            self._check(name, value, lines)
        return dict(values)

    def environment(self, name: str, lines: bool = False) -> Dict[str, str]:
        """Return an object of environment variables; with ``lines``, the values may have several lines each."""
        variables = self.mapping(name, lines)
        for variable in variables:
            self._check_variable(name, variable)
        return variables

    def assignments(self, name: str) -> List[str]:
        """Return a list of environment variables, ``NAME=VALUE``; a value may have several lines."""
        entries = self.words(name)
        for entry in entries:
            self._check_variable(name, entry.partition("=")[0] if "=" in entry else entry + " without a value")
        return entries

    def _check_variable(self, name: str, variable: str) -> None:
        if not texts.is_name(variable):
            hint = "use letters, digits and underscores; the first character is not a digit"
            shown = texts.printable(variable)
            raise self.error(f"{self.what}: field {name!r}: not an environment variable: {shown}", hint)

    def items(self, name: str) -> List["Fields"]:
        """Return a list of objects."""
        return list(self.each(name))

    def each(self, name: str) -> Iterator["Fields"]:
        """Yield the objects of a list one at a time: a bundle may have hundreds of thousands of segments."""
        for index, item in enumerate(self._get(name, list)):
            yield self._item(name, index, item)

    def _item(self, name: str, index: int, item: Any) -> "Fields":
        return Fields(item, "%s, %s[%d]" % (self.what, name, index), self.error, self.own)

    def many(self, name: str, usual: Callable[[Any], Optional[_T]], read: Callable[["Fields"], _T]) -> List[_T]:
        """Return the results of ``read`` for each object of a long list.

        Args:
            usual: a faster equivalent for objects without errors; if it returns None, ``read`` parses the object.
        """
        results = []
        for index, item in enumerate(self._get(name, list)):
            result = usual(item)
            results.append(read(self._item(name, index, item)) if result is None else result)
        return results

    def child(self, name: str) -> "Fields":
        """Return a nested object."""
        return Fields(self._get(name, dict), f"{self.what}, {name}", self.error, self.own)

    def maybe_child(self, name: str) -> Optional["Fields"]:
        """Return a nested object, or None if it is null or missing."""
        return None if self.record.get(name) is None else self.child(name)

    def children(self, name: str) -> Dict[str, "Fields"]:
        """Return an object whose values are objects."""
        values = self._get(name, dict)
        return {
            key: Fields(value, f"{self.what}, {name}.{texts.printable(key)}", self.error, self.own)
            for key, value in values.items()
        }


def _bounded(digits: str) -> int:
    # In older Pythons, the time grows with the square of the digits: a short file could keep one busy for hours.
    if len(digits) > _MAX_DIGITS:
        raise ValueError("a number has %d digits" % len(digits))
    return int(digits)


def _no_duplicates(pairs: List[Tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return record


#: Created once, because a large job has a hundred thousand small records.
_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_int=_bounded)
