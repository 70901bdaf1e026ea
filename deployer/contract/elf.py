"""The GNU notes of an ELF file: its build-id, and the level of x86-64 that it needs.

All sizes are bounded. A file that is not a well-formed 64-bit little-endian ELF file has no notes.
Format: System V ABI, "Note Section"; x86-64 psABI, "Program Property" (GNU_PROPERTY_X86_ISA_1_NEEDED).
"""

import struct
from typing import Callable, Iterator, NamedTuple, Optional, Tuple

#: Reads ``size`` bytes at ``offset``; returns fewer at the end of the file.
ReadAt = Callable[[int, int], bytes]

#: The file header and a program header of 64-bit little-endian files.
EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
PHDR = struct.Struct("<IIQQQQQQ")
_NHDR = struct.Struct("<III")
_PT_NOTE = 4
_NT_GNU_BUILD_ID, _NT_GNU_PROPERTY = 3, 5
_PROPERTY = struct.Struct("<II")
_X86_ISA_NEEDED = 0xC0008002
_EM_X86_64 = 62
_MAX_NOTES = 64 * 1024  # real ones are below 2 KiB


class Notes(NamedTuple):
    """The GNU notes of a file.

    Attributes:
        build_id: hexadecimal, or None.
        level: the x86-64 level that it needs (2 for x86-64-v2); 0 for any.
    """

    build_id: Optional[str] = None
    level: int = 0


def build_id(read_at: ReadAt) -> Optional[str]:
    """Return the build-id in hexadecimal; None if the file has none or is not an ELF file."""
    return notes(read_at).build_id


def notes(read_at: ReadAt) -> Notes:
    """Return the notes of a file; empty if it is not an ELF file."""
    found = Notes()
    head = read_at(0, EHDR.size)
    if len(head) < EHDR.size or head[:6] != b"\x7fELF\x02\x01":
        return found
    fields = EHDR.unpack(head)
    machine, offset, size, count = fields[2], fields[5], fields[9], fields[10]
    if size != PHDR.size:
        return found
    table = read_at(offset, size * count)
    for start in range(0, len(table) - size + 1, size):
        kind, _, where, _, _, length, _, align = PHDR.unpack_from(table, start)
        if kind == _PT_NOTE:
            for name, note, body in _notes(read_at(where, min(length, _MAX_NOTES)), 8 if align == 8 else 4):
                if name != b"GNU\0" or not body:
                    continue
                if note == _NT_GNU_BUILD_ID and found.build_id is None:
                    found = found._replace(build_id="".join("%02x" % byte for byte in body))
                elif note == _NT_GNU_PROPERTY and machine == _EM_X86_64:
                    found = found._replace(level=_level(body))
    return found


def _level(data: bytes) -> int:
    """Return the highest level among the properties: bit 1 is x86-64-v2, bit 2 v3, bit 3 v4."""
    at = 0
    while at + _PROPERTY.size <= len(data):
        kind, size = _PROPERTY.unpack_from(data, at)
        at += _PROPERTY.size
        if kind == _X86_ISA_NEEDED and size == 4 and at + size <= len(data):
            bits = struct.unpack_from("<I", data, at)[0] & 0b1110
            return int(bits.bit_length())
        at += _padded(size, 8)
    return 0


def _notes(data: bytes, align: int) -> Iterator[Tuple[bytes, int, bytes]]:
    """Yield (name, type, content) of each complete note in ``data``."""
    at = 0
    while at + _NHDR.size <= len(data):
        name_size, body_size, kind = _NHDR.unpack_from(data, at)
        name_at = at + _NHDR.size
        body_at = _padded(name_at + name_size, align)
        if body_at + body_size > len(data):
            return
        yield data[name_at : name_at + name_size], kind, data[body_at : body_at + body_size]
        at = _padded(body_at + body_size, align)


def _padded(size: int, align: int) -> int:
    return (size + align - 1) // align * align
