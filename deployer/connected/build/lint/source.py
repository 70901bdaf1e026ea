"""The input of rules: a definition, its Dockerfile, and the files of its context and app."""

import functools
import itertools
import os
import posixpath
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
        """Return the file of the definition that a path in the image or container probably means.

        Of several with this name: the one whose last folders are the same too, then one that a COPY names, itself or by
        a folder, then the one in the fewest folders.
        """
        wanted = Path(inside).parts[::-1]
        inner = [(path.relative_to(self.definition.context_folder), path) for path in self.context]
        if self.definition.app_folder is not None:
            inner += [(path.relative_to(self.definition.app_folder), path) for path in self.app]
        found = []
        for name, path in inner:
            alike = zip(name.parts[::-1], wanted, strict=False)
            same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], alike)))
            if same:
                is_copied = any(str(each) in self._copied for each in (name, *name.parents))
                found.append((same, is_copied, -len(name.parts), path))
        return max(found, key=lambda each: each[:-1])[-1] if found else None

    @functools.cached_property
    def _copied(self) -> frozenset[str]:
        """The files and folders of the context that the Dockerfile's COPY and ADD name."""
        copies = (each for each in self.dockerfile.instructions() if each.name in ("COPY", "ADD"))
        return frozenset(posixpath.normpath(word) for each in copies for word in each.words()[:-1])

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
