"""Decompress a layer's frames on the laptop, which may lack the C library that a site has, for example on macOS."""

import zstandard

from deployer.contract.base.errors import IntegrityError
from deployer.system import codec


def decompressor(name: str) -> codec.Decompress:
    """Return ``codec.decompressor`` of a codec. Without a C library, it uses a library of Python."""
    return codec.decompressor(name, _zstd)


def _zstd(frame: bytes, size: int) -> bytes:
    try:
        if zstandard.frame_content_size(frame) > size:  # refused before its memory is allocated
            raise IntegrityError("a zstd frame is larger than announced")
        data: bytes = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"a zstd frame is broken: {error}") from error
    return data
