"""Unpack a layer into a new folder with several processes: folders first, then files, then links.

No path can lead out of the folder, whatever the layer contains. Paths are plain and relative, and each parent must be a
folder that the layer itself declared. All folders are made before the first file, and all files before the first link.
So no link exists while files are written, and O_EXCL alone detects duplicate paths, whichever processes write them. As
further protection, everything is made relative to the folder's descriptor, with O_NOFOLLOW.

File modes come from the image, reduced by the umask, and a setgid root folder passes its group on. chmod is never used,
because it would override both. Owners can always write, so that an installed image can be removed.
"""

import os
import stat
from contextlib import suppress
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

from deployer.contract.base import tarformat
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.base.tarformat import FILES, FOLDERS, LINKS, REST, SYMLINK, Buffer, TarEntry
from deployer.contract.bundle.manifest import Segment
from deployer.site.storage import frames as lists
from deployer.site.storage.frames import FrameNote
from deployer.system import files, workers

#: The time that flatten set. The headers of .pyc files contain it; with any other time, Python would compile the source
#: again at each import.
_TIMES = (tarformat.MTIME * 10**9, tarformat.MTIME * 10**9)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BEGUN_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_END = bytes(2 * tarformat.BLOCK)
_ORDER = {FOLDERS: 0, FILES: 1, REST: 1, LINKS: 2}


_T = TypeVar("_T")


class Unpacked(NamedTuple):
    """The size of the files that were written.

    Attributes:
        entries: number of files, folders and links.
        bytes: bytes of files, without holes.
    """

    entries: int
    bytes: int


class UnpackedTree(NamedTuple):
    """What was written.

    Attributes:
        size: its size.
        folders: the paths of folders; the root folder is empty.
        links: the paths of links.
        notes: what was written from each frame of files, by the frame's number.
    """

    size: Unpacked
    folders: Set[bytes]
    links: Set[bytes]
    notes: Dict[int, FrameNote]

    def paths(self) -> Iterator[bytes]:
        """Yield the paths of all entries below the root folder."""
        yield from self.folders - {b""}
        yield from self.links
        for note in self.notes.values():
            yield from note.paths()


class _Rest(NamedTuple):
    """A file that continues in the next frames: its path, its size, and the number of bytes written."""

    path: bytes
    size: int
    done: int


#: What was written from one frame of files, and its last file if that continues in the next frame.
_Written = Tuple[FrameNote, Optional[_Rest]]
#: Returns the checked, decompressed bytes of a frame by its number; called in the worker processes, or in this one.
ReadFrame = Callable[[int], Buffer]
#: Called in this process with the number of each frame that was unpacked.
Done = Callable[[int], None]
#: Called when all folders exist, with the open root and the folders' paths. Yields the frames that need not be
#: unpacked: their numbers, and what was made from them.
Link = Callable[[int, Set[bytes]], Iterator[Tuple[int, FrameNote]]]


def unpack(
    frames: Sequence[Segment],
    source: ReadFrame,
    root: str,
    jobs: int,
    done: Done,
    link: Link,
) -> UnpackedTree:
    """Write the layer's tar stream, in ``frames``, into the empty folder ``root`` with ``jobs`` processes.

    After an error, ``root`` contains part of the layer; the caller removes it.

    Args:
        link: makes the files of some frames.

    Raises:
        IntegrityError: the layer does not have the order and form that flatten writes.
        OSError: a file could not be written.
    """
    _check_order(frames)
    if files.umask() & 0o700:
        raise UsageError("the umask removes your own permissions on new files", "umask 022")
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _Unpacking(frames, source, descriptor, done).run(jobs, link)
    finally:
        os.close(descriptor)


def _check_order(frames: Sequence[Segment]) -> None:
    before = FOLDERS
    for holds in (str(frame.holds) for frame in frames):
        if _ORDER[holds] < _ORDER[before] or (holds == REST and before not in (FILES, REST)):
            raise IntegrityError(f"a frame of the layer is out of order: it holds {holds}")
        before = holds
    if before != LINKS:
        raise IntegrityError("the layer ends too early")


