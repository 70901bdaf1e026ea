"""The GNU notes of an ELF file, without ``typing``, because each rank imports this before its payload (see ``rank``).

All sizes are bounded. A file that is not a well-formed 64-bit little-endian ELF file has no notes.
Format: System V ABI, "Note Section".
"""

import struct

MYPY = False
if MYPY:
    from typing import Any, Callable, Iterator, Optional, Tuple

    #: Reads ``size`` bytes at ``offset``; returns fewer at the end of the file.
    ReadAt = Callable[[int, int], bytes]

#: The file header and a program header of 64-bit little-endian files.
EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
PHDR = struct.Struct("<IIQQQQQQ")
_NHDR = struct.Struct("<III")
_PT_NOTE = 4
_BUILD_ID = 3
_MAX_NOTES = 64 * 1024  # real ones are below 2 KiB


def build_id(read_at: "ReadAt") -> "Optional[str]":
    """Return the build-id in hexadecimal; None if the file has none or is not an ELF file."""
    return next((body.hex() for _, kind, body in each(read_at) if kind == _BUILD_ID), None)


def header(read_at: "ReadAt") -> "Tuple[Any, ...]":
    """Return the fields of the file header (``EHDR``); empty if it is not a 64-bit little-endian ELF file."""
    head = read_at(0, EHDR.size)
    return EHDR.unpack(head) if len(head) == EHDR.size and head[:6] == b"\x7fELF\x02\x01" else ()


def each(read_at: "ReadAt") -> "Iterator[Tuple[int, int, bytes]]":
    """Yield (machine of the file, type, content) for each non-empty GNU note; nothing if it is not an ELF file."""
    fields = header(read_at)
    if not fields or fields[9] != PHDR.size:
        return
    machine, offset, size, count = fields[2], fields[5], fields[9], fields[10]
    table = read_at(offset, size * count)
    for start in range(0, len(table) - size + 1, size):
        kind, _, where, _, _, length, _, align = PHDR.unpack_from(table, start)
        if kind == _PT_NOTE:
            for name, note, body in _notes(read_at(where, min(length, _MAX_NOTES)), 8 if align == 8 else 4):
                if name == b"GNU\0" and body:
                    yield machine, note, body


def _notes(data: bytes, align: int) -> "Iterator[Tuple[bytes, int, bytes]]":
    """Yield (name, type, content) of each complete note in ``data``."""
    at = 0
    while at + _NHDR.size <= len(data):
        name_size, body_size, kind = _NHDR.unpack_from(data, at)
        name_at = at + _NHDR.size
        body_at = padded(name_at + name_size, align)
        if body_at + body_size > len(data):
            return
        yield data[name_at : name_at + name_size], kind, data[body_at : body_at + body_size]
        at = padded(body_at + body_size, align)


def padded(size: int, align: int) -> int:
    """Return the next multiple of ``align``."""
    return (size + align - 1) // align * align
