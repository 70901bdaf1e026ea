"""The input of rules: a definition, its Dockerfile, and the files of its context and app."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

from deployer.connected.build import context
from deployer.connected.build.definition import FILE, Definition
from deployer.connected.build.dockerfile import Instruction, parse
from deployer.connected.rootfs import datafolder
from deployer.system import files

#: Bytes. Text written by hand is smaller; larger files are not read.
MAX_TEXT = 1024 * 1024


class DefinitionSource:
    """A definition and its files, which are read when they are needed."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.dockerfile = parse("")
        path = definition.dockerfile_path
        self.name = str(definition.context_folder / definition.dockerfile)
        if path is not None:
            self.dockerfile = parse(files.read_text(str(path)))

    @property
    def bundle(self) -> str:
        """Return the path of bundle.yaml, for findings."""
        return str(self.definition.folder / FILE)

    def at(self, instruction: Instruction) -> str:
        """Return the position of an instruction, for findings."""
        return f"{self.name}:{instruction.line}"

    @functools.cached_property
    def context(self) -> list[Path]:
        """The files of the build context."""
        return list(context.paths(self.definition))

    @functools.cached_property
    def app(self) -> list[Path]:
        """The files of the app folder."""
        folder = self.definition.app_folder
        found = (Path(os.fsdecode(path)) for path, _ in datafolder.walk(folder)) if folder else ()
        return sorted(path for path in found if path.is_file())

    def find(self, inside: str) -> Path | None:
        """Return the file of the definition that a path in the image or container probably means."""
        name = Path(inside).name
        copied = [path for path in (*self.context, *self.app) if path.name == name]
        return copied[0] if copied else None

    def last(self, name: str) -> Iterator[Instruction]:
        """Yield the last instruction of this name in the final image, if any."""
        yield from [found for found in self.dockerfile.image() if found.name == name][-1:]


def text_of(path: Path) -> str:
    """Return a file's text, empty if it is too large, not text, or cannot be read."""
    try:
        if path.stat().st_size > MAX_TEXT:
            return ""
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
