"""The list of a layer's frames with their files, so that another layer with some of the same frames can link them.

::

    ROOT/layers/KEY-UID/frames

It is optional: a layer without it, or with a damaged one, cannot give files to others. It is not in the inventory, so
an image that lost it is still whole.
"""

import os
import zlib
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from deployer.contract.manifest import Segment
from deployer.site.storage.store import ROOTFS
from deployer.system import files

LIST = "frames"
#: The most bytes of a list, and the same uncompressed.
_MAX = 64 * 1024 * 1024
_BETWEEN = b"\0"


class FrameNote(NamedTuple):
    """What was written of one frame.

    Attributes:
        written: bytes, without holes.
        files: the files that begin in it, as ``note`` returns them.
    """

    written: int
    files: Sequence[bytes]


class LayerFile(NamedTuple):
    """A file of a layer: its path, size in bytes, and mode in the tar."""

    path: bytes
    size: int
    mode: int


class ListedFrame(NamedTuple):
    """A frame of a layer that is here.

    Attributes:
        sha256: the digest of the compressed frame.
        holds: one of ``tarformat.HOLDINGS``.
        note: what was written of it.
    """

    sha256: str
    holds: str
    note: FrameNote

    def files(self) -> List[LayerFile]:
        """Return the files that begin in it."""
        return [LayerFile(path, int(size), int(mode, 8)) for mode, size, path in map(_split, self.note.files)]


class FrameList(NamedTuple):
    """The frames of a layer that is here.

    Attributes:
        finished: when all its files were complete: nanoseconds of the file system's clock.
        umask: of the process that wrote them.
        read_only: write permission was removed from them.
        folders: the inode of each folder with files, and of those above it: another one may have been moved there.
        frames: those that hold files, in order.
    """

    finished: int
    umask: int
    read_only: bool
    folders: Dict[bytes, int]
    frames: List[ListedFrame]


def note(path: bytes, size: int, mode: int) -> bytes:
    """Return a file of a layer as it is in the list."""
    return b"%o %d %s" % (mode, size, path)


def _split(file: bytes) -> Sequence[bytes]:
    return file.split(b" ", 2)


def _above(files_noted: Iterable[bytes]) -> Set[bytes]:
    """Return the folders above files; that of the layer itself is empty."""
    found: Set[bytes] = set()
    new = {file.split(b" ", 2)[2].rpartition(b"/")[0] for file in files_noted}
    while new - found:
        found |= new
        new = {path.rpartition(b"/")[0] for path in new}
    return found


def write(folder: str, noted: Sequence[Tuple[Segment, FrameNote]], read_only: bool) -> None:
    """Write the list of the layer in ``folder``, when all its files are complete."""
    rootfs = os.fsencode(os.path.join(folder, ROOTFS))
    above = _above(file for _, written in noted for file in written.files)
    folders = [b"%d %s" % (os.lstat(os.path.join(rootfs, path)).st_ino, path) for path in sorted(above)]
    with open(os.path.join(folder, LIST), "wb") as stream:
        finished = os.stat(stream.name).st_ctime_ns
        placed = _BETWEEN.join(folders)
        lines = [b"%d %o %d %d\n%s" % (finished, files.umask(), read_only, len(placed), placed)]
        for segment, written in noted:
            names = _BETWEEN.join(written.files)
            fields = (segment.sha256.encode(), str(segment.holds).encode(), written.written, len(names))
            lines.append(b"%s %s %d %d\n%s" % (*fields, names))
        stream.write(zlib.compress(b"".join(lines), 1))


def read(folder: str) -> Optional[FrameList]:
    """Return the list of the layer in ``folder``; None if it has none or a damaged one."""
    try:
        with files.open_regular(os.path.join(folder, LIST)) as stream:
            whole = zlib.decompressobj()
            data = whole.decompress(stream.read(_MAX), _MAX)
        return _parsed(data) if whole.eof else None
    except (OSError, zlib.error, ValueError):
        return None


def _parsed(data: bytes) -> FrameList:
    line, position = _line(data, 0)
    finished, umask, read_only, length = line.split()
    placed, position = _items(data, position, length)
    folders = {path: int(inode) for inode, path in (each.split(b" ", 1) for each in placed)}
    found = FrameList(int(finished), int(umask, 8), read_only == b"1", folders, [])
    while position < len(data):
        line, position = _line(data, position)
        sha256, holds, written, length = line.split()
        names, position = _items(data, position, length)
        noted = FrameNote(int(written), names)
        found.frames.append(ListedFrame(sha256.decode("ascii"), holds.decode("ascii"), noted))
    return found


def _items(data: bytes, position: int, length: bytes) -> Tuple[List[bytes], int]:
    """Return the items that are at a position in ``length`` bytes, and the position after them."""
    end = position + int(length)
    items = data[position:end]
    return items.split(_BETWEEN) if items else [], end


def _line(data: bytes, position: int) -> Tuple[bytes, int]:
    end = data.index(b"\n", position)
    return data[position:end], end + 1
