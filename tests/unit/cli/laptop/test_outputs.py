"""schema --output: each command with --json has a schema; checked_records.py holds all tests' records against it."""

import argparse
import json
from collections.abc import Iterator

import jsonschema  # type: ignore[import-untyped]
import pytest

from deployer.cli.laptop import main as laptop
from deployer.cli.site import common
from deployer.cli.site import main as site
from scripts import output_schemas
from tests import checked_records
from tests.checked_records import SCHEMAS


def with_json(words: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the commands below a parser that have --json."""
    if "--json" in parser._option_string_actions:
        yield " ".join(words)
    for action in common.verbs(parser):
        for name, verb in action.choices.items():
            yield from with_json((*words, str(name)), verb)


def test_the_file_of_the_package_is_up_to_date() -> None:
    """If it is not: .venv/bin/python -m scripts.output_schemas."""
    assert output_schemas.FILE.read_text() == output_schemas.text()


def test_each_command_with_a_record_has_a_schema() -> None:
    fronts = (laptop.front(), site.front())
    commands = {
        found
        for front in fronts
        for name, parser in zip(front.table, front.command_parsers(), strict=True)
        for found in with_json((name,), parser)
    }
    assert commands - {"profile schema"} == set(SCHEMAS)


@pytest.mark.parametrize("command", SCHEMAS)
def test_it_is_printed_and_valid(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert laptop.main(["schema", "--output", *command.split()]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] == f"deployer {command} --json"


def test_a_type_that_contains_itself_and_the_words_of_docstrings() -> None:
    schema = SCHEMAS["status"]
    assert schema["$ref"] == "#/$defs/Status"
    job = schema["$defs"]["Status"]
    assert job["properties"]["tasks"]["items"] == {"$ref": "#/$defs/Status"}
    assert job["properties"]["active"] == {"type": "boolean", "description": "whether the state can still change."}
    assert "folder" in job["required"]
    assert "tasks" not in job["required"]


def test_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert laptop.main(["schema", "--output", "stats"]) == 2
    assert "no command 'stats' prints a record, perhaps you meant 'status'" in capsys.readouterr().err


def test_what_is_not_described_fails() -> None:
    job = {**checked_records.JOB, "tasks": [checked_records.JOB]}
    checked_records.check("status", job)
    with pytest.raises(AssertionError, match="'colour' was unexpected"):
        checked_records.check("status", {**job, "tasks": [{**checked_records.JOB, "colour": "red"}]})
    with pytest.raises(AssertionError, match=r"status: .*: 'folder' is a required property"):
        checked_records.check("status", {key: value for key, value in job.items() if key != "folder"})
