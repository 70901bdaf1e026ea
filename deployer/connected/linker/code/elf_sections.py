"""The section table of an ELF file. Every read is bounded; a file without a well-formed table has no sections."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from deployer.contract.elf import elf_notes
from deployer.contract.elf.elf import ReadAt

_SECTION = struct.Struct("<IIQQQQIIQQ")
_MAX_SECTIONS, _MAX_NAMES, _LONGEST = 4096, 1024 * 1024, 64
_EXECUTABLE, _CONTENT = 4, 1


class Section(NamedTuple):
    """A section: its name, its type and flags as ABI numbers, its address, and its offset and size in the file."""

    name: bytes
    kind: int
    flags: int
    address: int
    offset: int
    size: int

    @property
    def is_code(self) -> bool:
        """Return whether the section contains instructions."""
        return self.kind == _CONTENT and bool(self.flags & _EXECUTABLE)


def sections_of(read_at: ReadAt) -> Iterator[Section]:
    """Yield the sections of a 64-bit little-endian file."""
    header = elf_notes.header(read_at)
    if not header:
        return
    table, size, count, names = header[6], header[11], header[12], header[13]
    if size != _SECTION.size or not names < count <= _MAX_SECTIONS:
        return
    data = read_at(table, size * count)
    if len(data) < size * count:
        return
    sections = list(_SECTION.iter_unpack(data))
    text = read_at(sections[names][4], min(sections[names][5], _MAX_NAMES))
    for name, kind, flags, address, offset, length, *_ in sections:
        yield Section(text[name : name + _LONGEST].partition(b"\0")[0], kind, flags, address, offset, length)
