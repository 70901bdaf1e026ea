"""Hard links from a new layer to files that another local layer already has, instead of unpacking (docs/adr/0037).

The donor is a layer of the same user with some of the same frames. The new bundle's frames are checked as always. A
file is linked only if install made it from the same frame:

- it is a regular file of this user with the size, time, mode and group that install sets, and no folder above it is a
  link, and
- it has not changed since (``st_ctime``), and no folder above it was replaced (inode). Otherwise its content is
  compared with the frame's.

ctime changes with every write, chmod, utime or rename, and cannot be set. However, if a folder is moved, its files keep
their ctime. ctime also changes when a link to the file is made or removed; the contents must then be compared. If one
file of a frame fails the check, or cannot be linked, the frame is unpacked.
"""

import os
import stat
from contextlib import closing, suppress
from functools import partial
from typing import IO, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from deployer.contract.base import tarformat
from deployer.contract.bundle.manifest import Segment
from deployer.site.install.unpack import ReadFrame
from deployer.site.storage import frames as lists
from deployer.site.storage import layers
from deployer.site.storage.frames import FrameList, FrameNote, LayerFile, ListedFrame
from deployer.site.storage.store import ROOTFS, Store
from deployer.system import files, workers

#: Maximum number of layers to examine, newest first.
_MOST = 8
_CHUNK = 1024 * 1024
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TIME = tarformat.MTIME * 10**9


class _Unit(NamedTuple):
    """A frame of files and the frames that continue its last file: their numbers in the new layer and the donor's."""

    numbers: Sequence[int]
    listed: Sequence[ListedFrame]


