"""Decompress a layer's frames with what a site has: zlib in Python, libzstd through ctypes, or Python 3.14's module.

Frames are independent, and their decompressed size is known beforehand, so one call on whole buffers is enough.
Source: zstd.h (ZSTD_decompressDCtx, ZSTD_isError), stable since libzstd 1.0.
"""

import ctypes
import ctypes.util
import importlib
import zlib
from typing import Any, Callable, Optional, Tuple, Type

from deployer.contract.base.errors import IntegrityError, MissingTool
from deployer.contract.base.tarformat import Buffer
from deployer.contract.bundle.manifest import MAX_RAW

#: From (frame, its decompressed size) to the decompressed bytes, which are valid until the next call.
Decompress = Callable[[bytes, int], memoryview]


def decompressor(codec: str, other: Optional[Callable[[bytes, int], Buffer]] = None) -> Decompress:
    """Return a function from (frame, its decompressed size) to the decompressed bytes.

    The bytes are in a buffer that the next call overwrites. The function raises IntegrityError if the frame is damaged
    or has another size. It must not be shared by threads; a forked process has its own copy.

    Args:
        other: decompresses zstd on a machine that has neither.

    Raises:
        MissingTool: the codec's library is not on this machine.
    """
    decompress = _gzip if codec == "gzip" else _zstd(other)

    def checked(frame: bytes, size: int) -> memoryview:
        if size > MAX_RAW:
            raise IntegrityError("a frame announces %d bytes; no frame is larger than %d" % (size, MAX_RAW))
        data = decompress(frame, size)
        if len(data) != size:
            raise IntegrityError("a frame holds %d bytes, not the %d announced" % (len(data), size))
        return memoryview(data)

    return checked


def _with(begin: Callable[[], Any], codec: str, broken: Tuple[Type[Exception], ...]) -> Callable[[bytes, int], bytes]:
    """Decompress each frame with a new decompressor of the standard library, which raises ``broken``."""

    def decompress(frame: bytes, size: int) -> bytes:
        stream = begin()
        try:
            # One byte more than announced, to detect a larger frame and to stop a decompression bomb.
            data = stream.decompress(frame, size + 1)
        except broken as error:
            raise IntegrityError(f"a {codec} frame is broken: {error}") from error
        if not stream.eof or stream.unused_data:
            raise IntegrityError(f"a {codec} frame does not end where it should")
        return bytes(data)

    return decompress


_gzip = _with(lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), "gzip", (zlib.error,))


def _zstd(other: Optional[Callable[[bytes, int], Buffer]]) -> Callable[[bytes, int], Buffer]:
    library = _load_libzstd()
    if library is not None:
        return _ZstdLibrary(library)
    module = _load_zstd_module()
    if module is not None:
        return _with(module.ZstdDecompressor, "zstd", (module.ZstdError, EOFError))
    if other is not None:
        return other
    problem = "this machine has no libzstd.so.1, but the bundle's layer is compressed with zstd"
    raise MissingTool(problem, "ask the site for the libzstd package, or pack the bundle with --codec gzip")


class _ZstdLibrary:
    """libzstd through ctypes, with one context and buffer for all frames: new ones cost as much as a small frame."""

    def __init__(self, library: Any) -> None:
        library.ZSTD_createDCtx.restype = ctypes.c_void_p
        library.ZSTD_createDCtx.argtypes = []
        self._is_error = library.ZSTD_isError
        self._is_error.restype = ctypes.c_uint
        self._is_error.argtypes = [ctypes.c_size_t]
        self._decompress = library.ZSTD_decompressDCtx
        self._decompress.restype = ctypes.c_size_t
        self._decompress.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t
        ]  # fmt: skip
        self._free = library.ZSTD_freeDCtx
        self._free.restype = ctypes.c_size_t
        self._free.argtypes = [ctypes.c_void_p]
        self._context = library.ZSTD_createDCtx()
        if not self._context:
            raise MemoryError("libzstd has no memory for a context")
        self._buffer = bytearray()

    def __call__(self, frame: bytes, size: int) -> Buffer:
        if size > len(self._buffer):
            self._buffer = bytearray(size)  # a new one: the caller may still use the last
        target = (ctypes.c_char * size).from_buffer(self._buffer) if size else None
        written = self._decompress(self._context, target, size, frame, len(frame))
        if self._is_error(written):
            raise IntegrityError("a zstd frame is broken, or larger than it announces")
        return memoryview(self._buffer)[:written]

    def __del__(self) -> None:
        context = getattr(self, "_context", None)
        if context:
            self._free(context)


def _load_libzstd() -> Optional[Any]:
    # find_library runs ldconfig or gcc, which takes long or is missing. The soname is enough if the loader knows it.
    return _load("libzstd.so.1") or _load(ctypes.util.find_library("zstd"))


def _load(name: Optional[str]) -> Optional[Any]:
    try:
        return ctypes.CDLL(name) if name else None
    except OSError:
        return None


def _load_zstd_module() -> Optional[Any]:
    """Return Python's own ``compression.zstd``, since 3.14, for machines without libzstd.so.1."""
    try:
        return importlib.import_module("compression.zstd")
    except ImportError:
        return None
