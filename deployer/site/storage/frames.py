"""The list of a layer's frames and their files, so that another layer with some of the same frames can link the files.

::

    ROOT/layers/KEY-UID/frames

The list is optional: if it is missing or damaged, other layers cannot link the layer's files. It is not in the
inventory, so an image is complete without it.
"""

import json
import os
import zlib
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError
from deployer.contract.bundle.manifest import Segment
from deployer.site.storage.store import ROOTFS
from deployer.system import files

LIST = "frames"
#: Maximum bytes of a list, compressed or not.
_MAX = 64 * 1024 * 1024
BETWEEN = b"\0"


class LayerFile(NamedTuple):
    """A file in a layer: its path, size in bytes, and mode in the tar."""

    path: bytes
    size: int
    mode: int


class FrameNote(NamedTuple):
    """What was written from one frame.

    Attributes:
        written: bytes, without holes.
        names: the files that begin in it, in the form of ``note``, with zero bytes between them: one object, because
            workers send thousands of files.
    """

    written: int
    names: bytes

    @property
    def number(self) -> int:
        """The number of files that begin in it."""
        return self.names.count(BETWEEN) + bool(self.names)

    def paths(self) -> List[bytes]:
        """Return the paths of these files."""
        return [path for _, _, path in self._split()]

    def files(self) -> List[LayerFile]:
        """Return these files."""
        return [LayerFile(path, int(size), int(mode, 8)) for mode, size, path in self._split()]

    def _split(self) -> List[List[bytes]]:
        """Return mode, size and path of each file."""
        return [name.split(b" ", 2) for name in self.names.split(BETWEEN)] if self.names else []


class ListedFrame(NamedTuple):
    """A frame of a local layer.

    Attributes:
        sha256: the digest of the compressed frame.
        holds: one of ``tarformat.HOLDINGS``.
        note: what was written from it.
    """

    sha256: str
    holds: str
    note: FrameNote


class FrameList(NamedTuple):
    """The frames of a local layer.

    Attributes:
        finished: when all its files were complete, in nanoseconds of the file system's clock.
        umask: the umask of the process that wrote them.
        read_only: whether write permission was removed from them.
        folders: the inode of each folder in the rootfs, to detect folders that were replaced.
        frames: the frames with files, in order.
    """

    finished: int
    umask: int
    read_only: bool
    folders: Dict[bytes, int]
    frames: List[ListedFrame]


def note(path: bytes, size: int, mode: int) -> bytes:
    """Return the entry of a layer's file in the list."""
    return b"%o %d %s" % (mode, size, path)


def write(folder: str, noted: Sequence[Tuple[Segment, FrameNote]], folders: Iterable[bytes], read_only: bool) -> None:
    """Write the list of the layer in ``folder``, whose rootfs has ``folders``, after all its files are complete."""
    rootfs = os.fsencode(os.path.join(folder, ROOTFS))
    with open(os.path.join(folder, LIST), "wb") as stream:
        record = {
            "finished": os.stat(stream.name).st_ctime_ns,
            "umask": files.umask(),
            "read_only": read_only,
            "folders": {os.fsdecode(path): os.lstat(b"%s/%s" % (rootfs, path)).st_ino for path in folders},
            "frames": [
                [segment.sha256, segment.holds, written.written, os.fsdecode(written.names)]
                for segment, written in noted
            ],
        }
        stream.write(zlib.compress(json.dumps(record).encode("ascii"), 1))


def read(folder: str) -> Optional[FrameList]:
    """Return the list of the layer in ``folder``; None if it is missing or damaged."""
    try:
        record = json_records.parse(inflated(os.path.join(folder, LIST), _MAX), "the list of frames")
        folders = {os.fsencode(path): inode for path, inode in record.pop("folders").items()}
        frames = [
            ListedFrame(sha256, holds, FrameNote(written, os.fsencode(names)))
            for sha256, holds, written, names in record.pop("frames")
        ]
        return FrameList(folders=folders, frames=frames, **record)
    except (DeployerError, OSError, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        return None


def inflated(path: str, most: int) -> bytes:
    """Return the content of a file that was compressed with zlib.

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
