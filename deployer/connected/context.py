"""The build's context: which files of a definition go to the engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from docker.utils.build import exclude_paths
from docker.utils.build import tar as context_tar

from deployer.connected.builders.settings import tar_of
from deployer.connected.definition import Definition
from deployer.system import files

#: The Dockerfile of a definition that has none: its image is the base.
BASE_ALONE = b"ARG BASE\nFROM ${BASE}\n"


def write(definition: Definition, stream: IO[bytes]) -> None:
    """Write the context as a tar: the definition's folder but the app, which is carried apart, and .dockerignore's."""
    if definition.dockerfile_path is None:
        stream.write(tar_of({definition.dockerfile: BASE_ALONE}).getvalue())
    else:
        with files.errors_named("write the build context"):
            context_tar(definition.folder, exclude=_excluded(definition), fileobj=stream)
    stream.seek(0)


def paths(definition: Definition) -> Iterator[Path]:
    """Yield the files of the context, sorted."""
    if definition.dockerfile_path is None:
        return
    with files.errors_named("read the build context"):
        for name in sorted(exclude_paths(str(definition.folder), _excluded(definition))):
            path = definition.folder / name
            if path.is_file() and not path.is_symlink():
                yield path


def _excluded(definition: Definition) -> list[str]:
    """Return the patterns of what stays out; the last that matches a path counts."""
    excluded = []
    ignored = definition.folder / ".dockerignore"
    if ignored.is_file():
        lines = [line.strip() for line in files.read_text(str(ignored)).splitlines()]
        excluded = [line for line in lines if line and not line.startswith("#")]
    app = definition.app_folder
    if app is not None and app.resolve().is_relative_to(definition.folder.resolve()):
        excluded.append(app.resolve().relative_to(definition.folder.resolve()).as_posix())
    return [*excluded, f"!{definition.dockerfile}"]
