"""Caches of compiled code on the site: they go from the home of one job to those of later ones.

::

    ROOT/caches/KEY-UID/PROCESSOR     a line with the list of files, then the files, one after the other

KEY is that of the image's last layer (``storage.layers``), UID the user's. Each node reads one file, instead of
thousands on a shared file system. A job replaces it in one step: of two that end at once, the later one counts, and the
files of a library that belong together are of one job.

The job may have put anything into its home, while it ran or since: links, pipes, endless files, odd names. And the file
may be on a file system that the job can write to. So names and sizes are checked both times, no link is followed, and
only this user's regular files are read. No error ends the job.
"""

import hashlib
import io
import os
import re
import stat
import time
from contextlib import contextmanager, suppress
from typing import IO, Collection, Dict, Iterator, List, NamedTuple, Optional, Sequence

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused
from deployer.contract.base.text import counted
from deployer.contract.site import links
from deployer.site.capture import node
from deployer.site.capture.tools import read_text, read_word
from deployer.site.container import node_folder
from deployer.site.storage import space
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files, terminal

#: The most that one file holds. The folders whose files are the oldest are left out.
MAX_BYTES, MAX_FILES = 2 << 30, 50_000
#: The most entries of a home that are looked at.
_MAX_ENTRIES = 4 * MAX_FILES
_MAX_LIST = 16 << 20
#: Seconds for which a job's end may wait; Slurm kills a job 30 seconds after its time limit.
_PATIENCE = 20.0
_HINT = "is the disk full, or the folder another user's?"
_SCHEMA = "caches"
#: The latest time of a file, in seconds: no system call fails for it.
_LAST = 1 << 40
#: What /proc/cpuinfo says of a processor besides its state, on x86_64, AArch64 and POWER.
_CPU = re.compile(r"^(?:model name|flags|Features|CPU (?:implementer|part|variant)|cpu)\s*:.*$", re.MULTILINE)


class CacheFile(NamedTuple):
    """A file of a cache.

    Attributes:
        path: its path in the home.
        size: bytes.
        mtime: when it was written, in seconds since the epoch.
        executable: whether its owner may execute it.
    """

    path: str
    size: int
    mtime: int
    executable: bool


class CacheList(NamedTuple):
    """The files of one file with caches, in their order."""

    files: Sequence[CacheFile]


def folder(store: Store, installed: InstalledImage) -> Optional[str]:
    """Return the folder for this user's caches of an image; None if the image has lost its layers."""
    names = [os.path.basename(layer) for layer in installed.layers]
    return os.path.join(store.caches, "%s-%d" % (names[-1].partition("-")[0], os.getuid())) if names else None


def own(store: Store) -> List[str]:
    """Return the folders of this user's caches."""
    paths = (os.path.join(store.caches, name) for name in files.names(store.caches) if name[:1] != ".")
    return list(filter(node_folder.is_own, paths))


def size(store: Store) -> int:
    """Return the bytes of this user's caches."""
    return sum(os.lstat(os.path.join(top, name)).st_size for top in own(store) for name in files.names(top))


def unused(store: Store, without: Collection[str] = ()) -> List[str]:
    """Return the folders of this user's caches whose layer is gone, or among the folders ``without``."""
    going = set(map(os.path.basename, without))
    there = {name.partition("-")[0] for name in files.names(store.layers) if name not in going}
    return [path for path in own(store) if os.path.basename(path).partition("-")[0] not in there]


