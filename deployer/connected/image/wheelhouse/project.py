"""A project's own files as requirements: ``uv.lock`` with its hashes, or ``pyproject.toml``.

The project itself is not among them: its files are the bundle's app. Source: uv's reference, ``uv export``.
"""

import sys
from pathlib import Path
from typing import Any

import tomli
import uv
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from deployer.connected.image.wheelhouse.target import Target
from deployer.contract.base.errors import UsageError
from deployer.system import files, process

LOCK, PROJECT = "uv.lock", "pyproject.toml"
_SECONDS = 60


def own_files(path: Path) -> list[Path]:
    """Return the files that are read if requirements are of a project; empty if they are not."""
    return [path, path.with_name(PROJECT)] if path.name == LOCK else [path] if path.name == PROJECT else []


def exported(path: Path) -> str:
    """Return the requirements of a project in pip's form.

    Raises:
        UsageError: uv cannot read the lock, or the project does not list its requirements.
    """
    if path.name == PROJECT:
        project = _read(path).get("project", {})
        listed = project.get("dependencies") if isinstance(project, dict) else None
        if not isinstance(listed, list):
            raise UsageError(f"{path} has no list `dependencies` in [project]", "give a requirements file, or uv.lock")
        return "".join(f"{line}\n" for line in listed)
    argv = [
        uv.find_uv_bin(), "export", "--quiet", "--frozen", "--offline", "--no-config", "--no-emit-project",
        "--no-default-groups", "--no-header", "--no-annotate", "--format=requirements-txt", "--no-python-downloads",
        f"--python={sys.executable}",
    ]  # fmt: skip
    done = process.run(argv, _SECONDS, process.base_environment("XDG_CACHE_HOME"), cwd=str(path.parent), check=False)
    if done.returncode:
        raise UsageError(f"uv cannot read {path}: {done.last_words()}", "lock the project again: uv lock")
    return done.stdout


def check_python(path: Path, target: Target) -> None:
    """Raise UsageError if a project is not for the image's Python."""
    if not own_files(path):
        return
    record = _read(path)
    wanted = str(record.get("requires-python") or record.get("project", {}).get("requires-python") or "")
    version = "{}.{}".format(*target.python)
    try:
        fits = SpecifierSet(wanted).contains(f"{version}.99")
    except InvalidSpecifier as error:
        raise UsageError(f"{path}: requires-python: {error}") from error
    if not fits:
        raise UsageError(f"{path} is for Python {wanted}, and the image has {version}", "use a base with such a Python")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomli.loads(files.read_text(str(path), "python.requirements in bundle.yaml names it"))
    except tomli.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
