"""The level of x86-64 that an ELF file needs, according to its GNU notes.

Format: x86-64 psABI, "Program Property" (GNU_PROPERTY_X86_ISA_1_NEEDED).
"""

import struct
from typing import Callable

from deployer.contract.elf import elf_notes

#: Reads ``size`` bytes at ``offset``; returns fewer at the end of the file.
ReadAt = Callable[[int, int], bytes]

_NT_GNU_PROPERTY = 5
_PROPERTY = struct.Struct("<II")
_X86_ISA_NEEDED = 0xC0008002
_EM_X86_64 = 62


def level(read_at: ReadAt) -> int:
    """Return the x86-64 level that a file needs (2 for x86-64-v2); 0 for any, or if it is not an ELF file."""
    properties = [
        body for machine, kind, body in elf_notes.each(read_at) if kind == _NT_GNU_PROPERTY and machine == _EM_X86_64
    ]
    return _level(properties[-1]) if properties else 0


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