class Donor(NamedTuple):
    """A local layer whose files can be linked into a new one.

    Attributes:
        rootfs: its rootfs.
        layer: its list of frames.
        units: the units that both layers have.
        size: uncompressed bytes of the frames that both layers have.
        files: number of files in these frames.
    """

    rootfs: str
    layer: FrameList
    units: List[_Unit]
    size: int
    files: int

    def link(
        self,
        root: int,
        folders: Set[bytes],
        segments: Sequence[Segment],
        read: Callable[[int], bytes],
        source: ReadFrame,
        jobs: int,
    ) -> Iterator[Tuple[int, FrameNote]]:
        """Link files into the new rootfs, which is open as ``root`` and has its folders; yield each complete frame.

        Args:
            segments: the frames of the new layer.
            read: returns a checked frame of the new layer. Called in worker processes, like ``source``.
            source: returns a decompressed frame.
            jobs: number of processes.
        """
        try:
            theirs = os.open(self.rootfs, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # removed in the meantime
            return
        try:
            linking = _Linking(self.layer, theirs, root, folders, read, source)

            def size(unit: _Unit) -> int:
                return sum(segments[number].size for number in unit.numbers)

            units = sorted(self.units, key=size, reverse=True)
            with closing(workers.in_groups(units, size, jobs, linking.link)) as answers:
                for unit, done in answers:
                    if done:
                        for number, listed in zip(unit.numbers, unit.listed):
                            yield number, listed.note
        finally:
            os.close(theirs)


def choose(store: Store, name: str, segments: Sequence[Segment], read_only: bool) -> Optional[Donor]:
    """Return the local layer that has the most in common with a new layer; None if no layer can be used.

    A layer that already exists is repaired using only the bundle.

    Args:
        name: the name of the new layer.
        segments: the frames of the new layer.
        read_only: write permission will be removed from its files.
    """
    if files.lexists(os.path.join(store.layers, name)):
        return None
    units = _units([(segment.sha256, str(segment.holds)) for segment in segments])
    best: Optional[Donor] = None
    for folder in _newest(store):
        layer = lists.read(folder)
        if layer is None or (layer.umask, layer.read_only) != (files.umask(), read_only):
            continue
        theirs = _units([(listed.sha256, listed.holds) for listed in layer.frames])
        shared = [
            _Unit(numbers, [layer.frames[number] for number in theirs[key]])
            for key, numbers in units.items()
            if key in theirs
        ]
        size = sum(segments[number].raw or 0 for unit in shared for number in unit.numbers)
        if size > (best.size if best else 0):
            count = sum(unit.listed[0].note.number for unit in shared)
            best = Donor(os.path.join(folder, ROOTFS), layer, shared, size, count)
    return best


def _newest(store: Store) -> List[str]:
    """Return the folders of this user's layers that have a list of frames, newest first."""
    dated = []
    for folder in layers.own(store):
        with suppress(OSError):
            dated.append((os.lstat(os.path.join(folder, lists.LIST)).st_mtime, folder))
    return [folder for _, folder in sorted(dated, reverse=True)[:_MOST]]


def _units(frames: Sequence[Tuple[str, str]]) -> Dict[Tuple[str, ...], List[int]]:
    """Return each unit's frame numbers, by the digests of its frames; each frame is (sha256, holds)."""
    units: List[List[int]] = []
    for number, (_, holds) in enumerate(frames):
        if holds == tarformat.FILES:
            units.append([number])
        elif holds == tarformat.REST and units:
            units[-1].append(number)
    return {tuple(frames[number][0] for number in numbers): numbers for numbers in units}


class _Linking:
    """The workers' initial state, of which each has a copy."""

    def __init__(
        self,
        layer: FrameList,
        theirs: int,
        root: int,
        folders: Set[bytes],
        read: Callable[[int], bytes],
        source: ReadFrame,
    ) -> None:
        self.finished = layer.finished
        self.inodes = layer.folders
        self.placed: Dict[bytes, Optional[bool]] = {}
        self.kept = ~layer.umask & (~0o222 if layer.read_only else ~0)
        self.theirs = theirs
        self.root = root
        self.folders = folders
        self.read = read
        self.source = source
        self.owner = (os.geteuid(), os.fstat(root).st_gid)

    def link(self, unit: _Unit) -> bool:
        """Link all files of a unit or none, after checking its frames, and return which. Called in a worker."""
        own_files = unit.listed[0].note.files()
        changed = False
        for file in own_files:
            state, placed = self._state(file), self._is_in_place(file.path.rpartition(b"/")[0])
            if state is None or placed is None:
                return False
            changed = changed or not placed or state.st_ctime_ns > self.finished
        if changed:
            if not self._is_same(unit, own_files):
                return False
        else:
            for number in unit.numbers:
                self.read(number)
        return self._link(own_files)

    def _state(self, file: LayerFile) -> Optional[os.stat_result]:
        """Return the state of the donor's file; None if it differs from what install makes."""
        state = self._look(file.path)
        if state is None:
            return None
        expected = (stat.S_IFREG | ((file.mode | 0o600) & self.kept), file.size, _TIME, self.owner)
        return state if (state.st_mode, state.st_size, state.st_mtime_ns, state[4:6]) == expected else None

    def _is_in_place(self, folder: bytes) -> Optional[bool]:
        """Return whether install made a folder and all folders above it; None if one is not a folder."""
        if folder not in self.placed:
            above = not folder or self._is_in_place(folder.rpartition(b"/")[0])
            state = self._look(folder or b".")
            if above is None or state is None or not stat.S_ISDIR(state.st_mode):
                self.placed[folder] = None
            else:
                self.placed[folder] = above and state.st_ino == self.inodes.get(folder)
        return self.placed[folder]

    def _look(self, path: bytes) -> Optional[os.stat_result]:
        try:
            return os.stat(path, dir_fd=self.theirs, follow_symlinks=False)
        except OSError:
            return None

    def _is_same(self, unit: _Unit, own_files: Sequence[LayerFile]) -> bool:
        """Return whether the donor's files have the same content as the frames."""
        data = map(self.source, unit.numbers)
        stream = memoryview(next(data))
        position = 0
        for file in own_files:
            entry, position = tarformat.decode(stream, position)
            if (entry.path, entry.size) != (file.path, file.size):
                return False
            try:
                descriptor = os.open(file.path, _TO_READ, dir_fd=self.theirs)
            except OSError:
                return False
            done = 0
            with open(descriptor, "rb", buffering=0) as content:
                while True:
                    part = stream[position : position + file.size - done]
                    if not _has(content, part):
                        return False
                    done += len(part)
                    position += len(part)
                    if done == file.size:
                        break
                    rest = next(data, None)
                    if rest is None:
                        return False
                    stream, position = memoryview(rest), 0
            position += tarformat.padding(file.size)
        return position >= len(stream) and next(data, None) is None

    def _link(self, own_files: Sequence[LayerFile]) -> bool:
        linked = []
        link = partial(os.link, src_dir_fd=self.theirs, dst_dir_fd=self.root, follow_symlinks=False)
        try:
            for file in own_files:
                if file.path.rpartition(b"/")[0] not in self.folders:
                    raise FileNotFoundError(file.path)
                link(file.path, file.path)
                linked.append(file.path)
        except OSError:  # removed in the meantime, too many links, or no links on this file system
            for path in linked:
                os.unlink(path, dir_fd=self.root)
            return False
        return True


def _has(content: IO[bytes], part: memoryview) -> bool:
    """Return whether the next bytes of an open file equal ``part``."""
    for at in range(0, len(part), _CHUNK):
        piece = part[at : at + _CHUNK]
        if content.read(len(piece)) != piece:
            return False
    return True
