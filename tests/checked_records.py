"""Every record that a command prints in a test, and every answer of a site's command, has the command's schema."""

import argparse
import functools
import json
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from deployer.connected.transfer.remote import Remote
from deployer.system import terminal
from scripts import output_schemas

SCHEMAS = output_schemas.schemas()

#: The commands whose records were seen in this run, for the test that prints them all.
SEEN: set[str] = set()

#: All keys of a job, for sites that tests play.
JOB = {
    **dict.fromkeys(("job", "job_id", "folder", "bundle", "version", "site", "log"), "x"),
    **dict.fromkeys(("state", "reason", "elapsed", "nodes", "problem", "remedy"), ""),
    "active": False, "exit_code": None, "seconds": None,
}  # fmt: skip


def closed(schema: Any) -> Any:
    """Return a schema that refuses unknown keys: what is printed must be described."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: closed(each) for key, each in schema.items()} | (
        {"additionalProperties": False} if isinstance(schema.get("properties"), dict) and "type" in schema else {}
    )


@functools.cache
def validator(command: str) -> Any:
    """Return what checks a command's records."""
    schema = closed(SCHEMAS[command])
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check(command: str, record: Any) -> None:
    """Check a record, unless deployer itself alone calls this command."""
    if command in SCHEMAS:
        SEEN.add(command)
        error = jsonschema.exceptions.best_match(validator(command).iter_errors(json.loads(json.dumps(record))))
        assert error is None, f"{command}: {error.json_path}: {error.message}"


def _command() -> str:
    """Return the command that is being run: that of the innermost parsed arguments."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        args = frame.f_locals.get("args")
        if isinstance(args, argparse.Namespace) and hasattr(args, "command"):
            return " ".join(filter(None, [args.command, getattr(args, "verb", "")]))
        frame = frame.f_back
    return ""


@pytest.fixture(scope="session", autouse=True)
def records_have_their_schemas() -> Iterator[None]:
    """Check all records that the tests of this process make."""
    show, answer = terminal.show_json, Remote._answer

    def checked(record: Any, indent: int | None = None, mark: str = "") -> None:
        if not mark:
            check(_command(), record)
        show(record, indent, mark)

    def heard(self: Remote, done: Any, words: Any, *more: Any) -> Any:
        fields = answer(self, done, words, *more)
        if "tests/integration" in os.environ["PYTEST_CURRENT_TEST"]:  # elsewhere, it is not a site that answers
            check(words[0], fields.record)
        return fields

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "show_json", checked)
        patch.setattr(Remote, "_answer", heard)
        yield
