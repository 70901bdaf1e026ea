"""Decompress a layer's frames on the laptop, which may lack the C library that a site has, for example on macOS."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zstandard

from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle.manifest import Segment
from deployer.system import codec


def reader(of: Mapping[str, Any], read: Callable[[Segment], bytes]) -> Callable[[Segment], bytes]:
    """Return a function that decompresses a frame, which ``read`` returns.

    It must not be shared by threads. Without a C library, it uses a library of Python.

    Args:
        of: the record of the codec, as in a manifest.
    """
    decompress = codec.decompressor(str(of["name"]), _zstd)
    return lambda segment: bytes(decompress(read(segment), segment.raw or 0))


def across(
    frame: Callable[[Segment], bytes], segments: Sequence[Segment], first: int, start: int, length: int
) -> Callable[[int, int], bytes]:
    """Return a function that reads a file starting at ``start`` in frame ``first``, across frames if necessary."""

    def read_at(offset: int, size: int) -> bytes:
        size = min(size, length - offset)
        parts = []
        number, position = first, start + offset
        while size > 0:
            raw = segments[number].raw or 0
            if position < raw:
                part = frame(segments[number])[position : position + size]
                parts.append(part)
                size -= len(part)
                position += len(part)
            position -= raw
            number += 1
        return b"".join(parts)

    return read_at


def _zstd(frame: bytes, size: int) -> bytes:
    try:
        if zstandard.frame_content_size(frame) > size:  # refused before its memory is allocated
            raise IntegrityError("a zstd frame is larger than announced")
        data: bytes = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"a zstd frame is broken: {error}") from error
    return data
