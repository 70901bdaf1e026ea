"""Frames of earlier packs, so that what did not change is not compressed again.

Nothing is written twice: a finished bundle is linked into the cache (a second name of the same file), with an index
that says where in it the frame of each content stands. Where a link cannot be made, on another file system, the index
names the bundle where it is. A content is known by its BLAKE3 digest, and what is read must have the SHA-256 that the
bundle's own table gave it, so a bundle that was moved, cut or overwritten is a miss, never a wrong byte.

An index is published by rename, in a folder named by codec, version and level, before its link: what a kill leaves is
an index without a bundle, which is removed the next time. Its modification time is that of its last use; the oldest
bundles are given up beyond ``cap`` bytes. A cache that cannot be read or written is as good as none.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from deployer.connected.bundle.codecs import Codec
from deployer.connected.ground import xdg
from deployer.contract.errors import DeployerError
from deployer.system import digest, files

_log = logging.getLogger("deployer.framecache")

#: Bytes of all bundles together.
CAP = 4 * 1024**3

_FORMAT = 1
_INDEX, _BUNDLE = ".json", ".tar"
_STALE = 3600  # seconds after which what has neither name is the rest of a pack that was killed


class CachedFrame(NamedTuple):
    """A compressed frame and its SHA-256 (hexadecimal)."""

    data: bytes
    sha256: str


class Kept(NamedTuple):
    """Where the frame of a content stands in a bundle; ``key`` is ``FrameCache.key`` of the content."""

    key: str
    offset: int
    size: int
    sha256: str


class _Place(NamedTuple):
    indexed: Path
    bundle: Path
    frame: Kept


class FrameCache:
    """The cache in ``folder`` for one codec; used by several threads, and by several packs at once."""

    def __init__(self, folder: Path, codec: Codec, cap: int = CAP) -> None:
        self._top = folder
        self._folder = folder / codec.key
        self._cap = cap
        self._lock = threading.Lock()
        self._places: dict[str, _Place] | None = None
        self._open: dict[Path, int | None] = {}

    @staticmethod
    def key(raw: bytes) -> str:
        """Return what a content is known by."""
        return blake3(raw).hexdigest()

    def get(self, key: str) -> CachedFrame | None:
        """Return the frame of a content, checked, or None."""
        with self._lock:
            if self._places is None:
                self._places = self._read_indexes()
            place = self._places.get(key)
            descriptor = self._descriptor(place) if place else None
        if place is None or descriptor is None:
            return None
        try:
            data = os.pread(descriptor, place.frame.size, place.frame.offset)
        except OSError:
            return None
        return CachedFrame(data, place.frame.sha256) if digest.sha256(data) == place.frame.sha256 else None

    def keep(self, bundle: Path, name: str, frames: Iterable[Kept]) -> None:
        """Keep a finished bundle's frames; ``name`` is its digest in hexadecimal."""
        index, link = (self._folder / (name + suffix) for suffix in (_INDEX, _BUNDLE))
        record = {"format": _FORMAT, "bundle": str(bundle.absolute()), "frames": [list(frame) for frame in frames]}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            files.write_text(str(index), json.dumps(record))
            with contextlib.suppress(OSError):
                link.unlink(missing_ok=True)
                os.link(bundle, link)
        except (OSError, DeployerError) as error:
            _log.debug("not kept: %s", error)
        self.trim()

    def trim(self) -> None:
        """Give up the bundles that were not used for longest, until the cache is within its cap, and what has gone."""
        found = []
        for index in self._top.glob(f"*/*{_INDEX}"):
            with contextlib.suppress(OSError):  # another pack may trim too
                bundle = _bundle_of(index)
                if bundle is None:
                    index.unlink()
                    continue
                found.append((index.stat().st_mtime_ns, bundle.stat().st_size, index))
        excess = sum(size for _, size, _ in found) - self._cap
        for _, size, index in sorted(found):
            if excess > 0:
                _remove(index, index.with_suffix(_BUNDLE))
                excess -= size
        for path in self._top.glob("*/*"):
            with contextlib.suppress(OSError):
                lost = path.suffix not in (_INDEX, _BUNDLE) and time.time() - path.stat().st_mtime > _STALE
                if lost or (path.suffix == _BUNDLE and not path.with_suffix(_INDEX).exists()):
                    path.unlink()

    def close(self) -> None:
        """Close what was opened to read from; the cache can be used again."""
        with self._lock:
            for descriptor in self._open.values():
                if descriptor is not None:
                    os.close(descriptor)
            self._open = {}
            self._places = None

    def _read_indexes(self) -> dict[str, _Place]:
        places = {}
        for index in self._folder.glob(f"*{_INDEX}"):
            bundle = _bundle_of(index)
            for frame in _frames_of(index) if bundle else ():
                places[frame.key] = _Place(index, bundle or index, frame)
        return places

    def _descriptor(self, place: _Place) -> int | None:
        if place.bundle not in self._open:
            try:
                self._open[place.bundle] = os.open(place.bundle, os.O_RDONLY | os.O_CLOEXEC)
                os.utime(place.indexed)
            except OSError:
                self._open[place.bundle] = None
        return self._open[place.bundle]


def _bundle_of(index: Path) -> Path | None:
    """Return the bundle that an index is of: the link beside it, else where it was; None where it has gone."""
    link = index.with_suffix(_BUNDLE)
    if link.is_file():
        return link
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        bundle = Path(json.loads(index.read_bytes())["bundle"])
        if bundle.is_file():
            return bundle
    return None


def _frames_of(index: Path) -> list[Kept]:
    try:
        record = json.loads(index.read_bytes())
        if record["format"] == _FORMAT:
            return [Kept(str(key), int(offset), int(size), str(sha)) for key, offset, size, sha in record["frames"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.debug("%s cannot be read: %s", index, error)
    return []


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def default_folder() -> Path:
    """Return where frames are kept, by the XDG base directory specification."""
    return xdg.cache_folder("frames")
