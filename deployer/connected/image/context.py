"""The build context: the files of a definition that are sent to the engine."""

import contextlib
from collections.abc import Iterator
from typing import IO

from docker.utils.build import exclude_paths
from docker.utils.build import tar as context_tar

from deployer.connected.image.definition.definition import Definition
from deployer.connected.image.definition.settings import tar_of
from deployer.connected.image.wheelhouse import lock as locks
from deployer.contract.base.errors import UsageError
from deployer.system import files

#: The Dockerfile of a definition without one. Its image is the base.
BASE_ALONE = b"ARG BASE\nFROM ${BASE}\n"


def write_context(definition: Definition, stream: IO[bytes]) -> None:
    """Write the context as a tar, without app, data, lock, the base's archive and the files in .dockerignore.

    App and data are separate members of the bundle. The lock of the wheelhouse is made after the image.

    Raises:
        UsageError: the folders are nested too deep, or a file cannot be read.
    """
    if definition.dockerfile_path is None:
        stream.write(tar_of({definition.dockerfile: BASE_ALONE}).getvalue())
    else:
        with _walked(definition):
            context_tar(definition.context_folder, exclude=_excluded(definition), fileobj=stream)
    stream.seek(0)


def names(definition: Definition) -> list[str]:
    """Return all paths in the context, relative to the definition's folder, sorted."""
    if definition.dockerfile_path is None:
        return []
    with _walked(definition):
        return sorted(exclude_paths(str(definition.context_folder), _excluded(definition)))


@contextlib.contextmanager
def _walked(definition: Definition) -> Iterator[None]:
    """Convert errors of docker's recursive walk through the context into DeployerErrors."""
    try:
        with files.errors_named("read the build context"):
            yield
    except RecursionError:
        hint = "remove them, or name them in .dockerignore"
        raise UsageError(f"the folders in {definition.context_folder} are nested too deep for a build", hint) from None


def _excluded(definition: Definition) -> list[str]:
    """Return the patterns of excluded paths. For each path, the last matching pattern decides."""
    excluded = []
    ignored = definition.context_folder / ".dockerignore"
    if files.is_file(str(ignored)):
        lines = [line.strip() for line in files.read_text(str(ignored)).splitlines()]
        excluded = [line for line in lines if line and not line.startswith("#")]
    top = definition.context_folder.resolve()
    base = definition.base.archive if definition.base else None
    apart = [definition.app_folder, *definition.data_folders.values(), definition.folder / base if base else None]
    for folder in (folder.resolve() for folder in apart if folder is not None):
        if folder != top and folder.is_relative_to(top):
            excluded.append(folder.relative_to(top).as_posix())
    return [*excluded, locks.FILE, f"!{definition.dockerfile}"]
