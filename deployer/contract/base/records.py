"""Typed records: NamedTuples that are read from and written as JSON objects according to their annotations.

Fields are read with the checks of ``json_records.Fields``: a text, a non-negative number, seconds, a flag, a nested
record, and lists and mappings of these. A field that may be None or has a default value may be missing. A class that
needs further checks has its own ``read`` or ``record``, which is used wherever the class is nested.
"""

import functools
from collections import abc
from typing import Any, Callable, List, Mapping, Tuple, Type, TypeVar, Union

from deployer.contract.base.json_records import Fields, Record

_T = TypeVar("_T")
_Reader = Callable[[Fields, str], Any]
_SIMPLE: Mapping[Any, _Reader] = {
    str: Fields.text,
    int: Fields.number,
    bool: Fields.flag,
    float: Fields.seconds,
    Any: lambda fields, name: fields.record.get(name),
}


def read(kind: Type[_T], fields: Fields, **known: Any) -> _T:
    """Return the record of class ``kind`` from a JSON object. Raises the fields' error.

    Args:
        known: values of fields that the caller has read itself because they need a different check.
    """
    values = dict(known)
    for name, reader, optional in _readers(kind):  # type: ignore[arg-type]
        if name not in known and not (optional and name not in fields.record):
            values[name] = reader(fields, name)
    return kind(**values)


def plain(value: Any) -> Any:
    """Return a record as a JSON object, including nested records, lists and mappings."""
    if hasattr(value, "_fields"):
        return {name: _inner(each) for name, each in zip(value._fields, value)}
    return _inner(value)


def short(value: Any) -> Record:
    """Return a record as a JSON object without the fields that have their default value."""
    usual = {name: _inner(each) for name, each in value._field_defaults.items()}
    return {name: each for name, each in plain(value).items() if name not in usual or usual[name] != each}


def _inner(value: Any) -> Any:
    if isinstance(value, (str, int, float, type(None))):
        return value
    if hasattr(value, "record"):
        return value.record()
    if hasattr(value, "_fields"):
        return plain(value)
    if isinstance(value, abc.Mapping):
        return {key: _inner(each) for key, each in value.items()}
    return [_inner(item) for item in value]


@functools.lru_cache(maxsize=None)
def _readers(kind: Any) -> List[Tuple[str, _Reader, bool]]:
    """Return the name and reader of each field, and whether it may be missing."""
    hints, defaults = kind.__annotations__, kind._field_defaults
    return [(name, _reader(hints[name]), name in defaults) for name in kind._fields]


def _reader(hint: Any) -> _Reader:
    """Return the reader for a field with this annotation."""
    origin = getattr(hint, "__origin__", None) or hint
    inner: Tuple[Any, ...] = getattr(hint, "__args__", None) or ()
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin is Union:
        reader = _reader(inner[0])
        return lambda fields, name: None if fields.record.get(name) is None else reader(fields, name)
    if hasattr(hint, "_fields"):
        return lambda fields, name: _nested(hint)(fields.child(name))
    if issubclass(origin, abc.Mapping):
        return _mapping(inner[1])
    make: Callable[..., Any] = list if issubclass(origin, list) else tuple
    if inner[0] is str:
        return lambda fields, name: make(fields.texts(name))
    return lambda fields, name: make(map(_nested(inner[0]), fields.each(name)))


def _mapping(value: Any) -> _Reader:
    """Return the reader for an object whose values have this annotation."""
    if value is str:
        return Fields.mapping
    one = _reader(value)

    def read_all(fields: Fields, name: str) -> Any:
        inner = fields.child(name)
        return {key: one(inner, key) for key in inner.record}

    return read_all


def _nested(kind: Any) -> Callable[[Fields], Any]:
    """Return the reader for a nested record: the class's own method, if it has one."""
    return getattr(kind, "read", None) or functools.partial(read, kind)
