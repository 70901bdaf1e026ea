"""The GNU build-id of an ELF file: enough of the format to find one note, and never more trust than that.

Everything is bounded, and whatever is not a well-formed 64-bit little-endian ELF file has no build-id (None).
"""

import struct
from typing import Callable, Iterator, Optional, Tuple

#: Reads ``size`` bytes at ``offset``; fewer at the end of the file.
ReadAt = Callable[[int, int], bytes]

#: The file's header, and a program header, of 64-bit little-endian files.
EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
PHDR = struct.Struct("<IIQQQQQQ")
_NHDR = struct.Struct("<III")
_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_MAX_NOTES = 64 * 1024  # real ones are below 2 KiB


def build_id(read_at: ReadAt) -> Optional[str]:
    """Return the build-id in hexadecimal, or None where the file has none or is no ELF file."""
    head = read_at(0, EHDR.size)
    if len(head) < EHDR.size or head[:6] != b"\x7fELF\x02\x01":
        return None
    fields = EHDR.unpack(head)
    offset, size, count = fields[5], fields[9], fields[10]
    if size != PHDR.size:
        return None
    table = read_at(offset, size * count)
    for start in range(0, len(table) - size + 1, size):
        kind, _, where, _, _, length, _, align = PHDR.unpack_from(table, start)
        if kind == _PT_NOTE:
            for name, note, body in _notes(read_at(where, min(length, _MAX_NOTES)), 8 if align == 8 else 4):
                if name == b"GNU\0" and note == _NT_GNU_BUILD_ID and body:
                    return "".join("%02x" % byte for byte in body)
    return None


def _notes(data: bytes, align: int) -> Iterator[Tuple[bytes, int, bytes]]:
    """Yield (name, type, content) of each whole note in ``data``."""
    at = 0
    while at + _NHDR.size <= len(data):
        name_size, body_size, kind = _NHDR.unpack_from(data, at)
        name_at = at + _NHDR.size
        body_at = name_at + _padded(name_size, align)
        if body_at + body_size > len(data):
            return
        yield data[name_at : name_at + name_size], kind, data[body_at : body_at + body_size]
        at = body_at + _padded(body_size, align)


def _padded(size: int, align: int) -> int:
    return (size + align - 1) // align * align
