"""A cache of frames from earlier packs, so that unchanged content is not compressed again.

Nothing is copied: a finished bundle is hard-linked into the cache, with an index of the position of each frame. If no
link can be made (another file system), the index contains the bundle's own path. Contents are identified by BLAKE3
digest. A frame must have the SHA-256 from the bundle's segment table when it is read. So a moved, cut or overwritten
bundle is a cache miss and never gives wrong bytes.

The index of a bundle may have a record beside it of what its layer was made from (``known_layers``).

An index is published by rename before its link, in a folder named after codec, version and level. A killed process
can leave an index without a bundle; the next pack removes it. The modification time of an index is its last use. If the
bundles exceed the limit, the least recently used are removed. A cache that cannot be read or written is not used.
"""

import contextlib
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO, NamedTuple

from blake3 import blake3

from deployer.connected.bundle.layer.codecs import Codec
from deployer.connected.ground import caches
from deployer.contract.base.errors import DeployerError
from deployer.system import files

_log = logging.getLogger("deployer.framecache")

_FORMAT = 1
_INDEX, _BUNDLE, _RECORD = ".json", ".tar", ".layer"


class CachedFrame(NamedTuple):
    """A compressed frame.

    Attributes:
        data: its bytes.
        sha256: its digest in hexadecimal.
    """

    data: bytes
    sha256: str


class Kept(NamedTuple):
    """The position of a frame in a bundle.

    Attributes:
        key: ``FrameCache.key`` of the content.
        offset: bytes from the start of the bundle.
        size: bytes.
        sha256: the digest of the frame, in hexadecimal.
    """

    key: str
    offset: int
    size: int
    sha256: str


class _Place(NamedTuple):
    indexed: Path
    bundle: Path
    frame: Kept


class FrameCache:
    """The cache in a folder for one codec. Several threads and packs may use it at once."""

    def __init__(self, folder: Path, codec: Codec, cap: int = caches.FRAMES.cap) -> None:
        self._cache = caches.FRAMES._replace(place=folder, cap=cap)
        self._folder = folder / codec.key
        self._lock = threading.Lock()
        self._places: dict[str, _Place] | None = None
        self._open: dict[Path, int | None] = {}

    @staticmethod
    def key(raw: bytes) -> str:
        """Return the cache key of some content."""
        return blake3(raw).hexdigest()

    def get(self, key: str) -> CachedFrame | None:
        """Return the verified frame for some content, or None if the cache lacks it."""
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
        return CachedFrame(data, place.frame.sha256) if hashlib.sha256(data).hexdigest() == place.frame.sha256 else None

    def keep(self, bundle: Path, name: str, frames: Iterable[Kept], layer: str = "") -> None:
        """Add a finished bundle's frames to the cache.

        Args:
            name: its digest in hexadecimal.
            layer: the record of its layer, empty if there is none.
        """
        index, link, beside = (self._folder / (name + suffix) for suffix in (_INDEX, _BUNDLE, _RECORD))
        record = {"format": _FORMAT, "bundle": str(bundle.absolute()), "frames": [list(frame) for frame in frames]}
        try:
            files.write_text(str(index), json.dumps(record))
            with contextlib.suppress(OSError):
                link.unlink(missing_ok=True)
                os.link(bundle, link)
            if layer:
                files.write_text(str(beside), layer)
        except (OSError, DeployerError) as error:
            _log.debug("not kept: %s", error)
        self.trim()

    def records(self) -> list[Path]:
        """Return the records of layers, the most recently used first."""
        dated = []
        for path in self._folder.glob(f"*{_RECORD}"):
            with contextlib.suppress(OSError):
                dated.append((path.with_suffix(_INDEX).stat().st_mtime_ns, path))
        return [path for _, path in sorted(dated, reverse=True)]

    def bundle(self, record: Path) -> IO[bytes] | None:
        """Open the bundle of a record for reading, and note its use. Return None if it is gone."""
        index = record.with_suffix(_INDEX)
        path = _bundle_of(index)
        try:
            stream = open(path, "rb", buffering=0) if path else None
            os.utime(index)
        except OSError:
            return None
        return stream

    def holds(self, record: Path) -> bool:
        """Return whether a record's bundle has a link in the cache, and so survives the removal of its own file."""
        return record.with_suffix(_BUNDLE).is_file()

    def share(self, record: Path, bundle: Path) -> None:
        """Link the record to ``bundle``, which has the same frames at the same positions, instead of its own."""
        link = record.with_suffix(_BUNDLE)
        new = link.with_suffix(f".{os.getpid()}.part")
        try:
            if not os.path.samefile(link, bundle):
                os.link(bundle, new)
                os.replace(new, link)
        except OSError as error:
            _log.debug("not shared: %s", error)
            new.unlink(missing_ok=True)

    def note(self, record: Path, layer: str) -> None:
        """Replace the record of a layer."""
        try:
            files.write_text(str(record), layer)
        except (OSError, DeployerError) as error:
            _log.debug("not kept: %s", error)

    def trim(self) -> None:
        """Remove the least recently used bundles until the cache is within its limit, and indexes without a bundle."""
        for path in self._cache.folder.glob("*/*"):
            index = path.with_suffix(_INDEX)
            with contextlib.suppress(OSError):  # another pack may be trimming
                if path.suffix in (_INDEX, _BUNDLE, _RECORD) and not (index.exists() and _bundle_of(index)):
                    path.unlink()
        self._cache.trim()

    def close(self) -> None:
        """Close all open bundles. The cache stays usable."""
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
    """Return the bundle of an index: the link beside it, or the path in the index; None if neither exists."""
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