class _Unpacking:
    """The state of one call of ``unpack``. Each worker has a copy, made after the folders were created."""

    def __init__(self, frames: Sequence[Segment], source: ReadFrame, root: int, done: Done) -> None:
        self.frames = frames
        self.size = sum(frame.raw or 0 for frame in frames)
        self.source = source
        self.root = root
        self.done = done
        self.notes: Dict[int, FrameNote] = {}
        self.folders: Set[bytes] = {b""}
        self.files = self.bytes = 0
        self.links: Set[bytes] = set()

    def run(self, jobs: int, link: Link) -> UnpackedTree:
        for number in self._numbers(FOLDERS):
            self._make_folders(self.source(number))
            self.done(number)
        linked = set()
        for number, note in link(self.root, self.folders):
            self._count(number, note)
            linked.add(number)
        self._write_files(jobs, linked)
        ended = False
        for number in self._numbers(LINKS):
            ended = self._make_links(self.source(number), ended)
            self.done(number)
        if not ended:
            raise IntegrityError("the layer ends too early")
        for path in self.folders:  # last, because each new entry changes its folder's time
            os.utime(path or b".", ns=_TIMES, dir_fd=self.root)
        entries = len(self.folders) - 1 + self.files + len(self.links)
        return UnpackedTree(Unpacked(entries, self.bytes), self.folders, self.links, self.notes)

    def _numbers(self, holds: str) -> List[int]:
        return [number for number, frame in enumerate(self.frames) if frame.holds == holds]

    # --- folders and links: few, so they are made in this process ---

    def _make_folders(self, data: Buffer) -> None:
        position = 0
        while position < len(data):
            entry, position = self._entry(data, position, FOLDERS)
            _once(entry.path, os.mkdir, entry.path, entry.mode | 0o700, dir_fd=self.root)
            self.folders.add(entry.path)

    def _make_links(self, data: Buffer, ended: bool) -> bool:
        position = 0
        while position < len(data):
            if ended or bytes(data[position : position + tarformat.BLOCK]) == _END[: tarformat.BLOCK]:
                if ended or bytes(data[position:]) != _END:
                    raise IntegrityError("the layer has something after its end")
                return True
            entry, position = self._entry(data, position, LINKS)
            if entry.kind == SYMLINK:
                _once(entry.path, os.symlink, entry.target, entry.path, dir_fd=self.root)
                os.utime(entry.path, ns=_TIMES, dir_fd=self.root, follow_symlinks=False)
            else:
                self._check_target(entry)
                _once(entry.path, os.link, entry.target, entry.path, src_dir_fd=self.root, dst_dir_fd=self.root)
            self.links.add(entry.path)
        return ended

    def _check_target(self, entry: TarEntry) -> None:
        """Raise IntegrityError unless a hard link's target is a file that this layer made."""
        target = entry.target
        if target.rpartition(b"/")[0] in self.folders and target not in self.links:
            with suppress(FileNotFoundError):
                if stat.S_ISREG(os.stat(target, dir_fd=self.root, follow_symlinks=False).st_mode):
                    return
        raise IntegrityError(f"the hard link {entry.path!r} leads to no file of the layer")

    def _entry(self, data: Buffer, position: int, section: str) -> Tuple[TarEntry, int]:
        entry, position = tarformat.decode(data, position)
        if tarformat.SECTIONS[entry.kind] != section:
            raise IntegrityError(f"a frame that holds {section} has another entry: {entry.path!r}")
        if entry.path.rpartition(b"/")[0] not in self.folders:
            raise IntegrityError(f"the layer has no folder for {entry.path!r}")
        return entry, position

    # --- files ---

    def _count(self, number: int, note: FrameNote) -> None:
        self.files += note.number
        self.bytes += note.written
        self.notes[number] = note
        self.done(number)

    def _write_files(self, jobs: int, linked: Set[int]) -> None:
        numbers = [number for number in self._numbers(FILES) if number not in linked]
        if not numbers:
            return
        open_files: Dict[bytes, int] = {}  # number of remaining frames of files in several frames, by path
        several = workers.groups(numbers, lambda number: self.frames[number].raw or 0)
        count = len(several) + len(set(self._numbers(REST)) - linked)
        with workers.Pool(min(jobs, count) if count > 1 else 0, self._write) as pool:
            for group in several:
                pool.submit((group, None))
            for (group, rest), results in pool.results():
                for number, (note, begun) in zip(group, results):
                    self._count(number, note)
                    if rest is None:
                        more = self._rests(number, begun)
                        if begun:
                            open_files[begun.path] = len(more)
                        for task in reversed(more):
                            pool.submit(task, first=True)
                    else:
                        open_files[rest.path] -= 1
                        if not open_files[rest.path]:
                            os.utime(rest.path, ns=_TIMES, dir_fd=self.root, follow_symlinks=False)

    def _rests(self, number: int, rest: Optional[_Rest]) -> List[Tuple[List[int], _Rest]]:
        """Return tasks for the frames that continue the last file of a frame; their sizes must add up to the file's."""
        tasks = []
        number += 1
        position = rest.done if rest else 0
        while self.frames[number].holds == REST:
            if rest is None:
                raise IntegrityError(f"a frame of the layer is out of order: it holds {REST}")
            tasks.append(([number], rest._replace(done=position)))
            position += self.frames[number].raw or 0
            number += 1
        if rest and position != rest.size + tarformat.padding(rest.size):
            raise IntegrityError(f"the file {rest.path!r} is not as long as its header says")
        return tasks

    def _write(self, task: Tuple[List[int], Optional[_Rest]]) -> List[_Written]:
        """Write a group of frames of whole files, or one that continues a file; called in a worker."""
        group, rest = task
        frames = (memoryview(self.source(number)) for number in group)
        return [self._go_on(data, rest) if rest else self._begin(data) for data in frames]

    def _begin(self, data: memoryview) -> _Written:
        """Write a frame of whole files; the last file may continue in the next frame."""
        position = size = 0
        noted: List[bytes] = []
        while position < len(data):
            entry, position = self._entry(data, position, FILES)
            end = position + entry.size
            content = data[position:end]
            # flatten gives owners write permission, which the frames that continue a file require.
            descriptor = _once(entry.path, os.open, entry.path, _NEW_FILE, entry.mode | 0o600, dir_fd=self.root)
            try:
                if entry.size > self.size:
                    raise IntegrityError(f"the file {entry.path!r} is not as long as its header says")
                if entry.size >= files.HOLE:
                    os.ftruncate(descriptor, entry.size)  # now, because later frames may leave holes at the end
                written = files.write_sparse(descriptor, content, 0)
                os.utime(descriptor, ns=_TIMES)
            finally:
                os.close(descriptor)
            noted.append(lists.note(entry.path, entry.size, entry.mode))
            size += written
            position = end + tarformat.padding(entry.size)
            if position > len(data):
                _check_padding(data[end:])
                done = len(data) - end + entry.size
                return FrameNote(size, lists.BETWEEN.join(noted)), _Rest(path=entry.path, size=entry.size, done=done)
            _check_padding(data[end:position])
        return FrameNote(size, lists.BETWEEN.join(noted)), None

    def _go_on(self, data: memoryview, rest: _Rest) -> _Written:
        """Write a frame that is part of one file."""
        content = data[: max(0, rest.size - rest.done)]
        _check_padding(data[len(content) :])
        descriptor = os.open(rest.path, _BEGUN_FILE, dir_fd=self.root)
        try:
            written = files.write_sparse(descriptor, content, rest.done)
        finally:
            os.close(descriptor)
        return FrameNote(written, b""), None


def _once(path: bytes, make: Callable[..., _T], *arguments: object, **keywords: object) -> _T:
    """Call ``make``, which makes ``path`` and fails if it exists."""
    try:
        return make(*arguments, **keywords)
    except FileExistsError:
        raise IntegrityError(f"the layer contains {path!r} twice") from None


def _check_padding(data: memoryview) -> None:
    if bytes(data).strip(b"\0"):
        raise IntegrityError("the padding of a file is not empty")
