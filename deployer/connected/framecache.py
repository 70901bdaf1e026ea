"""Frames of earlier packs, so that what did not change is not compressed again.

A frame is found by a cheap fingerprint of its content and then decompressed and compared with it, which takes a
fraction of compressing: so neither a collision, nor a cache that was cut, mixed up or tampered with, can bring a wrong
byte into a bundle. (A SHA-256 of the content as the key would cost half as much as compressing.)

An entry is ``SHA-256 of the frame | frame``, published by rename, in a folder named by codec, version and level. Its
modification time is that of its last use; the oldest are removed beyond ``cap`` bytes. A cache that cannot be read or
written is as good as none.
"""

import contextlib
import hashlib
import logging
import os
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import NamedTuple

from deployer.connected.codecs import Codec

_log = logging.getLogger("deployer.framecache")

#: Bytes of all entries together.
CAP = 4 * 1024**3

_DIGEST = hashlib.sha256().digest_size
_PART = ".part"
_STALE = 3600  # seconds after which an unfinished entry is that of a pack that was killed


class Frame(NamedTuple):
    """A compressed frame and its SHA-256 (hexadecimal)."""

    data: bytes
    sha256: str


class FrameCache:
    """The cache in ``folder`` for one codec; used by several threads, and by several packs at once."""

    def __init__(self, folder: Path, codec: Codec, cap: int = CAP) -> None:
        self._top = folder
        self._folder = folder / codec.key
        self._decompress = codec.decompress
        self._cap = cap
        self._lock = threading.Lock()
        self._written = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _log.debug("no frame cache: %s", error)

    def get(self, raw: bytes) -> Frame | None:
        """Return the frame of this content, checked, or None."""
        path = self._path(raw)
        try:
            entry = path.read_bytes()
            digest = hashlib.sha256(memoryview(entry)[_DIGEST:])
            frame = entry[_DIGEST:]
            if digest.digest() != entry[:_DIGEST] or self._decompress(frame, len(raw)) != raw:
                return None
            os.utime(path)
        except (OSError, ValueError):
            return None
        return Frame(frame, digest.hexdigest())

    def put(self, raw: bytes, frame: Frame) -> None:
        """Keep the frame of a content."""
        try:
            descriptor, temporary = tempfile.mkstemp(suffix=_PART, dir=self._folder)
            try:
                with open(descriptor, "wb", buffering=0) as stream:
                    stream.write(bytes.fromhex(frame.sha256) + frame.data)
                os.replace(temporary, self._path(raw))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            _log.debug("not kept: %s", error)
            return
        with self._lock:
            self._written += len(frame.data)
            full = self._written > self._cap // 8
            if full:
                self._written = 0
        if full:
            self.trim()

    def trim(self) -> None:
        """Remove the entries that were not used for longest, until the cache is within its cap, and what kills left."""
        entries = []
        for path in self._top.glob("*/*"):
            with contextlib.suppress(OSError):  # another pack may trim too
                status = path.stat()
                if path.suffix == _PART and time.time() - status.st_mtime > _STALE:
                    path.unlink()
                else:
                    entries.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in entries) - self._cap
        for _, size, path in sorted(entries):
            if excess <= 0:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            excess -= size

    def _path(self, raw: bytes) -> Path:
        return self._folder / f"{len(raw):08x}{zlib.crc32(raw):08x}"


def default_folder() -> Path:
    """Return where frames are kept, by the XDG base directory specification."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "deployer" / "frames"
