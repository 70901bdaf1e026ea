"""Files of a new layer that another layer here has already: they are linked, not unpacked (docs/adr/0037).

The donor is a layer of the same user with some of the same frames. The new bundle's frames are checked as always. A
file is linked only if it is the file that install made from the same frame:

- a regular file of this user with the size, time, mode and group that install gives it, below no link, and
- it was not changed since (``st_ctime``), nor was a folder above it replaced (inode), else its content is compared with
  the frame's.

ctime changes with every write, chmod, utime or rename, and cannot be set. But if a folder is moved, its files keep
their ctime. ctime also changes when a link to the file is made or removed, so that contents must be compared then. If
one file of a frame fails, or a link fails, the frame is unpacked.
"""

import os
import stat
from contextlib import suppress
from functools import partial
from typing import IO, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from deployer.contract import tarformat
from deployer.contract.manifest import Segment
from deployer.contract.tarformat import FILES, REST
from deployer.site.install.unpack import Linked, ReadFrame
from deployer.site.storage import frames as lists
from deployer.site.storage import layers
from deployer.site.storage.frames import FrameList, LayerFile, ListedFrame
from deployer.site.storage.store import ROOTFS, Store
from deployer.system import files, workers

#: The most layers that are looked at, the newest first.
_MOST = 8
_CHUNK = 1024 * 1024
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TIME = tarformat.MTIME * 10**9


class _Unit(NamedTuple):
    """A frame of files, with those that continue its last one: their numbers in the new layer, and the donor's."""

    numbers: Sequence[int]
    listed: Sequence[ListedFrame]

    def files(self) -> List[LayerFile]:
        return self.listed[0].files()


class Donor(NamedTuple):
    """A layer here that can give files to a new one.

    Attributes:
        rootfs: its rootfs.
        layer: its list of frames.
        units: what both have.
        size: uncompressed bytes of the frames that both have.
        files: number of files in them.
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
    ) -> Iterator[Linked]:
        """Link files into the new rootfs, open as ``root``, whose folders exist; yield each frame that is complete.

        Args:
            segments: the frames of the new layer.
            read: returns a frame of the new layer, checked. Called in worker processes, as is ``source``.
            source: returns it decompressed.
            jobs: number of processes.
        """
        try:
            theirs = os.open(self.rootfs, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # removed meanwhile
            return
        try:
            linking = _Linking(self.layer, theirs, root, folders, read, source)
            units = sorted(self.units, key=lambda unit: -sum(segments[number].size for number in unit.numbers))
            with workers.Pool(min(jobs, len(units)), linking.link) as pool:
                for unit in units:
                    pool.submit(unit)
                for unit, done in pool.results():
                    if done:
                        for number, listed in zip(unit.numbers, unit.listed):
                            yield Linked(number, listed.note)
        finally:
            os.close(theirs)


def choose(store: Store, name: str, segments: Sequence[Segment], read_only: bool) -> Optional[Donor]:
    """Return the layer here that can give most to a new layer; None if there is none.

    A layer that exists already is repaired from the bundle alone.

    Args:
        name: the name of the new layer.
        segments: its frames.
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
            count = sum(len(unit.listed[0].note.files) for unit in shared)
            best = Donor(os.path.join(folder, ROOTFS), layer, shared, size, count)
    return best


def _newest(store: Store) -> List[str]:
    """Return the folders of this user's layers that have a list, the newest first."""
    found = []
    for folder in layers.own(store):
        with suppress(OSError):
            found.append((os.lstat(os.path.join(folder, lists.LIST)).st_mtime, folder))
    return [folder for _, folder in sorted(found, reverse=True)[:_MOST]]


def _units(frames: Sequence[Tuple[str, str]]) -> Dict[Tuple[str, ...], List[int]]:
    """Return the numbers of the frames of each unit, by the digests of its frames; each frame is (sha256, holds)."""
    found: List[List[int]] = []
    for number, (_, holds) in enumerate(frames):
        if holds == FILES:
            found.append([number])
        elif holds == REST and found:
            found[-1].append(number)
    return {tuple(frames[number][0] for number in numbers): numbers for numbers in found}


class _Linking(object):
    """The state that workers share; each has a copy of it."""

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
        """Link all files of a unit, whose frames are checked, or none; return which. Called in a worker."""
        found = unit.files()
        changed = False
        for file in found:
            state, placed = self._state(file), self._is_in_place(file.path.rpartition(b"/")[0])
            if state is None or placed is None:
                return False
            changed = changed or not placed or state.st_ctime_ns > self.finished
        if changed:
            if not self._is_same(unit, found):
                return False
        else:
            for number in unit.numbers:
                self.read(number)
        return self._link(found)

    def _state(self, file: LayerFile) -> Optional[os.stat_result]:
        """Return the state of the donor's file; None unless it looks as install made it."""
        state = self._look(file.path)
        if state is None:
            return None
        expected = (stat.S_IFREG | ((file.mode | 0o600) & self.kept), file.size, _TIME, self.owner)
        return state if (state.st_mode, state.st_size, state.st_mtime_ns, state[4:6]) == expected else None

    def _is_in_place(self, folder: bytes) -> Optional[bool]:
        """Return whether a folder and those above it are those that install made; None if one is not a folder."""
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

    def _is_same(self, unit: _Unit, found: Sequence[LayerFile]) -> bool:
        """Return whether the donor's files have the content that the frames have."""
        data = map(self.source, unit.numbers)
        stream = memoryview(next(data))
        position = 0
        for file in found:
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

    def _link(self, found: Sequence[LayerFile]) -> bool:
        linked = []
        link = partial(os.link, src_dir_fd=self.theirs, dst_dir_fd=self.root, follow_symlinks=False)
        try:
            for file in found:
                if file.path.rpartition(b"/")[0] not in self.folders:
                    raise FileNotFoundError(file.path)
                link(file.path, file.path)
                linked.append(file.path)
        except OSError:  # removed meanwhile, or too many links, or a file system without them
            for path in linked:
                os.unlink(path, dir_fd=self.root)
            return False
        return True


def _has(content: IO[bytes], part: memoryview) -> bool:
    """Return whether the next bytes of an open file are those of ``part``."""
    for at in range(0, len(part), _CHUNK):
        piece = part[at : at + _CHUNK]
        if content.read(len(piece)) != piece:
            return False
    return True
