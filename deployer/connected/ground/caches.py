"""The caches of the connected side: list their contents, and remove entries unused for a long time.

Each entry is published by rename, and can be removed at any time except while a build or pack uses the caches. These
commands hold a shared lock (``in_use``). Pruning does not wait for the lock; it is refused instead.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from deployer.connected.ground import locked_folder, xdg
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.system import files

_log = logging.getLogger("deployer.caches")
_T = TypeVar("_T")
_GIB = 1024**3
#: Age in seconds at which an unfinished entry counts as the leftover of a killed process.
_STALE = 3600
#: Names of unfinished entries begin with this and a hyphen, or end with it.
_PART = ".part"
UNFINISHED = f"{_PART}-"
#: Days without use after which an entry is removed.
AGE = 30


class Cache(NamedTuple):
    """One cache: entries under keys of everything that they depend on.

    Attributes:
        name: the name of its folder.
        what: a description of an entry, for display.
        entries: a glob below the folder. Paths that differ only in the suffix are one entry.
        cap: the size limit in bytes.
        keeper: the program that prunes it instead of deployer, for display; empty: deployer does.
        place: a folder to use instead of the default.
    """

    name: str
    what: str
    entries: str = "*"
    cap: int = 10 * _GIB
    keeper: str = ""
    place: Path | None = None

    @property
    def folder(self) -> Path:
        """Return the cache's folder."""
        return self.place or xdg.cache_folder(self.name)

    @contextlib.contextmanager
    def new_entry(self, key: str) -> Iterator[Path]:
        """Yield an empty folder, which becomes the entry of ``key`` if the block ends without an error.

        If another process published the entry first, that entry stays.
        """
        with files.errors_named(f"write {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=self.folder) as work:
                new = Path(work, key)
                new.mkdir()
                yield new
                try:
                    new.rename(self.folder / key)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise

    def trim(self) -> None:
        """Remove the least recently used entries beyond the size limit, and leftovers of killed processes."""
        with contextlib.suppress(DeployerError, OSError):  # retried the next time
            _prune(self, math.inf, everything=False, dry_run=False)


def key(*words: object) -> str:
    """Return the key of an entry: a short digest of everything that it depends on."""
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]


class CachedFacts(NamedTuple):
    """A JSON file of facts in a cache. A missing or damaged file, or one of another version, counts as empty.

    Attributes:
        path: the file; None: no facts are kept.
        schema: the kind of facts.
        version: increased when other facts are read; older facts are not used.
    """

    path: Path | None
    schema: str
    version: int

    def load(self, read: Callable[[json_records.Fields], _T]) -> _T | None:
        """Return the facts, or None if there are none."""
        if self.path is None:
            return None
        try:
            data = self.path.read_bytes()
            fields = json_records.loads(data, self.schema, str(self.path), own=True, limit=json_records.MAX_LARGE)
            facts = read(fields) if fields.number("version") == self.version else None
            os.utime(self.path)
            return facts
        except (OSError, DeployerError, ValueError, KeyError, TypeError) as error:
            _log.debug("%s is not used: %s", self.path, error)
            return None

    def save(self, facts: json_records.Record) -> None:
        """Store the facts. If that fails, they are read again the next time."""
        if self.path is None:
            return
        record = json_records.stamped(self.schema, {"version": self.version, **facts})
        with contextlib.suppress(DeployerError, OSError):
            files.write_text(str(self.path), json.dumps(record))


