"""What people read when a definition or a profile is wrong: no words of the validator's own."""

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deployer.connected.ground import yaml_model
from deployer.connected.ground.yaml_model import FORMS, WORDS, Model, load_model
from deployer.connected.image.definition.definition import Definition
from deployer.connected.site_profile.model import Profile

MODELS = [Definition, Profile]

#: The kinds of errors that each part of a pydantic schema can raise (docs.pydantic.dev/latest/errors). A part that is
#: new here fails the test below: look up what it raises, and give those kinds words.
RAISES = {
    "any": (),
    "bool": ("bool_type", "bool_parsing"),
    "date": (
        "date_type",
        "date_parsing",
        "date_from_datetime_parsing",
        "date_from_datetime_inexact",
    ),
    "default": (),
    "definition-ref": (),
    "definitions": (),
    "dict": ("dict_type",),
    "float": ("float_type", "float_parsing"),
    "function-after": (),  # our own words
    "function-before": (),
    "function-plain": (),
    "int": ("int_type", "int_parsing", "int_parsing_size", "int_from_float", "finite_number"),
    "list": ("list_type",),
    "literal": ("literal_error",),
    "model": ("model_type", "model_attributes_type"),
    "model-field": (),
    "model-fields": ("invalid_key",),
    "no-info": (),
    "nullable": (),
    "str": ("string_type", "string_unicode"),
    "with-info": (),
}
#: And what its limits raise.
LIMITS = {
    "ge": "greater_than_equal",
    "le": "less_than_equal",
    "min_length": "too_short",
    "max_length": "string_too_long",
}
OTHER_LIMITS = {"gt", "lt", "multiple_of", "allow_inf_nan", "strict", "fail_fast"}


def parts(schema: object) -> Iterator[dict[str, Any]]:
    """Yield each part of a pydantic core schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema
        for key, value in schema.items():
            if key not in ("metadata", "serialization"):
                yield from parts(value)
    elif isinstance(schema, (list, tuple)):
        for value in schema:
            yield from parts(value)


@pytest.mark.parametrize("model", MODELS)
def test_each_kind_of_error_that_a_model_can_raise_has_words_of_ours(model: type[Model]) -> None:
    for part in parts(model.__pydantic_core_schema__):
        assert part["type"] in RAISES, part["type"]
        kinds = [*RAISES[part["type"]], *(kind for limit, kind in LIMITS.items() if limit in part)]
        assert set(kinds) <= set(WORDS), part["type"]
        assert not OTHER_LIMITS & {key for key in part if part[key] is not None}, part
        if part.get("pattern"):
            assert part["pattern"] in FORMS, f"say what {part['pattern']} is: yaml_model.form"


def places(schema: dict[str, Any], definitions: dict[str, Any], depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the places of a JSON schema that can be given a value, NAME for any key."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for each in schema.get("anyOf", []):
        yield from places(each, definitions, depth)
    for key, below in schema.get("properties", {}).items():
        yield (key,)
        yield from ((key, *rest) for rest in places(below, definitions, depth + 1))
    for keys in ("additionalProperties", "items"):
        if isinstance(schema.get(keys), dict) and depth < 6:
            name = "/name" if keys == "additionalProperties" else "0"
            yield (name,)
            yield from ((name, *rest) for rest in places(schema[keys], definitions, depth + 1))
    for below in schema.get("patternProperties", {}).values():
        yield ("name",)
        yield from (("name", *rest) for rest in places(below, definitions, depth + 1))


BAD = [
    None,
    True,
    7,
    -1,
    1.5,
    float("nan"),
    10**5000,
    "",
    "no such thing\x01",
    "x" * 200,
    b"\xff",
    [],
    ["x", 1],
    {},
    {"extra": 1},
    {1: 2},
    dt.date(2026, 1, 2),
    dt.datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.thorough
def test_no_message_of_the_validators_own_reaches_a_person(
    model: type[Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("{}")
    origin = yaml_model.Document(path, "a file")
    schema = model.model_json_schema()
    kinds = set()
    for place in dict.fromkeys(places(schema, schema.get("$defs", {}))):
        for bad in BAD:
            raw: Any = bad
            for key in reversed(place):
                raw = [raw] if key == "0" else {key: raw}
            with pytest.raises(ValidationError) as caught:
                model.model_validate(raw, context=tmp_path)
            for problem in caught.value.errors():
                if problem["type"] == "value_error":
                    continue
                kinds.add(problem["type"])
                where = tuple(str(part) for part in problem["loc"] if part != "[key]")
                said = yaml_model._in_words(problem, where, model, origin)
                assert problem["msg"].lower() not in said.lower()
                for theirs in ("Input", "input", "instance", "dictionary", "pattern", "^", "valid string", "parse"):
                    assert theirs not in said, (place, bad, said)
                assert "in another way" not in said, said
    assert kinds >= {"model_type", "string_type", "list_type", "extra_forbidden", "string_pattern_mismatch"}


def said(tmp_path: Path, model: type[Model], raw: dict[str, Any]) -> str:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(yaml_model.UsageError) as caught:
        load_model(model, path, "a file")
    return "\n".join([caught.value.message, *caught.value.details])


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"binds": ["/x"]}, "binds: unknown key here: 'binds' belongs under mpi.NAME"),
        ({"bind": ["/x"]}, "bind: unknown key, perhaps you meant 'binds', which belongs under mpi.NAME"),
        ({"workspce": "/x"}, "workspce: unknown key, perhaps you meant 'workspace'"),
        ({"login": {"hots": "x"}}, "login.hots: unknown key, perhaps you meant 'host'"),
        ({"policy": {"qqqq": 1}}, "policy.qqqq: unknown key; known here: account, runtimes, source"),
        ({"partitions": {"a": 5}}, "partitions.a: must hold keys, KEY: VALUE, not 5"),
        ({"login": None}, "login: must hold keys, KEY: VALUE, and has no value"),
        ({"facts": {"file": "f", "sha256": "0X"}}, "facts.sha256: '0X' is not valid: it must be 64 hexadecimal"),
        ({"partitions": {"a": {"nodes": 0}}}, "partitions.a.nodes: must be at least 1, not 0"),
        ({"fuse": "perhaps"}, "fuse: must be true or false, not 'perhaps'"),
        ({"source": {"kind": "document", "where": "x", "date": "soon"}}, "must be a date, YYYY-MM-DD, not 'soon'"),
        ({"fabric": {"kind": "infinband"}}, "not 'infinband', perhaps you meant 'infiniband'"),
    ],
)
def test_what_is_said_of_a_profile(tmp_path: Path, raw: dict[str, Any], text: str) -> None:
    assert text in said(tmp_path, Profile, {"format": 1, "name": "x", **raw})
