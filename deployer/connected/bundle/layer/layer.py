"""The layer: a tar stream cut into independent frames at boundaries that depend on its files.

Small files are grouped for better compression. The hash of a file's path decides whether a group ends after the file.
So an added, removed or changed file moves only adjacent boundaries; all other frames stay the same, byte for byte.
Large files are cut at fixed intervals. Boundaries do not depend on contents, so the threads that compress contents
can also read them.
"""

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from deployer.connected.rootfs.entries import FileContent, shown
from deployer.contract.base import tarformat
from deployer.contract.base.errors import UsageError
from deployer.contract.base.tarformat import TarEntry

#: A group has at least GROUP_MIN bytes. After that, one file in GROUP_ODDS ends it, chosen by the hash of its path. No
#: group exceeds GROUP_MAX; the average is about 512 KiB. A file over GROUP_MAX is cut every LARGE bytes.
GROUP_MIN = 256 * 1024
GROUP_MAX = 1024 * 1024
GROUP_ODDS = 8
LARGE = 4 * 1024 * 1024

#: The end of a tar.
END = b"\0" * (2 * tarformat.BLOCK)


class SortedTree(Protocol):
    """Files in normal form."""

    def entries(self) -> Iterator[TarEntry]:
        """Yield folders, files, then links. Each folder comes before its content."""

    def content(self, entry: TarEntry) -> FileContent:
        """Return a file's content."""


class Piece(NamedTuple):
    """A piece of the layer's tar stream, which becomes one frame.

    Attributes:
        holds: what it contains (``tarformat.HOLDINGS``).
        weight: its approximate size in bytes, without some headers.
        read: returns its bytes. Any thread may call it.
    """

    holds: str
    weight: int
    read: Callable[[], bytes]


def pieces(tree: SortedTree, least: int = GROUP_MIN, most: int = GROUP_MAX) -> Iterator[Piece]:
    """Yield the layer's uncompressed tar stream: folders, files, links.

    A header is never split between two pieces. The last piece always contains the links and the end of the tar.

    Args:
        least: bytes after which the hash of a path may end a group.
        most: bytes after which a group ends.
    """
    for section, entries in itertools.groupby(tree.entries(), lambda entry: tarformat.SECTIONS[entry.kind]):
        if section == tarformat.LINKS:
            yield _links(list(entries))
            return
        yield from _section(tree, section, entries, least, most)
    yield _links([])


def _links(entries: Sequence[TarEntry]) -> Piece:
    weight = (len(entries) + 2) * tarformat.BLOCK
    return Piece(tarformat.LINKS, weight, lambda: b"".join(map(tarformat.encode, entries)) + END)


def _section(tree: SortedTree, section: str, entries: Iterable[TarEntry], least: int, most: int) -> Iterator[Piece]:
    group: list[TarEntry] = []
    size = 0
    for entry in entries:
        if entry.size > most:
            if group:
                yield Piece(section, size, partial(_whole, tree, group))
                group, size = [], 0
            yield from _large(entry, tree.content(entry))
            continue
        group.append(entry)
        size += tarformat.BLOCK + entry.size + tarformat.padding(entry.size)
        if size >= most or (size >= least and zlib.crc32(entry.path) % GROUP_ODDS == 0):
            yield Piece(section, size, partial(_whole, tree, group))
            group, size = [], 0
    if group:
        yield Piece(section, size, partial(_whole, tree, group))


def _whole(tree: SortedTree, entries: Sequence[TarEntry]) -> bytes:
    """Return complete entries: headers, contents, padding."""
    parts = []
    for entry in entries:
        parts.append(tarformat.encode(entry))
        if entry.size:
            parts += (_exactly(tree.content(entry), 0, entry.size, entry), bytes(tarformat.padding(entry.size)))
    return b"".join(parts)


def _large(entry: TarEntry, content: FileContent) -> Iterator[Piece]:
    """Yield a large file in pieces of LARGE bytes. The first includes the header, the last the padding."""
    for start in range(0, entry.size, LARGE):
        length = min(LARGE, entry.size - start)
        yield Piece(tarformat.REST if start else tarformat.FILES, length, partial(_part, entry, content, start, length))


def _part(entry: TarEntry, content: FileContent, start: int, length: int) -> bytes:
    part = _exactly(content, start, length, entry)
    front = b"" if start else tarformat.encode(entry)
    end = bytes(tarformat.padding(entry.size) if start + length == entry.size else 0)
    return b"".join((front, part, end)) if front or end else part


def _exactly(content: FileContent, start: int, length: int, entry: TarEntry) -> bytes:
    part = content.read(start, length)
    if len(part) != length:
        raise UsageError(f"/{shown(entry.path)} became shorter while it was packed")
    return part
