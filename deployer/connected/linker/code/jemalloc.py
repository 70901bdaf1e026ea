"""The page size for which a copy of jemalloc was compiled, in a library or in a program that contains it.

jemalloc ends the program on nodes with larger pages. It reads their size once, with sysconf(_SC_PAGESIZE), and compares
it with its own: ``mov w0, 30``, the call, and ``cmp x0, N, lsl 12``. Source: jemalloc, src/pages.c, pages_boot().
"""

import re
import struct
from collections.abc import Iterator

from deployer.connected.linker.code import elf_sections
from deployer.contract.elf.elf import ReadAt

_TEXT = b"<jemalloc>: Unsupported system page size"
_DATA = b".rodata"
_SC_PAGESIZE = re.compile(rb"\xc0\x03\x80\x52")
#: CMP of a register of 64 bits with a number of 4 KiB; within how many words it follows.
_MASK, _CMP, _NEAR = 0xFFC0001F, 0xF140001F, 24
_KIB_4 = 4096
_CHUNK = 8 * 1024 * 1024
_WORD = struct.Struct("<I")

#: The file contains jemalloc, but the page size is not recognized.
UNKNOWN = -1


def page_size(read_at: ReadAt) -> int:
    """Return the page size of the jemalloc in an AArch64 file; 0 if it contains none; or UNKNOWN."""
    sections = list(elf_sections.sections_of(read_at))
    if not any(_TEXT in data for part in sections if part.name.startswith(_DATA) for data in _chunks(read_at, part)):
        return 0
    code = (data for part in sections if part.is_code for data in _chunks(read_at, part))
    sizes = {size for data in code for size in _compared(data)}
    return sizes.pop() if len(sizes) == 1 else UNKNOWN


def _chunks(read_at: ReadAt, part: elf_sections.Section) -> Iterator[bytes]:
    """Yield a section's content in pieces that overlap."""
    for start in range(0, part.size, _CHUNK):
        yield read_at(part.offset + start, min(_CHUNK + _NEAR * _WORD.size, part.size - start))


def _compared(data: bytes) -> Iterator[int]:
    """Yield the sizes with which code compares the page size."""
    for match in _SC_PAGESIZE.finditer(data):
        near = data[match.end() : match.end() + _NEAR * _WORD.size]
        for (word,) in _WORD.iter_unpack(near[: len(near) // _WORD.size * _WORD.size]):
            if match.start() % _WORD.size == 0 and word & _MASK == _CMP:
                yield (word >> 10 & 0xFFF) * _KIB_4
