"""The reference of a definition or a profile as a Markdown table, generated from its JSON schema."""

import json
from collections.abc import Iterator
from typing import Any

_HEAD = "| key | what | default |\n|---|---|---|\n"
_WORDS = {"string": "text", "integer": "number", "array": "list", "object": "keys"}
_NULL = {"type": "null"}

Schema = dict[str, Any]


def table(schema: Schema) -> str:
    """Return one line per key: its path, its type and description, and its default."""
    return _HEAD + "".join(f"| `{key}` | {what} | {default} |\n" for key, what, default in _rows(schema, schema, ""))


def _rows(schema: Schema, top: Schema, prefix: str) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", ())
    for name, raw in schema["properties"].items():
        value, optional = _resolved(raw, top)
        below = _named(value)
        inner = value if below is None else _resolved(below, top)[0]
        said = raw.get("description") or value.get("description") or inner.get("description") or ""
        default = "required" if name in required else _default(raw, optional)
        yield prefix + name, f"{_type(value, top)}: {_cell(said)}" if said else _type(value, top), default
        item = _resolved(value.get("items", {}), top)[0]  # the items of a list
        if "properties" in inner:
            yield from _rows(inner, top, f"{prefix}{name}." + ("NAME." if inner is not value else ""))
        elif "properties" in item:
            yield from _rows(item, top, f"{prefix}{name}[].")


def _resolved(value: Schema, top: Schema) -> tuple[Schema, bool]:
    """Return the schema behind a reference or an optional value, and whether null is allowed."""
    choices = [choice for choice in value.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        return _resolved(choices[0], top)[0], True
    if "$ref" in value:
        found: Schema = top["$defs"][value["$ref"].rpartition("/")[2]]
        return found, False
    return value, False


def _type(value: Schema, top: Schema) -> str:
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "anyOf" in value:
        return " or ".join(_type(_resolved(choice, top)[0], top) for choice in value["anyOf"] if choice != _NULL)
    if value.get("type") == "array":
        return f"list of {_type(_resolved(value['items'], top)[0], top)}"
    return _WORDS.get(str(value.get("type")), str(value.get("type")))


def _named(value: Schema) -> Schema | None:
    """Return the schema of the values of an object whose keys are free names, or None for other objects."""
    values = [*value.get("patternProperties", {}).values(), value.get("additionalProperties")]
    return next((found for found in values if isinstance(found, dict)), None)


def _default(raw: Schema, optional: bool) -> str:
    value = raw.get("default")
    return "" if optional or isinstance(value, dict) or value in (None, "", []) else f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).rstrip(".").replace("``", "`").replace("|", "\\|")
