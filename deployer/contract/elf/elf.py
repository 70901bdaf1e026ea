"""The GNU notes of an ELF file: its build-id, and the level of x86-64 that it needs.

Format: x86-64 psABI, "Program Property" (GNU_PROPERTY_X86_ISA_1_NEEDED).
"""

import struct
from typing import Callable, NamedTuple, Optional

from deployer.contract.elf import elf_notes

#: Reads ``size`` bytes at ``offset``; returns fewer at the end of the file.
ReadAt = Callable[[int, int], bytes]

EHDR, PHDR = elf_notes.EHDR, elf_notes.PHDR
_NT_GNU_PROPERTY = 5
_PROPERTY = struct.Struct("<II")
_X86_ISA_NEEDED = 0xC0008002
_EM_X86_64 = 62


class Notes(NamedTuple):
    """The GNU notes of a file.

    Attributes:
        build_id: hexadecimal, or None.
        level: the x86-64 level that it needs (2 for x86-64-v2); 0 for any.
    """

    build_id: Optional[str] = None
    level: int = 0


def notes(read_at: ReadAt) -> Notes:
    """Return the notes of a file; empty if it is not an ELF file."""
    found = Notes()
    for machine, kind, body in elf_notes.each(read_at):
        if kind == elf_notes.BUILD_ID and found.build_id is None:
            found = found._replace(build_id=elf_notes.in_hexadecimal(body))
        elif kind == _NT_GNU_PROPERTY and machine == _EM_X86_64:
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
        at += elf_notes.padded(size, 8)
    return 0