BASES = Cache("bases", "base images as tarballs, by suite, packages and mmdebstrap", cap=4 * _GIB)
FRAMES = Cache("frames", "bundles of earlier packs, whose frames the next pack reuses", "*/*", cap=4 * _GIB)
FETCH = Cache("fetch", "downloads of fetch, by URL", cap=20 * _GIB)
DEPLOY = Cache("deploy", "the last bundle of each definition that deploy packed, by site", cap=20 * _GIB)
WHEELS = Cache("wheels", "wheels of wheelhouses, by SHA-256")
OVERLAYS = Cache("overlays", "unpacked wheels in frames, for packs")
CONDA = Cache("conda", "environments that build made of environment files, packed")
LINK = Cache("link", "facts that check read from images and wheels", cap=_GIB // 2)
VARIANTS = Cache("variants", "Horovod, compiled for each MPI family", cap=_GIB // 2)
KIT = Cache("kit", "parts of the kit (ch-run, udocker, squashfs-tools)", cap=_GIB // 16)
TOOL = Cache("tool", "deployer.pyz as it was made before", cap=_GIB // 64)
RESOLVER = Cache("resolver", "uv's data about package indexes", "", cap=_GIB)
_KEEPER = "rehearse limits its size; `prune rehearse --all` removes it"
REHEARSE = Cache("rehearse", "installed bundles of rehearsals", "", keeper=_KEEPER)
CACHES = (
    BASES, FRAMES, FETCH, DEPLOY, WHEELS, OVERLAYS, CONDA, LINK, VARIANTS, KIT, TOOL, RESOLVER, REHEARSE,
    Cache("engine", "layers of the tests' own Docker engine", "", keeper="limits its size when it starts"),
    Cache("lab", "software of the lab", "", keeper="managed by the lab: see docs/lab.md"),
    Cache("matrix", "roots, MPIs and images of verdict-matrix", "", keeper="verdict-matrix keeps the last two of each"),
)  # fmt: skip


class CacheEntry(NamedTuple):
    """One entry of a cache.

    Attributes:
        paths: its files, or its folder.
        size: bytes.
        used: the time of its last use, in seconds since the epoch.
    """

    paths: tuple[Path, ...]
    size: int
    used: float


class Pruned(NamedTuple):
    """The amount removed from one cache, or to be removed.

    Attributes:
        cache: the cache's name.
        entries: the number of entries.
        bytes: their size.
    """

    cache: str
    entries: int
    bytes: int


class CacheUsage(NamedTuple):
    """The content of one cache.

    Attributes:
        cache: the cache.
        entries: the number of entries.
        bytes: their size.
        used: the last use of any entry, in seconds since the epoch; 0 without entries.
    """

    cache: Cache
    entries: int
    bytes: int
    used: float

    def record(self) -> json_records.Record:
        """Return the content for ``--json``."""
        cache = self.cache
        return {
            "name": cache.name, "what": cache.what, "folder": str(cache.folder), "entries": self.entries,
            "bytes": self.bytes, "cap": None if cache.keeper else cache.cap, "used": int(self.used),
            "pruned_by": cache.keeper or "deployer cache prune",
        }  # fmt: skip


def usage(cache: Cache) -> CacheUsage:
    """Return the content summary of a cache."""
    held = entries(cache)
    used = max((entry.used for entry in held), default=0.0)
    return CacheUsage(cache, entries=len(held), bytes=sum(entry.size for entry in held), used=used)


def entries(cache: Cache) -> list[CacheEntry]:
    """Return the entries of a cache, the least recently used first, including unfinished ones."""
    paths = cache.folder.glob(cache.entries) if cache.entries else [cache.folder]
    together: dict[Path, CacheEntry] = {}
    for path in sorted(paths):
        with contextlib.suppress(FileNotFoundError):  # removed or renamed meanwhile by another process
            key = path if path.is_dir() or path.suffix == _PART else path.with_suffix("")
            known = together.get(key, CacheEntry((), 0, 0.0))
            used = max(known.used, path.stat().st_mtime)
            together[key] = CacheEntry((*known.paths, path), known.size + size(path), used)
    return sorted(together.values(), key=lambda entry: (entry.used, entry.paths))


def size(path: Path) -> int:
    """Return the size in bytes of all files at and below ``path`` on one file system. Hard links count once."""
    top = path.lstat()
    if not path.is_dir():
        return top.st_size
    total, seen, todo = 0, set(), [str(path)]
    while todo:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as children:
            for child in children:
                state = child.stat(follow_symlinks=False)
                if child.is_dir(follow_symlinks=False):
                    if state.st_dev == top.st_dev:
                        todo.append(child.path)
                elif state.st_nlink == 1 or state.st_ino not in seen:
                    seen.add(state.st_ino)
                    total += state.st_size
    return total


# ------------------------------------------------------------------------------------------------ pruning


def prune(names: Iterable[str], days: float = AGE, everything: bool = False, dry_run: bool = False) -> list[Pruned]:
    """Remove entries that are unused for long or exceed the size limit, and leftovers of killed processes.

    Args:
        names: the caches; empty: every cache that deployer prunes.
        days: the number of days without use after which an entry is removed.
        everything: remove all entries.
        dry_run: only return what would be removed.

    Raises:
        UsageError: deployer does not prune a cache with this name.
        Refused: a build or pack uses the caches.
    """
    chosen = list(map(_ours, names)) or [cache for cache in CACHES if not cache.keeper]
    try:
        with contextlib.nullcontext() if dry_run else _locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            return [_prune(cache, days, everything, dry_run) for cache in chosen]
    except BlockingIOError:
        raise Refused("a build or pack uses the caches", "prune when that command has ended") from None


def _prune(cache: Cache, days: float, everything: bool, dry_run: bool) -> Pruned:
    held = entries(cache)
    excess = sum(entry.size for entry in held) - cache.cap
    limit = time.time() - days * 24 * 3600
    removed: list[CacheEntry] = []
    for entry in held:
        first = entry.paths[0]
        unfinished = first.name.startswith(UNFINISHED) or first.suffix == _PART
        if unfinished and not everything:
            doomed = entry.used < time.time() - _STALE
        else:
            doomed = everything or excess > 0 or entry.used < limit
        if doomed:
            excess -= entry.size
            removed.append(entry)
            for path in () if dry_run else entry.paths:
                with files.errors_named(f"remove {path}"):
                    if path.is_dir() and not path.is_symlink():
                        files.remove_tree(str(path))
                    else:
                        path.unlink(missing_ok=True)
    return Pruned(cache.name, len(removed), sum(entry.size for entry in removed))


def _ours(name: str) -> Cache:
    by_name = {cache.name: cache for cache in CACHES}
    if name not in by_name:
        known = ", ".join(cache.name for cache in CACHES if not cache.keeper)
        raise UsageError(f"there is no cache {name}", f"the caches: {known}")
    if by_name[name].keeper:
        raise UsageError(f"deployer does not prune the cache {name}", by_name[name].keeper)
    return by_name[name]


# ------------------------------------------------------------------------------------------------ in use


def in_use() -> contextlib.AbstractContextManager[None]:
    """Prevent pruning while the block runs. Any number of processes can do this at once."""
    return _locked(fcntl.LOCK_SH)


@contextlib.contextmanager
def _locked(how: int) -> Iterator[None]:
    """Hold a lock, which the kernel releases when this process ends. If locking is impossible, do nothing."""
    path = xdg.cache_folder("lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = open(path, "a")
    except OSError:  # an unwritable cache is not used
        yield
        return
    with stream:
        locked_folder.lock(stream, how)
        yield
