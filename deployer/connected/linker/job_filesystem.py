"""The file system that a job will see: an image with the plan's binds over it. Nothing is mounted or unpacked."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from deployer.contract.bundle import command
from deployer.contract.elf.dynamic import BadElf, Facts

#: Kinds of path entries.
FILE, FOLDER, LINK = command.FILE, command.FOLDER, command.LINK

#: The maximum number of bytes read from a file whose text is needed.
SMALL = 16 * 1024 * 1024

_MAX_LINKS = 40  # the kernel's limit


class Files(Protocol):
    """Files by absolute path; links are not followed."""

    def kind(self, path: str) -> str | None:
        """Return FILE, FOLDER or LINK; None if the path does not exist or is of another kind."""

    def target(self, path: str) -> str:
        """Return the target of the link at ``path``."""

    def facts(self, path: str) -> Facts | None:
        """Return the facts of the file at ``path``; None if it is not an ELF file. Raises BadElf."""

    def content(self, path: str) -> bytes:
        """Return the content of a small file; empty if it is unknown."""

    def names(self, path: str) -> list[str]:
        """Return the names in the folder at ``path``, unsorted; empty if it does not exist."""


class JobFilesystem:
    """An image's files with binds over them, by target; later binds hide earlier ones."""

    def __init__(self, image: Files, binds: Sequence[tuple[str, Files]] = ()) -> None:
        self._layers = [*reversed(binds), ("/", image)]

    def resolve(self, path: str) -> str | None:
        """Return the link-free path that ``path`` resolves to; None if it does not resolve."""
        done: list[str] = []
        todo = _names(path)[::-1]
        links = 0
        while todo:
            name = todo.pop()
            if name == "..":
                done = done[:-1]
                continue
            here = "/" + "/".join([*done, name])
            kind = self._kind(here)
            if kind == LINK:
                links += 1
                if links > _MAX_LINKS:
                    return None
                files, inner = self._at(here)
                target = files.target(inner)
                if target.startswith("/"):
                    done = []
                todo += _names(target)[::-1]
            elif kind is None or (kind == FILE and todo):
                return None
            else:
                done.append(name)
        return "/" + "/".join(done)

    def file(self, path: str) -> str | None:
        """Return the link-free path of a file; None if no file is at ``path``."""
        real = self.resolve(path)
        return real if real and self._kind(real) == FILE else None

    def facts(self, path: str) -> Facts | None:
        """Return the facts of the file at a path without links. Raises BadElf."""
        files, inner = self._at(path)
        return files.facts(inner)

    def facts_or_none(self, path: str) -> Facts | None:
        """Return the facts of the file at a path without links; None if it is not a complete ELF file."""
        try:
            return self.facts(path)
        except BadElf:
            return None

    def content(self, path: str) -> bytes:
        """Return the content of a small file; empty if it is unknown, or no file is at ``path``."""
        real = self.file(path)
        if real is None:
            return b""
        files, inner = self._at(real)
        return files.content(inner)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; empty if it does not exist."""
        real = self.resolve(path)
        if real is None:
            return []
        files, inner = self._at(real)
        return sorted(files.names(inner))

    def identity(self, path: str) -> tuple[int, str]:
        """Return a value that all names of one file share: the bind that contains it, and its path in that bind."""
        files, inner = self._at(path)
        return id(files), inner

    def _kind(self, path: str) -> str | None:
        files, inner = self._at(path)
        kind = files.kind(inner)
        if kind is None and any(_below(target, path) for target, _ in self._layers):
            return FOLDER  # flatten creates the folders that binds need
        return kind

    def _at(self, path: str) -> tuple[Files, str]:
        for target, files in self._layers:
            below = _below(path, target)
            if below is not None:
                return files, below or "/"
        raise AssertionError("the image is below everything")


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return the folders that contain the paths, including the root."""
    folders = {"/"}
    for path in paths:
        parts = path.strip("/").split("/")
        folders |= {"/" + "/".join(parts[:count]) for count in range(1, len(parts))}
    return folders


def _below(path: str, top: str) -> str | None:
    """Return the part of ``path`` below ``top``, empty or starting with a slash; None if it is elsewhere."""
    if top == "/":
        return path
    return path[len(top) :] if f"{path}/".startswith(f"{top}/") else None


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
