"""A data folder on its way into a bundle: plain files, a member each, read in pieces and never whole."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from deployer.connected.members import OnDisk, shown
from deployer.contract.errors import UsageError
from deployer.system import files

#: A piece becomes a segment: what is sent again when one byte in it changes.
PIECE = 4 * 1024 * 1024


class DataFile(NamedTuple):
    """A regular file: its name relative to the folder, where it is, its size in bytes, 0755 or 0644."""

    name: str
    path: bytes
    size: int
    mode: int


def files_of(folder: Path) -> list[DataFile]:
    """Return the files of a data folder, sorted by name. Raises UsageError for what cannot go into a bundle.

    Empty folders in it are left out: a bundle's members are files.
    """
    found = []
    with files.errors_named(f"read {folder}"):
        for path in _walk(os.fsencode(folder)):
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                hint = "a data folder holds plain files only; put a copy in the place of a link"
                raise UsageError(f"{shown(path)} is neither a file nor a folder", hint)
            try:
                name = os.path.relpath(path, os.fsencode(folder)).decode()
            except UnicodeDecodeError:
                raise UsageError(f"the name of {shown(path)} is not Unicode text (UTF-8)", "rename it") from None
            found.append(DataFile(name, path, status.st_size, 0o755 if status.st_mode & 0o111 else 0o644))
    if not found:
        raise UsageError(f"the data folder {folder} holds no files")
    return sorted(found)


def pieces(file: DataFile, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Yield a file's content in pieces. Raises UsageError for one that changed since it was listed."""
    data = OnDisk(file.path, file.size)
    for start in range(0, file.size, PIECE):
        length = min(PIECE, file.size - start)
        piece = data.read(start, length)
        if len(piece) != length:
            raise UsageError(f"{shown(file.path)} became shorter while it was packed")
        yield piece
        advance(length)


def _walk(folder: bytes) -> Iterator[bytes]:
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        else:
            yield entry.path
