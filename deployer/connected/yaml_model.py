"""YAML files as strict typed models: all errors of a file at once, each with its path, unknown keys with a guess."""

import difflib
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from deployer.contract.errors import UsageError
from deployer.system import files


class Model(BaseModel):
    """The base of what people write: unknown keys are errors, and values keep their types."""

    model_config = ConfigDict(extra="forbid", frozen=True)


M = TypeVar("M", bound=Model)


def load_model(model: type[M], path: Path, what: str) -> M:
    """Return ``path`` as a ``model``; ``what`` names the kind of file in errors. Raises UsageError."""
    text = files.read_text(str(path), f"give the path of {what}")
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{path} is no {what.split(' ', 1)[-1]}: it holds no keys")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        problems = [_explain(problem, model) for problem in error.errors()]
        raise UsageError(f"{path}: " + "; ".join(problems)) from error


def _explain(problem: ErrorDetails, model: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        return f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
    name = str(problem["loc"][-1])
    close = difflib.get_close_matches(name, _known_keys(model), n=1)
    return f"{where}: unknown key" + (f", perhaps you meant {close[0]!r}" if close else "")


def _known_keys(model: type[BaseModel]) -> set[str]:
    """Return all the keys of a model and of the models in it: a guess may come from any of them."""
    keys = set()
    schema = model.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        keys |= set(part.get("properties", {}))
    return keys
