"""List all files in a bundle's layer in one pass."""

import hashlib
import itertools
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from deployer.connected.ground import frames
from deployer.connected.rootfs.entries import shown
from deployer.contract.base import json_records, tarformat
from deployer.contract.base.errors import IntegrityError
from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, SYMLINK, TarEntry
from deployer.contract.bundle.manifest import Segment
from deployer.system.trust.verify import Verification

_TYPES = {FOLDER: stat.S_IFDIR, FILE: stat.S_IFREG, SYMLINK: stat.S_IFLNK, HARDLINK: stat.S_IFREG}
_NAMES = {FOLDER: "folder", FILE: "file", SYMLINK: "symlink", HARDLINK: "hardlink"}


class ListedEntry(NamedTuple):
    """An entry of a layer.

    Attributes:
        entry: the entry.
        sha256: for a file, the digest of its content in hexadecimal, otherwise empty.
        head: the first bytes of its content, up to the requested number.
    """

    entry: TarEntry
    sha256: str
    head: bytes = b""

    def line(self) -> str:
        """Return mode, size in bytes, SHA-256, path, and link target."""
        entry = self.entry
        arrow = {SYMLINK: " -> ", HARDLINK: " = /"}.get(entry.kind, "")
        mode = stat.filemode(_TYPES[entry.kind] | entry.mode)
        return f"{mode} {entry.size:>12} {self.sha256 or '-':<64} /{shown(entry.path)}{arrow}{shown(entry.target)}"

    def record(self) -> json_records.Record:
        """Return the same fields for ``--json``. Paths have the same escapes."""
        entry = self.entry
        return {
            "kind": _NAMES[entry.kind],
            "mode": f"{entry.mode:04o}",
            "size": entry.size,
            "sha256": self.sha256 or None,
            "path": "/" + shown(entry.path),
            "target": shown(entry.target) or None,
        }


def files_of(bundle: Verification, wanted: Callable[[TarEntry], int] = lambda _: 0) -> Iterator[ListedEntry]:
    """Yield the entries of a bundle's layer in order, each with the requested first bytes of its file.

    Each frame is verified when it is read.

    Raises:
        IntegrityError: the layer is damaged.
    """
    frame = frames.reader(bundle.manifest.codec, bundle.read)
    for unit in units_of(bundle.layer_segments()):
        for entry, pieces in entries_of(unit, frame):
            digest, begun, head = hashlib.sha256(), b"", wanted(entry)
            for piece in pieces:
                digest.update(piece)
                begun += piece[: max(0, head - len(begun))]
            yield ListedEntry(entry, digest.hexdigest() if entry.kind == FILE else "", begun)


def units_of(segments: Iterable[Segment]) -> list[tuple[Segment, ...]]:
    """Return the units of a layer, which can be read alone: a frame with complete entries, or all of a large file."""
    units: list[tuple[Segment, ...]] = []
    for segment in segments:
        if segment.holds == tarformat.REST and units:
            units[-1] += (segment,)
        else:
            units.append((segment,))
    return units


def entries_of(
    unit: Sequence[Segment], frame: Callable[[Segment], bytes]
) -> Iterator[tuple[TarEntry, Iterator[memoryview]]]:
    """Yield the entries of a unit, each with the pieces of its content, which must be read first."""
    first = memoryview(frame(unit[0]))
    position = 0
    while bytes(first[position : position + 1]).strip(b"\0"):  # the tar ends with zeros
        entry, position = tarformat.decode(first, position)
        whole, here = entry.size + tarformat.padding(entry.size), len(first) - position
        if here < whole and here + sum(segment.raw or 0 for segment in unit[1:]) != whole:
            raise IntegrityError("the layer is cut off, or has more than its files")
        yield entry, _content(entry.size, itertools.chain([first[position:]], map(memoryview, map(frame, unit[1:]))))
        position += whole


def _content(size: int, parts: Iterator[memoryview]) -> Iterator[memoryview]:
    while size:
        part = next(parts)[:size]
        yield part
        size -= len(part)
