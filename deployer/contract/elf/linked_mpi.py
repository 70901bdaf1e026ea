"""Detect an MPI library that is statically linked into a program, which then ignores a bound libmpi.

The library's symbols are in the table ``.symtab`` unless the program was stripped; its string constants always remain.
All reads are bounded, and a malformed file yields no result.

Format: System V ABI, "Sections" and "Symbol Table".
"""

import re
import struct
from typing import Iterator, Optional, Set

from deployer.contract.elf import elf_notes
from deployer.contract.elf.elf import ReadAt

#: How it was detected: in the symbol table, or only by string constants of the library.
SYMBOLS, TEXTS = "symbols", "texts"

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_SHT_SYMTAB = 2
_SHN_UNDEF = 0
_STB_LOCAL = 0
#: A library, or a program that contains one, has both; a serial program's stubs and a profiler have only the first.
_NAMES = (b"MPI_Init", b"PMPI_Init")

#: Texts that only an MPI library has so often: the names of MPICH's settings, which Intel MPI and MVAPICH have as well
#: (more than 900 in each tested library), and the texts of Open MPI's MPI_Init (6).
_MPICH, _MPICH_COUNT = b"MPIR_CVAR_", 100
_OPENMPI, _OPENMPI_COUNT = b"ompi_mpi_init", 3
#: Open MPI contains function names as texts for error messages; a program that only calls a function does not.
_OPENMPI_NAME = b"\0MPI_Init\0"

#: A program that contains an MPI library has several MB.
_SMALLEST = 256 * 1024
_SEARCHED = 256 * 1024 * 1024
_CHUNK = 4 * 1024 * 1024
_MAX_SECTIONS = 1024
_MAX_SYMBOLS = 64 * 1024 * 1024  # bytes of the table, and of its names


def linked_mpi(read_at: ReadAt) -> Optional[str]:
    """Return how a statically linked MPI library was detected: SYMBOLS, TEXTS, or None if there is none.

    Use it only for programs that call no function from a shared MPI library.
    """
    if _defined(read_at).issuperset(_NAMES):
        return SYMBOLS
    return TEXTS if _has_texts(read_at) else None


def _has_texts(read_at: ReadAt) -> bool:
    if len(read_at(_SMALLEST, 1)) == 0:
        return False
    mpich = openmpi = named = 0
    for start in range(0, _SEARCHED, _CHUNK):
        data = read_at(start, _CHUNK + 16)
        mpich += data.count(_MPICH)
        openmpi += data.count(_OPENMPI)
        named += data.count(_OPENMPI_NAME)
        if mpich >= _MPICH_COUNT or (openmpi >= _OPENMPI_COUNT and named):
            return True
        if len(data) < _CHUNK:
            return False
    return False


def _defined(read_at: ReadAt) -> Set[bytes]:
    """Return those of ``_NAMES`` that the file's symbol table defines."""
    header = elf_notes.header(read_at)
    if not header:
        return set()
    offset, size, count = header[6], header[11], header[12]
    if size != _SECTION.size or count > _MAX_SECTIONS:
        return set()
    table = read_at(offset, size * count)
    sections = [_SECTION.unpack_from(table, at) for at in range(0, len(table) - size + 1, size)]
    defined: Set[bytes] = set()
    for section in sections:
        if section[1] == _SHT_SYMTAB and section[6] < len(sections):
            names = sections[section[6]]
            if max(section[5], names[5]) <= _MAX_SYMBOLS:
                defined.update(_in_table(read_at(section[4], section[5]), read_at(names[4], names[5])))
    return defined


def _in_table(symbols: bytes, names: bytes) -> Iterator[bytes]:
    """Yield those of ``_NAMES`` that a table defines for other files; ``names`` is its string table."""
    # A name may be the end of a longer string.
    places = {match.start(): name for name in _NAMES for match in re.finditer(name + b"\0", names)}
    if not places:
        return
    for at in range(0, len(symbols) - _SYM.size + 1, _SYM.size):
        name, info, _, section, _, _ = _SYM.unpack_from(symbols, at)
        if name in places and info >> 4 != _STB_LOCAL and section != _SHN_UNDEF:
            yield places[name]
