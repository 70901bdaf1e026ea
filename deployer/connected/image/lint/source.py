"""The input of lint rules: a definition, its Dockerfile, and the files of its context and app."""

import functools
import itertools
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path

from deployer.connected.image import context
from deployer.connected.image.definition.definition import FILE, Definition
from deployer.connected.image.definition.dockerfile import Instruction, parse
from deployer.connected.rootfs import datafolder
from deployer.system import files

#: The maximum size in bytes. Text written by hand is smaller. Larger files are not read.
MAX_TEXT = 1024 * 1024


class DefinitionSource:
    """A definition and its files, which are read when needed."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        path = definition.dockerfile_path
        self.name = str(definition.context_folder / definition.dockerfile)
        self.dockerfile = parse("" if path is None else files.read_text(str(path)))

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
        paths = (self.definition.context_folder / name for name in context.names(self.definition))
        return [path for path in paths if path.is_file() and not path.is_symlink()]

    @functools.cached_property
    def app(self) -> list[Path]:
        """The files of the app folder."""
        folder = self.definition.app_folder
        paths = (Path(os.fsdecode(path)) for path, _ in datafolder.walk(folder)) if folder else ()
        return sorted(path for path in paths if path.is_file())

    def find(self, inside: str) -> Path | None:
        """Return the definition's file to which a path in the image or container probably refers.

        If several files have this name, prefer one with the same last folders, then one that a COPY lists itself or
        with its folder, then the one in the fewest folders.
        """
        wanted = Path(inside).parts[::-1]
        inner = [(path.relative_to(self.definition.context_folder), path) for path in self.context]
        if self.definition.app_folder is not None:
            inner += [(path.relative_to(self.definition.app_folder), path) for path in self.app]
        candidates = []
        for name, path in inner:
            alike = zip(name.parts[::-1], wanted, strict=False)
            same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], alike)))
            if same:
                is_copied = any(str(part) in self._copied for part in (name, *name.parents))
                candidates.append((same, is_copied, -len(name.parts), path))
        return max(candidates, key=lambda candidate: candidate[:-1])[-1] if candidates else None

    @functools.cached_property
    def _copied(self) -> frozenset[str]:
        """The files and folders of the context in the Dockerfile's COPY and ADD instructions."""
        copies = (step for step in self.dockerfile.instructions() if step.name in ("COPY", "ADD"))
        return frozenset(posixpath.normpath(word) for step in copies for word in step.words()[:-1])

    def last(self, name: str) -> Iterator[Instruction]:
        """Yield the final image's last instruction of this name, if there is one."""
        yield from [step for step in self.dockerfile.image() if step.name == name][-1:]


def text_of(path: Path) -> str:
    """Return a file's text, or an empty text if the file is too large, binary or unreadable."""
    try:
        if path.stat().st_size > MAX_TEXT:
            return ""
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
