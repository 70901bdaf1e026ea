"""init: write a new definition that works without changes, from a template."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from deployer.connected.image.definition.definition import BundleName
from deployer.contract.base import json_records
from deployer.contract.base.errors import UsageError
from deployer.system import files

_PACKAGE = Path(__file__).resolve().parents[2]
#: The folder of templates: in the package if it was installed from a wheel, otherwise with the other definitions.
TEMPLATES = next(filter(Path.is_dir, [_PACKAGE / "templates"]), _PACKAGE.parent / "bundles" / "templates")
#: The kinds of new definitions. Each is the name of a folder in ``templates``.
KINDS = ("none", "compiled", "tensorflow", "pytorch", "pytorch-ddp", "transformers", "lightning", "jax")

#: The folder of definitions and their schema, as in a checkout.
_HOME = "bundles"
_WITH_SCHEMA = "# yaml-language-server: $schema=../schema.json"
_WITHOUT_SCHEMA = (
    "# Editors complete from a schema: deployer schema >FILE, then # yaml-language-server: $schema=FILE here"
)


class Made(NamedTuple):
    """A new definition.

    Attributes:
        folder: its folder.
        files: the paths of its files.
    """

    folder: Path
    files: list[Path]

    def record(self) -> json_records.Record:
        """Return the fields for ``--json``."""
        return {"folder": str(self.folder), "files": [str(path) for path in self.files]}


def init(
    name: str,
    kind: str,
    where: Path,
    dry_run: bool = False,
    words: Callable[[Path, Path], Mapping[str, str]] = lambda *_: {},
    more: Sequence[str] = (),
) -> Made:
    """Write a new definition. After an error, nothing is left behind.

    Args:
        name: its name, and the name of its folder.
        kind: the name of the template.
        where: the parent folder. If it contains a folder ``bundles``, that folder is used instead.
        dry_run: only return the paths, without writing anything.
        words: returns further words of the template with their replacements. It receives the folder to write to, and
            the final name of this folder.
        more: the names of files that ``words`` writes.

    Raises:
        UsageError: the name is invalid, or the folder exists.
    """
    _check_name(name)
    home = where / _HOME if (where / _HOME).is_dir() else where
    folder = home / name
    if files.lexists(str(folder)):
        raise UsageError(f"{folder} already exists", "choose another name, or remove it: nothing is overwritten")
    template = TEMPLATES / kind
    names = sorted(path.relative_to(template) for path in template.rglob("*") if _is_ours(path))
    if not dry_run:
        editors = _WITH_SCHEMA if (home / "schema.json").is_file() else _WITHOUT_SCHEMA
        with files.errors_named(f"write {folder}"), tempfile.TemporaryDirectory(prefix=f".{name}.", dir=home) as work:
            unfinished = Path(work) / name
            unfinished.mkdir()
            replaced = {"NAME": name, "EDITORS": editors, **words(unfinished, folder)}
            for path in names:
                text = (template / path).read_text("utf-8")
                for word, value in replaced.items():
                    text = text.replace(f"@{word}@", value)
                (unfinished / path).parent.mkdir(parents=True, exist_ok=True)
                (unfinished / path).write_text(text, "utf-8")
            unfinished.rename(folder)
    return Made(folder, [folder / path for path in (*names, *map(Path, more))])


def _check_name(name: str) -> None:
    try:
        TypeAdapter(BundleName).validate_python(name)
    except ValidationError:
        hint = "lower-case letters and digits, with . _ - between them"
        raise UsageError(f"invalid name for a definition: {name!r}", hint) from None


def _is_ours(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
