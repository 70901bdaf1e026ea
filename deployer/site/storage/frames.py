"""The list of a layer's frames with their files, so that another layer with some of the same frames can link them.

::

    ROOT/layers/KEY-UID/frames

It is optional: a layer without it, or with a damaged one, cannot give files to others. It is not in the inventory, so
an image that lost it is still whole.
"""

import json
import os
import zlib
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from deployer.contract import json_records
from deployer.contract.errors import DeployerError
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
    """Return mode, size and path of a file in the list."""
    return file.split(b" ", 2)


def _above(files_noted: Iterable[bytes]) -> Set[bytes]:
    """Return the folders above files; that of the layer itself is empty."""
    above: Set[bytes] = set()
    new = {_split(file)[2].rpartition(b"/")[0] for file in files_noted}
    while new - above:
        above |= new
        new = {path.rpartition(b"/")[0] for path in new}
    return above


def write(folder: str, noted: Sequence[Tuple[Segment, FrameNote]], read_only: bool) -> None:
    """Write the list of the layer in ``folder``, when all its files are complete."""
    rootfs = os.fsencode(os.path.join(folder, ROOTFS))
    above = _above(file for _, written in noted for file in written.files)
    with open(os.path.join(folder, LIST), "wb") as stream:
        record = {
            "finished": os.stat(stream.name).st_ctime_ns,
            "umask": files.umask(),
            "read_only": read_only,
            "folders": {os.fsdecode(path): os.lstat(os.path.join(rootfs, path)).st_ino for path in sorted(above)},
            "frames": [
                [segment.sha256, segment.holds, written.written, os.fsdecode(_BETWEEN.join(written.files))]
                for segment, written in noted
            ],
        }
        stream.write(zlib.compress(json.dumps(record).encode("ascii"), 1))


def read(folder: str) -> Optional[FrameList]:
    """Return the list of the layer in ``folder``; None if it has none or a damaged one."""
    try:
        record = json_records.parse(inflated(os.path.join(folder, LIST), _MAX), "the list of frames")
        folders = {os.fsencode(path): inode for path, inode in record.pop("folders").items()}
        frames = [
            ListedFrame(sha256, holds, FrameNote(written, os.fsencode(names).split(_BETWEEN) if names else []))
            for sha256, holds, written, names in record.pop("frames")
        ]
        return FrameList(folders=folders, frames=frames, **record)
    except (DeployerError, OSError, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        return None


def inflated(path: str, most: int) -> bytes:
    """Return the content of a file that zlib has compressed.

    Raises:
        OSError: it cannot be read.
        zlib.error: it is damaged, or has more than ``most`` bytes.
    """
    with files.open_regular(path) as stream:
        whole = zlib.decompressobj()
        data = whole.decompress(stream.read(most), most)
    if not whole.eof:
        raise zlib.error("incomplete, or too long")
    return data
