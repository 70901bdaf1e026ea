"""The layer: a tar stream cut into independent frames, on boundaries that depend on what it holds.

Small files are grouped, so that compression has something to work with; the group ends where the hash of a file's path
says so, so that a file that comes, goes or grows moves no boundary but its neighbours' and the rest of the frames stay
byte for byte the same. Large files are cut at fixed distances. Boundaries need no content, so it is read where it is
compressed, on all cores.
"""

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from deployer.connected.rootfs.entries import FileContent, shown
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.contract import tarformat
from deployer.contract.errors import UsageError
from deployer.contract.tarformat import TarEntry

#: A group is at least GROUP_MIN bytes, then ends at one file in GROUP_ODDS (by its path's hash), and at GROUP_MAX at
#: the latest: 512 KiB or so on average. A file over GROUP_MAX is cut every LARGE bytes.
GROUP_MIN = 256 * 1024
GROUP_MAX = 1024 * 1024
GROUP_ODDS = 8
LARGE = 4 * 1024 * 1024

_END = b"\0" * (2 * tarformat.BLOCK)


class Piece(NamedTuple):
    """What becomes one frame: some of the layer's tar stream, and what it holds (``tarformat.HOLDINGS``).

    ``read`` returns its bytes, in any thread; ``weight`` is how many they are, up to a few headers.
    """

    holds: str
    weight: int
    read: Callable[[], bytes]


def pieces(tree: FlattenedRootfs) -> Iterator[Piece]:
    """Yield the layer's tar stream, uncompressed: folders, files, links.

    A header never spans two pieces. The last piece holds links and the end of the tar, always.
    """
    for section, entries in itertools.groupby(tree.entries(), lambda entry: tarformat.SECTIONS[entry.kind]):
        if section == tarformat.LINKS:
            yield _links(list(entries))
            return
        yield from _section(tree, section, entries)
    yield _links([])


def _links(entries: Sequence[TarEntry]) -> Piece:
    weight = (len(entries) + 2) * tarformat.BLOCK
    return Piece(tarformat.LINKS, weight, lambda: b"".join(map(tarformat.encode, entries)) + _END)


def _section(tree: FlattenedRootfs, section: str, entries: Iterable[TarEntry]) -> Iterator[Piece]:
    group: list[TarEntry] = []
    size = 0
    for entry in entries:
        if entry.size > GROUP_MAX:
            if group:
                yield Piece(section, size, partial(_whole, tree, group))
                group, size = [], 0
            yield from _large(entry, tree.content(entry))
            continue
        group.append(entry)
        size += tarformat.BLOCK + entry.size + tarformat.padding(entry.size)
        if size >= GROUP_MAX or (size >= GROUP_MIN and zlib.crc32(entry.path) % GROUP_ODDS == 0):
            yield Piece(section, size, partial(_whole, tree, group))
            group, size = [], 0
    if group:
        yield Piece(section, size, partial(_whole, tree, group))


def _whole(tree: FlattenedRootfs, entries: Sequence[TarEntry]) -> bytes:
    """Return whole entries: headers, contents, padding."""
    parts = []
    for entry in entries:
        parts.append(tarformat.encode(entry))
        if entry.size:
            parts += (_exactly(tree.content(entry), 0, entry.size, entry), bytes(tarformat.padding(entry.size)))
    return b"".join(parts)


def _large(entry: TarEntry, content: FileContent) -> Iterator[Piece]:
    """Yield a large file: its header and the first LARGE bytes, then LARGE bytes each, the padding with the last."""
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
