"""Compress a layer's pieces on all cores, in order.

Threads are enough: reading, zstd, zlib and hashlib release the interpreter's lock. Frames are independent. The digest
of the uncompressed tar must be computed in sequence, so one thread does only that.
"""

import ctypes
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from deployer.connected.bundle.layer.codecs import Codec
from deployer.connected.bundle.layer.framecache import CachedFrame, FrameCache
from deployer.connected.bundle.layer.layer import LARGE, Piece
from deployer.contract.base import tarformat
from deployer.contract.bundle import oci
from deployer.system.workers import cores

#: The most bytes of pieces in progress. It limits memory use for any image and number of cores.
IN_WORK = 96 * 1024 * 1024
#: Bytes of pieces per worker: one being read and one waiting for the digest. With more, pieces would leave the
#: processor's cache before the digest reads them.
_FOR_WORKER = 2 * LARGE

#: Bytes to test first at the start of a piece: most pieces have non-zero bytes there.
_FIRST = 64

#: Options of mallopt(3). Blocks up to 32 MiB (glibc's maximum) come from the heap, and up to 64 MiB stay in it.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_FROM_HEAP, _STAYS = 32 * 1024 * 1024, 64 * 1024 * 1024


class Pressed(NamedTuple):
    """A frame of the layer.

    Attributes:
        holds: what it contains (``tarformat.HOLDINGS``).
        raw: its decompressed size in bytes.
        frame: the compressed frame.
    """

    holds: str
    raw: int
    frame: CachedFrame


class _Done(NamedTuple):
    raw: int
    frame: CachedFrame
    key: str
    reused: bool
    hole: bool


class _InWork(NamedTuple):
    """A piece, its bytes, the frame made from them, and the step that adds them to the digest."""

    piece: Piece
    raw: "Future[bytes]"
    pressing: "Future[_Done]"
    adding: "Future[None]"


class Press:
    """Compress pieces. The attributes are complete after the last item of ``frames``.

    Attributes:
        raw: the digest and size of the uncompressed tar.
        reused: the number of frames from the cache.
        holes: bytes of frames with only zeros. They occupy no space after unpacking.
        keys: the cache key of each frame, in order; empty texts without a cache.
    """

    def __init__(self, codec: Codec, cache: FrameCache | None = None, workers: int | None = None) -> None:
        self._codec = codec
        self._cache = cache
        self._workers = workers or cores()
        self._digest = hashlib.sha256()
        self._size = 0
        self._known = False
        self.reused = 0
        self.holes = 0
        self.keys: list[str] = []

    @property
    def raw(self) -> oci.Blob:
        """Return the descriptor of the uncompressed tar."""
        return oci.Blob("sha256:" + self._digest.hexdigest(), self._size)

    def frames(self, pieces: Iterable[Piece], see: Callable[[int, bytes], None] | None = None) -> Iterator[Pressed]:
        """Yield one frame per piece, in the order of the pieces.

        ``see`` is called with the number and bytes of each piece except REST, in order, in the thread that computes
        the digest. It is not called if the first frame is in the cache: then the image was probably checked before.
        """
        _keep_memory()
        waiting: deque[_InWork] = deque()
        most = min(IN_WORK, (self._workers + 1) * _FOR_WORKER)
        in_work = 0
        with ThreadPoolExecutor(self._workers, "press") as pool, ThreadPoolExecutor(1, "digest") as chain:
            try:
                for number, piece in enumerate(pieces):
                    raw: Future[bytes] = Future()
                    pressing = pool.submit(self._press, piece, raw)
                    seen = partial(see, number) if see and piece.holds != tarformat.REST else None
                    waiting.append(_InWork(piece, raw, pressing, chain.submit(self._add, raw, pressing, seen)))
                    in_work += piece.weight
                    while waiting and (in_work > most or (waiting[0].adding.done() and waiting[0].pressing.done())):
                        yield self._finished(waiting[0])
                        in_work -= waiting.popleft().piece.weight
                while waiting:
                    yield self._finished(waiting.popleft())
            finally:
                for left in waiting:
                    if left.pressing.cancel():
                        left.raw.cancel()  # it will not be read, so the digest must not wait
                    left.adding.cancel()

    def _finished(self, ended: _InWork) -> Pressed:
        done = ended.pressing.result()
        ended.adding.result()
        self.reused += done.reused
        self.holes += done.raw if done.hole else 0
        self.keys.append(done.key)
        return Pressed(ended.piece.holds, done.raw, done.frame)

    def _add(self, raw: "Future[bytes]", pressing: "Future[_Done]", see: Callable[[bytes], None] | None) -> None:
        data = raw.result()
        self._digest.update(data)
        if self._size == 0:
            self._known = pressing.result().reused
        if see and not self._known:
            see(data)
        self._size += len(data)

    def _press(self, piece: Piece, raw: "Future[bytes]") -> _Done:
        try:
            data = piece.read()
        except BaseException as error:
            raw.set_exception(error)
            raise
        raw.set_result(data)
        hole = piece.holds == tarformat.REST and not data[:_FIRST].strip(b"\0") and not data.strip(b"\0")
        key = self._cache.key(data) if self._cache else ""
        found = self._cache.get(key) if self._cache else None
        if found is not None:
            return _Done(len(data), found, key, True, hole)
        compressed = self._codec.compress(data)
        return _Done(len(data), CachedFrame(compressed, hashlib.sha256(compressed).hexdigest()), key, False, hole)


def _keep_memory() -> None:
    """Let glibc reuse the memory of one piece for the next.

    By default glibc returns large blocks to the kernel immediately, and the kernel zeroes each new block page by page.
    This takes a fifth of the packing time. Other C libraries lack this function or ignore it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP)
        mallopt(_M_TRIM_THRESHOLD, _STAYS)
