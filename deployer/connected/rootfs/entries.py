"""Entries of a layer from any source: files with their metadata and access to their contents."""

import errno
import os
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple, Protocol

from deployer.contract.base import tarformat
from deployer.contract.base.errors import UsageError
from deployer.system import files

#: Kinds that exist in images but not in our layers: devices (including pipes) and sockets. Other kinds: tarformat.
DEVICE, SOCKET = b"device", b"socket"


class FileContent(Protocol):
    """The content of a file, ``size`` bytes. Every thread can read any part at any time."""

    size: int

    def read(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start``, fewer only at the end. Raises UsageError if they are unreadable."""


def reader_of(content: FileContent) -> Callable[[int, int], bytes]:
    """Return a function from an offset and a size to the content there, empty beyond the end."""
    return lambda offset, size: content.read(offset, min(size, content.size - offset)) if offset < content.size else b""


class Extent(NamedTuple):
    """A piece of a file in an open stream, in bytes.

    Attributes:
        start: its position in the file.
        offset: its position in the stream.
        length: its length.
    """

    start: int
    offset: int
    length: int


class Stored:
    """Content in an open file: one piece, or several pieces with holes of zeros between them (a sparse file)."""

    def __init__(self, stream: IO[bytes], size: int, extents: tuple[Extent, ...]) -> None:
        self.size = size
        self._stream = stream
        self._extents = extents

    def read(self, start: int, length: int) -> bytes:
        length = max(min(length, self.size - start), 0)
        if len(self._extents) == 1 and self._extents[0].length == self.size:
            return self._read(self._extents[0].offset + start, length)
        whole = bytearray(length)
        for extent in self._extents:
            low, high = max(start, extent.start), min(start + length, extent.start + extent.length)
            if low < high:
                whole[low - start : high - start] = self._read(extent.offset + low - extent.start, high - low)
        return bytes(whole)

    def place(self) -> tuple[IO[bytes], int]:
        """Return the stream and offset of content in one piece. Raises UsageError for a sparse file."""
        if len(self._extents) != 1 or self._extents[0].length != self.size:
            raise UsageError("the archive has a part stored as a sparse file")
        return self._stream, self._extents[0].offset

    def _read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._stream.fileno(), length, offset)
        while len(data) < length:
            more = os.pread(self._stream.fileno(), length - len(data), offset + len(data))
            if not more:
                raise UsageError("the source of the root filesystem became shorter while it was read")
            data += more
        return data


class OnDisk:
    """Content in a file on disk. The file is opened for each read, so many objects use no file descriptors."""

    def __init__(self, path: bytes, size: int) -> None:
        self.size = size
        self._path = path

    def read(self, start: int, length: int) -> bytes:
        shown = os.fsdecode(self._path)
        with files.errors_named(f"read {shown}"):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_size != self.size:
                    raise UsageError(f"{shown} changed while it was packed", "pack again when no program writes to it")
                length = max(min(length, self.size - start), 0)
                if length >= files.HOLE and _is_hole(descriptor, start, length):
                    return bytes(length)
                return os.pread(descriptor, length, start)
            finally:
                os.close(descriptor)


def _is_hole(descriptor: int, start: int, length: int) -> bool:
    """Return whether a part of an open file is a hole. Holes need not be read, because their bytes are zeros."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA) >= start + length
    except OSError as error:
        return error.errno == errno.ENXIO  # there is no data up to the end


class InMemory:
    """Content in memory."""

    def __init__(self, content: bytes = b"") -> None:
        self.size = len(content)
        self._content = content

    def read(self, start: int, length: int) -> bytes:
        return self._content[start : start + length]


class FileEntry(NamedTuple):
    """An entry of a layer, unchanged from its source.

    Attributes:
        kind: one of tarformat's kinds, DEVICE or SOCKET.
        path: the path from the source, not yet checked.
        mode: the permission bits with setuid, setgid and sticky.
        mtime: seconds since the epoch.
        target: the target of a link.
        data: the content of a file.
        owned: whether the owner is not root.
        attributes: whether the entry has extended attributes (capabilities, ACLs).
    """

    kind: bytes
    path: bytes
    mode: int
    mtime: int = 0
    target: bytes = b""
    data: FileContent | None = None
    owned: bool = False
    attributes: bool = False


FileEntries = Iterator[FileEntry]


def check_path(path: bytes, place: str = "") -> None:
    """Raise UsageError if a path is too long for any site. ``place`` is its parent folder, for the message."""
    excess = tarformat.too_long(path)
    if excess:
        where = shown(path[:100]) + ("..." if len(path) > 100 else "")
        raise UsageError(f"the path {place}/{where} {excess}", "shorten or remove it: no site could install it")


def shown(path: bytes) -> str:
    """Return a path as one printable line. Backslashes and everything that is not printable UTF-8 are escaped."""
    text = path.decode("utf-8", "surrogateescape")
    return "".join(letter if letter.isprintable() and letter != "\\" else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode()