def processor(sys: str = "/sys", proc: str = "/proc") -> str:
    """Return a key for this node's processor and GPUs: code that was compiled for others may not run, or be slower."""
    lines = _CPU.findall(read_text(os.path.join(proc, "cpuinfo")))
    gpus = {" ".join(read_word(path, name) for name in ("vendor", "device")) for path in node.gpu_paths(sys)}
    text = "\n".join([os.uname().machine, *sorted(set(lines)), *sorted(gpus)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def restore(home: str, kept: str, paths: Sequence[str]) -> None:
    """Put the kept files of this node's processor below ``paths`` of the job's new home."""
    with _only_warned("use the kept caches"), _opened(kept) as stream:
        if stream is None:
            return
        listed, new = _listed(stream), os.path.join(home, ".deployer-caches")
        begin = tuple(path + "/" for path in paths)
        wanted = [item for item in listed if item.path.startswith(begin)]
        space.check(home, sum(item.size for item in wanted), len(wanted))
        try:
            for item in listed:
                if item.path.startswith(begin):
                    _write(os.path.join(new, item.path), item, stream)
                else:
                    stream.seek(item.size, os.SEEK_CUR)
            for path in filter(lambda path: files.lexists(os.path.join(new, path)), paths):
                os.makedirs(os.path.dirname(os.path.join(home, path)), exist_ok=True)
                os.rename(os.path.join(new, path), os.path.join(home, path))
        finally:
            files.remove_tree(new)


def save(home: str, kept: str, paths: Sequence[str]) -> None:
    """Add the files below ``paths`` of an ended job's home to the kept ones, and replace those that changed."""
    until = time.time() + _PATIENCE
    with _only_warned("keep the caches"), _opened(kept) as stream:
        listed: Sequence[CacheFile] = ()
        if stream:
            with suppress(IntegrityError):  # damaged: it is written again
                listed = _listed(stream)
        found = {item.path: item for item in _found(home, paths)}
        chosen = _newest([*found.values(), *(item for item in listed if item.path not in found)])
        if set(chosen) <= set(listed):
            return
        new = [item for item in chosen if item.path in found]
        old = set(chosen) - set(new)
        with _published(kept, [*new, *(item for item in listed if item in old)]) as target:
            for item in new:
                with io.open(_open(home, item.path, os.O_RDONLY), "rb") as source:
                    _copy(source, target, item, until)
                    if _cache_file(item.path, os.fstat(source.fileno())) != item:
                        raise IntegrityError(f"{item.path!r} changes: a process of the job still runs")
            for item in listed if stream else ():
                if item in old:
                    _copy(stream, target, item, until)
                else:
                    stream.seek(item.size, os.SEEK_CUR)


@contextmanager
def _published(kept: str, whole: Sequence[CacheFile]) -> Iterator[IO[bytes]]:
    """Yield the new file of this node's processor, to which the content of the files must be written."""
    text = json_records.dumps(json_records.stamped(_SCHEMA, records.plain(CacheList(whole))))
    if len(text) > _MAX_LIST:
        raise Refused("the names of the files are too long")
    if not files.lexists(kept):
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        with suppress(FileExistsError):  # another job was first
            os.mkdir(kept, 0o700)
        node_folder.check(kept)
    path = os.path.join(kept, processor())
    files.reap_parts(path)
    with files.published(path, 0o600) as target:
        target.write(text)
        yield target
    words = (counted(len(whole), "file"), space.human(sum(item.size for item in whole)))
    terminal.tell("deployer: kept %s of caches (%s) for later jobs" % words)


@contextmanager
def _only_warned(what: str) -> Iterator[None]:
    """Print an error of the block as a warning: without a cache, programs only compile again."""
    try:
        with files.errors_named(what, _HINT):
            yield
    except DeployerError as error:
        terminal.warn(f"{what}: {error.message}")


@contextmanager
def _opened(kept: str) -> Iterator[Optional[IO[bytes]]]:
    """Yield the file with the kept caches of this node's processor, or None. Raises Refused if another user made it."""
    path = os.path.join(kept, processor())
    if files.lexists(kept):
        node_folder.check(kept)
    if not files.lexists(path):
        yield None
        return
    with files.open_regular(path, follow=False) as stream:
        state = os.fstat(stream.fileno())
        if state.st_uid != os.getuid() or state.st_mode & 0o022:
            raise Refused(f"others can write to {path}")
        yield stream


def _listed(stream: IO[bytes]) -> Sequence[CacheFile]:
    """Read the list at the beginning of a file with caches. Raises IntegrityError if the file is damaged."""
    line = stream.readline(_MAX_LIST + 1)
    fields = json_records.loads(line, _SCHEMA, stream.name, IntegrityError, json_records.MAX_LARGE)
    listed = records.read(CacheList, fields).files
    end = stream.tell() + sum(item.size for item in listed)
    odd = [item for item in listed if not links.is_below(item.path) or item.mtime > _LAST]
    if odd or end != os.fstat(stream.fileno()).st_size:
        raise IntegrityError(f"{stream.name} is damaged", "remove it")
    return listed


def _found(home: str, paths: Sequence[str]) -> List[CacheFile]:
    """Return this user's regular files below ``paths`` of a home."""
    found: List[CacheFile] = []
    pending, seen = list(paths), 0
    while pending:
        path = pending.pop()
        with _entries(home, path) as entries:
            for entry in entries:
                seen += 1
                if seen > _MAX_ENTRIES:
                    raise Refused("they have more than %d entries" % _MAX_ENTRIES)
                name, state = f"{path}/{entry.name}", entry.stat(follow_symlinks=False)
                if links.is_below(name) and state.st_uid == os.getuid():
                    if stat.S_ISDIR(state.st_mode):
                        pending.append(name)
                    elif stat.S_ISREG(state.st_mode):
                        found.append(_cache_file(name, state))
    return found


@contextmanager
def _entries(home: str, path: str) -> Iterator[Iterator["os.DirEntry[str]"]]:
    """Yield the entries of a folder below ``home``, read one by one; none if it is missing, or behind a link."""
    try:
        descriptor = _open(home, path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield iter(())
        return
    try:
        with os.scandir("/proc/self/fd/%d" % descriptor) as entries:
            yield entries
    finally:
        os.close(descriptor)


def _cache_file(path: str, state: os.stat_result) -> CacheFile:
    return CacheFile(path, state.st_size, min(max(0, int(state.st_mtime)), _LAST), bool(state.st_mode & stat.S_IXUSR))


def _newest(found: List[CacheFile]) -> List[CacheFile]:
    """Return the files of the newest folders, within the limits: whole folders, because files may need each other."""
    folders: Dict[str, List[CacheFile]] = {}
    for item in found:
        folders.setdefault(os.path.dirname(item.path), []).append(item)
    chosen: List[CacheFile] = []
    free = MAX_BYTES
    for group in sorted(folders.values(), key=lambda group: max(item.mtime for item in group), reverse=True):
        needed = sum(item.size for item in group)
        if needed <= free and len(chosen) + len(group) <= MAX_FILES:
            free -= needed
            chosen += group
    return chosen


def _open(home: str, path: str, flags: int) -> int:
    """Return a descriptor of what is at ``path`` below ``home``; no part of the path may be a link."""
    at = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    parts = path.split("/")
    for part in parts:
        last = flags if part is parts[-1] else os.O_RDONLY | os.O_DIRECTORY
        try:
            inner = os.open(part, last | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at


def _write(path: str, item: CacheFile, source: IO[bytes]) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    mode = 0o700 if item.executable else 0o600
    with io.open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as target:
        _copy(source, target, item)
    os.utime(path, (item.mtime, item.mtime))


def _copy(source: IO[bytes], target: IO[bytes], item: CacheFile, until: Optional[float] = None) -> None:
    """Copy the bytes of one file. Raises IntegrityError if there are fewer, or at a time of the clock."""
    left = item.size
    while left:
        chunk = source.read(min(left, files.CHUNK))
        if not chunk:
            raise IntegrityError(f"{item.path!r} is shorter than it was")
        if until is not None and time.time() > until:
            raise DeployerError("this takes more than %d s" % _PATIENCE)
        target.write(chunk)
        left -= len(chunk)
