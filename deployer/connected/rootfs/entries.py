"""What a layer is made of, whatever it is read from: members with their metadata, and where their bytes lie."""

import errno
import io
import os
from collections.abc import Iterator
from typing import IO, Any, NamedTuple, Protocol

from deployer.contract import tarformat
from deployer.contract.errors import UsageError
from deployer.system import files

#: Kinds that our layers do not have: devices and pipes, which a tar has, and sockets. The others are tarformat's.
DEVICE, SOCKET = b"device", b"socket"


class FileContent(Protocol):
    """The content of a file: ``size`` bytes, of which any part can be read at any time, by any thread."""

    size: int

    def read(self, start: int, length: int) -> bytes:
        """Return the bytes from ``start``; fewer than ``length`` only at the end. Raises UsageError."""


class Extent(NamedTuple):
    """``length`` bytes of a file that stand at ``offset`` of an open stream."""

    start: int
    offset: int
    length: int


class Stored:
    """Content in an open file: in one piece, or in several with holes of zeros between them (a sparse file)."""

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
        """Return the file and offset of content in one piece. Raises UsageError for a sparse file."""
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
    """Content that is a file of its own; it is opened anew for each read, so that any number of them cost nothing."""

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
                return bytes(length) if _is_hole(descriptor, start, length) else os.pread(descriptor, length, start)
            finally:
                os.close(descriptor)


def _is_hole(descriptor: int, start: int, length: int) -> bool:
    """Return whether a part of an open file is a hole, which need not be read: it holds zeros."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA) >= start + length
    except OSError as error:
        return error.errno == errno.ENXIO  # no data up to the end


class InMemory:
    """Content that is at hand."""

    def __init__(self, content: bytes = b"") -> None:
        self.size = len(content)
        self._content = content

    def read(self, start: int, length: int) -> bytes:
        return self._content[start : start + length]


class Reader(io.RawIOBase):
    """Content as a file that can be read and sought in."""

    def __init__(self, data: FileContent) -> None:
        self._data = data
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._data.size}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        found = self._data.read(self._position, len(buffer))
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)


class FileEntry(NamedTuple):
    """One entry of a layer as its source has it.

    ``kind`` is one of tarformat's, DEVICE or SOCKET; ``path`` as it was written, not yet checked; ``mode`` the
    permission bits with setuid, setgid and sticky; ``mtime`` in seconds; ``target`` of a link; ``data`` of a file;
    ``owned``: it is not root's; ``attributes``: it has extended attributes (capabilities, ACLs).
    """

    kind: bytes
    path: bytes
    mode: int
    mtime: int = 0
    target: bytes = b""
    data: FileContent | None = None
    owned: bool = False
    attributes: bool = False


Members = Iterator[FileEntry]


def check_path(path: bytes, place: str = "") -> None:
    """Raise UsageError for a path that no site can hold; ``place`` is where it is."""
    excess = tarformat.too_long(path)
    if excess:
        where = shown(path[:100]) + ("..." if len(path) > 100 else "")
        raise UsageError(f"the path {place}/{where} {excess}", "shorten or remove it: no site could install it")


def shown(path: bytes) -> str:
    """Return a path for people, in one line: what is not printable UTF-8, and the backslash, as an escape."""
    text = path.decode("utf-8", "surrogateescape")
    return "".join(letter if letter.isprintable() and letter != "\\" else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode()
