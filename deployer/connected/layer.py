"""The layer: a tar stream cut into independent frames, on boundaries that depend on content.

Small files are grouped, so that compression has something to work with; the group ends where the hash of a file says
so, so that a change in one file moves no boundary but its neighbours' and the rest of the frames stay byte for byte the
same. Large files are cut at fixed distances.
"""

import itertools
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from deployer.connected.flatten import Tree
from deployer.connected.members import Data, shown
from deployer.contract import tarformat
from deployer.contract.errors import UsageError
from deployer.contract.tarformat import Entry

#: A group is at least GROUP_MIN bytes, then ends at one file in GROUP_ODDS (by its hash), and at GROUP_MAX at the
#: latest: 512 KiB or so on average. A file over GROUP_MAX is cut every LARGE bytes.
GROUP_MIN = 256 * 1024
GROUP_MAX = 1024 * 1024
GROUP_ODDS = 8
LARGE = 4 * 1024 * 1024

_END = b"\0" * (2 * tarformat.BLOCK)


class Piece(NamedTuple):
    """What becomes one frame: some of the layer's tar stream, and what it holds (``tarformat.HOLDINGS``)."""

    holds: str
    data: bytes


def pieces(tree: Tree) -> Iterator[Piece]:
    """Yield the layer's tar stream, uncompressed: folders, files, links.

    A header never spans two pieces. The last piece holds links and the end of the tar, always.
    """
    for section, entries in itertools.groupby(tree.entries(), lambda entry: tarformat.SECTIONS[entry.kind]):
        if section == tarformat.LINKS:
            yield Piece(section, b"".join(map(tarformat.encode, entries)) + _END)
            return
        yield from _section(tree, section, entries)
    yield Piece(tarformat.LINKS, _END)


def _section(tree: Tree, section: str, entries: Iterable[Entry]) -> Iterator[Piece]:
    group: list[bytes] = []
    size = 0
    for entry in entries:
        if entry.size > GROUP_MAX:
            if group:
                yield Piece(section, b"".join(group))
                group, size = [], 0
            yield from _large(entry, tree.content(entry))
            continue
        parts = [tarformat.encode(entry)]
        if entry.size:
            parts += [_exactly(tree.content(entry), 0, entry.size, entry), b"\0" * tarformat.padding(entry.size)]
        crc = 0
        for part in parts:
            crc = zlib.crc32(part, crc)
            size += len(part)
        group += parts
        if size >= GROUP_MAX or (size >= GROUP_MIN and crc % GROUP_ODDS == 0):
            yield Piece(section, b"".join(group))
            group, size = [], 0
    if group:
        yield Piece(section, b"".join(group))


def _large(entry: Entry, content: Data) -> Iterator[Piece]:
    """Yield a large file: its header and the first LARGE bytes, then LARGE bytes each, the padding with the last."""
    holds, front = tarformat.FILES, tarformat.encode(entry)
    for start in range(0, entry.size, LARGE):
        length = min(LARGE, entry.size - start)
        end = b"\0" * (tarformat.padding(entry.size) if start + length == entry.size else 0)
        part = _exactly(content, start, length, entry)
        yield Piece(holds, b"".join((front, part, end)) if front or end else part)
        holds, front = tarformat.REST, b""


def _exactly(content: Data, start: int, length: int, entry: Entry) -> bytes:
    part = content.read(start, length)
    if len(part) != length:
        raise UsageError(f"/{shown(entry.path)} became shorter while it was packed")
    return part
