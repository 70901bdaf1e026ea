"""Files of a data folder for a bundle: regular files, one member per file, read in pieces."""

import os
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from deployer.connected.rootfs.entries import OnDisk, check_path, shown
from deployer.contract.base.errors import UsageError
from deployer.system import files

#: Bytes per piece. Each piece becomes a segment: if one byte changes, only its piece is sent again.
PIECE = 4 * 1024 * 1024


class DataFile(NamedTuple):
    """A regular file of a data folder.

    Attributes:
        name: the path relative to the folder.
        path: the path on this machine.
        size: bytes.
        mode: 0755 or 0644.
    """

    name: str
    path: bytes
    size: int
    mode: int


def files_of(folder: Path) -> list[DataFile]:
    """Return the files of a data folder, sorted by name. Empty folders are left out, because a bundle has only files.

    Raises:
        UsageError: there are no files, or there is something other than files and folders.
    """
    found = plain_files(folder, "data")
    if not found:
        raise UsageError(f"the data folder {folder} holds no files")
    return found


def app_files(folder: Path) -> list[DataFile]:
    """Return the files of an app folder like ``files_of``, without the caches that running the app creates."""
    return plain_files(folder, "app", {b"__pycache__"})


def plain_files(folder: Path, what: str, skipped: Collection[bytes] = ()) -> list[DataFile]:
    """Return the files below a folder, sorted by name.

    Args:
        what: the kind of folder for errors, for example "data".
        skipped: names of folders to leave out.

    Raises:
        UsageError: the folder has an unusable name, or something other than files and folders.
    """
    found = []
    with files.errors_named(f"read {folder}"):
        for path, name in walk(folder, skipped):
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                hint = f"the {what} folder of a bundle may hold only regular files; replace a link by a copy"
                raise UsageError(f"{shown(path)} is neither a file nor a folder", hint)
            try:
                text = name.decode()
            except UnicodeDecodeError:
                raise UsageError(f"the name of {shown(path)} is not Unicode text (UTF-8)", "rename it") from None
            found.append(DataFile(text, path, status.st_size, 0o755 if status.st_mode & 0o111 else 0o644))
    return sorted(found)


def walk(folder: Path, skipped: Collection[bytes] = ()) -> Iterator[tuple[bytes, bytes]]:
    """Yield the path and relative name of everything below a folder except folders, in no particular order.

    Raises:
        UsageError: a path is too long for any site.
    """
    top = os.fsencode(folder)
    todo = [b""]
    while todo:
        within = todo.pop()
        with os.scandir(os.path.join(top, within)) as entries:
            for entry in entries:
                name = os.path.join(within, entry.name)
                check_path(name, str(folder))
                if not entry.is_dir(follow_symlinks=False):
                    yield entry.path, name
                elif entry.name not in skipped:
                    todo.append(name)


def pieces(file: DataFile, advance: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
    """Yield a file's content in pieces. Raises UsageError if the file has changed since it was listed."""
    data = OnDisk(file.path, file.size)
    for start in range(0, file.size, PIECE):
        length = min(PIECE, file.size - start)
        piece = data.read(start, length)
        if len(piece) != length:
            raise UsageError(f"{shown(file.path)} became shorter while it was packed")
        yield piece
        advance(length)
