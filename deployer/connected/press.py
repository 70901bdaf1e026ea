"""Compressing a layer's pieces on all cores, in order.

Threads are enough: zstd, zlib and hashlib release the interpreter's lock. The digest of the uncompressed tar is a chain
over all of it, so it has a thread of its own; frames are independent.
"""

import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from deployer.connected.codecs import Codec
from deployer.connected.framecache import Frame, FrameCache
from deployer.connected.layer import Piece
from deployer.contract import oci

#: Bytes of pieces that are in work at once: what bounds the memory, whatever the image and the number of cores.
IN_WORK = 96 * 1024 * 1024


class Pressed(NamedTuple):
    """A frame of the layer: what it holds, its size when decompressed, and the frame itself."""

    holds: str
    raw: int
    frame: Frame


class Press:
    """Compresses pieces; ``raw`` and ``reused`` are complete when ``frames`` was read to its end."""

    def __init__(self, codec: Codec, cache: FrameCache | None = None, workers: int | None = None) -> None:
        self._codec = codec
        self._cache = cache
        self._workers = workers or len(os.sched_getaffinity(0))
        self._digest = hashlib.sha256()
        self._size = 0
        self.reused = 0  # frames that came from the cache

    @property
    def raw(self) -> oci.Blob:
        """Return the descriptor of the uncompressed tar."""
        return oci.Blob("sha256:" + self._digest.hexdigest(), self._size)

    def frames(self, pieces: Iterable[Piece]) -> Iterator[Pressed]:
        """Yield a frame a piece, in the order of the pieces."""
        waiting: deque[tuple[Piece, Future[tuple[Frame, bool]], Future[None]]] = deque()
        in_work = 0
        with ThreadPoolExecutor(self._workers, "press") as pool, ThreadPoolExecutor(1, "digest") as chain:
            try:
                for piece in pieces:
                    waiting.append((piece, pool.submit(self._press, piece.data), chain.submit(self._add, piece.data)))
                    in_work += len(piece.data)
                    while waiting and (in_work > IN_WORK or (waiting[0][1].done() and waiting[0][2].done())):
                        yield self._finished(*waiting[0])
                        in_work -= len(waiting.popleft()[0].data)
                while waiting:
                    yield self._finished(*waiting.popleft())
            finally:
                for _, pressing, adding in waiting:
                    pressing.cancel()
                    adding.cancel()
        if self._cache:
            self._cache.trim()

    def _finished(self, piece: Piece, pressing: Future[tuple[Frame, bool]], adding: Future[None]) -> Pressed:
        adding.result()
        frame, reused = pressing.result()
        self.reused += reused
        return Pressed(piece.holds, len(piece.data), frame)

    def _add(self, data: bytes) -> None:
        self._digest.update(data)
        self._size += len(data)

    def _press(self, raw: bytes) -> tuple[Frame, bool]:
        found = self._cache.get(raw) if self._cache else None
        if found is not None:
            return found, True
        data = self._codec.compress(raw)
        frame = Frame(data, hashlib.sha256(data).hexdigest())
        if self._cache:
            self._cache.put(raw, frame)
        return frame, False
