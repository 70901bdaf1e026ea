"""Read what the dynamic loader uses in an ELF file: names, search paths, versions, and MPI symbols.

Only little-endian files are read. 32-bit files are read only on request, without their symbols. Every offset and count
is bounded, so a hostile file costs little. A file that the loader could not use raises BadElf.

Format: System V ABI, "Dynamic Linking"; LSB Core, "Symbol Versioning"; glibc, elf/dl-load.c and elf/dl-version.c.
"""

import itertools
import re
import struct
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import records
from deployer.contract.base.json_records import Record
from deployer.contract.elf import elf_notes
from deployer.contract.elf.elf import ReadAt, level
from deployer.contract.elf.elf_notes import EHDR, PHDR
from deployer.contract.elf.linked_mpi import linked_mpi
from deployer.contract.elf.machines import AARCH64

_DYN, _DYN_32 = struct.Struct("<qQ"), struct.Struct("<iI")
_EHDR_32, _PHDR_32 = struct.Struct("<16sHHIIIIIHHHHHH"), struct.Struct("<IIIIIIII")
_CLASS_32 = b"\x7fELF\x01\x01"
_SYM = struct.Struct("<IBBHQQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_VERDEF = struct.Struct("<HHHHIII")
_WORD = struct.Struct("<I")
_RELOCATION = struct.Struct("<QQq")

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_ET_EXEC, _ET_DYN = 2, 3
_NULL, _NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH = 0, 1, 4, 5, 6, 10, 14, 15
_BIND_NOW, _RUNPATH, _FLAGS = 24, 29, 30
_RELA, _RELASZ, _PLTRELSZ, _JMPREL = 7, 8, 2, 23
_GNU_HASH, _FLAGS_1 = 0x6FFFFEF5, 0x6FFFFFFB
_VERDEF_TAG, _VERDEFNUM, _VERNEED_TAG, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_DF_BIND_NOW, _DF_1_NOW, _DF_1_PIE = 0x8, 0x1, 0x08000000
_STB_WEAK, _STB_LOCAL = 2, 0
_SHN_UNDEF = 0

#: Real files stay far below these limits: libtensorflow_cc has 15 program headers, 100 entries and 700,000 symbols.
_MAXPHDRS = 512
_MAX_DYNAMIC = 256 * 1024
_MAX_STRING = 64 * 1024
_MAX_TEXT = 512 * 1024  # bytes of all names kept per file, because names may overlap in its string table
_MAX_VERSIONS = 8192
_MAX_SYMBOLS = 16 * 1024 * 1024
_CHUNK = 64 * 1024
_RELOCATIONS = 4096 * _RELOCATION.size

#: The largest page size of Linux on AArch64.
_MAX_PAGE = 64 * 1024


#: The beginnings of an MPI library's symbols: of the standard, and of Open MPI's mpi.h.
_MPI = ("MPI_", "PMPI_", "MPIX_", "PMPIX_", "ompi_mpi_")
_COMPONENT = re.compile(r"^mca_pmix_[a-z0-9]{1,30}_component$")
_MPI_BYTES = (b"MPI_", b"MPIX_", b"ompi_mpi_", b"mca_pmix_")
_DLOPEN = b"\0dlopen\0"
_SEARCHED = 4 * 1024 * 1024


class BadElf(ValueError):
    """The file begins like an ELF file, but is incomplete or inconsistent."""


class Dynamic(NamedTuple):
    """The dynamic section of a file.

    Attributes:
        machine: the ABI's number of the architecture (62: x86-64).
        interpreter: the path of the loader, or None.
        soname: the library's own name, or None.
        needed: the libraries that it needs.
        rpath: search folders as written, ``$ORIGIN`` included.
        runpath: the same for RUNPATH.
        versions: the versions that it needs, by library (``{"libc.so.6": ["GLIBC_2.34"]}``), without weak ones.
        defines: the versions that it defines.
        now: all symbols must be found when the file is loaded.
        build_id: hexadecimal, or None.
    """

    machine: int
    interpreter: Optional[str]
    soname: Optional[str]
    needed: List[str]
    rpath: List[str]
    runpath: List[str]
    versions: Dict[str, List[str]]
    defines: List[str]
    now: bool
    build_id: Optional[str]


class Facts(NamedTuple):
    """Everything that the dry link needs to know about a file.

    Attributes:
        dynamic: its dynamic section.
        imports: the MPI symbols that it needs, sorted; a weak symbol may be missing and is left out.
        exports: the MPI symbols that it defines, sorted.
        components: the components of Open MPI's framework "pmix" in the file (``mca_pmix_s2_component``).
        level: the x86-64 level that it needs (3 for x86-64-v3); 0 for any.
        linked: how a program shows that an MPI library is linked into it (``linked_mpi``), or None.
        opens: whether it is a program that calls no MPI function and opens libraries by name (``dlopen``).
        sha256: the digest of a library without a build-id that capture reads; else None.
        pages: the largest page size with which its segments can be mapped, if it is for AArch64 and the size is below
            64 KiB; else 0.

    A record leaves out the last six fields if they are empty.
    """

    dynamic: Dynamic
    imports: List[str]
    exports: List[str]
    components: Sequence[str] = ()
    level: int = 0
    linked: Optional[str] = None
    opens: bool = False
    sha256: Optional[str] = None
    pages: int = 0

    @property
    def identity(self) -> Optional[str]:
        """Return the identity of the file (``deployer.system.elf``), or None if it is unknown."""
        if self.dynamic.build_id:
            return "build-id:" + self.dynamic.build_id
        return "sha256:" + self.sha256 if self.sha256 else None

    def record(self) -> Record:
        """Return the facts as a JSON object."""
        return records.short(self)


class Symbol(NamedTuple):
    """A dynamic symbol.

    Attributes:
        name: its name, without a version.
        defined: whether it is defined in this file; otherwise another file must define it.
        weak: whether it may be missing.
    """

    name: str
    defined: bool
    weak: bool


def read(read_at: ReadAt) -> Optional[Dynamic]:
    """Return a file's dynamic section; None if it is not a 64-bit little-endian ELF file. Raises BadElf."""
    elf = _open(read_at)
    return _dynamic(elf, elf_notes.build_id(read_at)) if elf else None


def facts(read_at: ReadAt, narrow: bool = False) -> Optional[Facts]:
    """Return the facts of a file; None if it is not a little-endian ELF file. Raises BadElf.

    Args:
        narrow: also read 32-bit files.
    """
    elf = _open(read_at) or (_open_32(read_at) if narrow else None)
    if elf is None:
        return None
    if elf.dyn is _DYN_32:
        return Facts(_dynamic(elf, None), [], [])
    symbols = list(_symbols(elf, _is_wanted)) if _names_one(elf, _MPI_BYTES) else []
    defined = sorted({symbol.name for symbol in symbols if symbol.defined})
    needed = sorted({symbol.name for symbol in symbols if not symbol.defined and not symbol.weak})
    imports = [name for name in needed if name.startswith(_MPI)]
    calls_none = elf.is_program and not imports
    return Facts(
        dynamic=_dynamic(elf, elf_notes.build_id(read_at)),
        imports=imports,
        exports=[name for name in defined if name.startswith(_MPI)],
        components=tuple(name for name in defined if not name.startswith(_MPI)),
        level=level(read_at),
        linked=linked_mpi(read_at) if calls_none else None,
        opens=calls_none and _names_one(elf, (_DLOPEN,)),
        pages=elf.pages if elf.machine == AARCH64.number else 0,
    )


def _is_wanted(name: str) -> bool:
    return name.startswith(_MPI) or _COMPONENT.match(name) is not None


def _dynamic(elf: "_Elf", build_id: Optional[str]) -> Dynamic:
    flags = elf.last(_FLAGS) or 0
    flags_1 = elf.last(_FLAGS_1) or 0
    soname = elf.last(_SONAME)
    return Dynamic(
        machine=elf.machine,
        interpreter=elf.interpreter(),
        soname=elf.text(soname) if soname is not None else None,
        needed=[elf.text(value) for tag, value in elf.tags if tag == _NEEDED],
        rpath=_paths(elf, _RPATH),
        runpath=_paths(elf, _RUNPATH),
        versions=_versions(elf),
        defines=_definitions(elf),
        now=bool(flags & _DF_BIND_NOW or flags_1 & _DF_1_NOW or elf.last(_BIND_NOW) is not None),
        build_id=build_id,
    )


def _names_one(elf: "_Elf", parts: Sequence[bytes]) -> bool:
    """Return whether the string table contains any of ``parts``; the test saves reading up to 700,000 symbols."""
    for start in range(0, elf.strings_size, _SEARCHED):
        data = elf.read_at(elf.strings + start, min(_SEARCHED + 16, elf.strings_size - start))
        if any(part in data for part in parts):
            return True
    return False


def _symbols(elf: "_Elf", wanted: Callable[[str], bool]) -> Iterator[Symbol]:
    table = elf.last(_SYMTAB)
    if table is None:
        return
    start, count = elf.offset(table), _symbol_count(elf)
    # Most of the string table is read, so it is held in memory.
    strings = elf.read_at(elf.strings, elf.strings_size) if elf.strings_size <= _MAX_SYMBOLS else b""
    for base in range(0, count, _CHUNK // _SYM.size):
        size = min(count - base, _CHUNK // _SYM.size) * _SYM.size
        for name, info, _, section, _, _ in _SYM.iter_unpack(elf.exactly(start + base * _SYM.size, size)):
            if name and info >> 4 != _STB_LOCAL:
                end = strings.find(b"\0", name, name + _MAX_STRING)
                text = elf.string(name) if end < 0 else strings[name:end].decode("utf-8", "surrogateescape")
                if wanted(text):
                    yield Symbol(elf.keep(text), section != _SHN_UNDEF, info >> 4 == _STB_WEAK)


class _Elf:
    """An ELF file's program headers and dynamic section."""

    def __init__(
        self, read_at: ReadAt, kind: int, machine: int, headers: List[Tuple[int, ...]], dyn: struct.Struct = _DYN
    ) -> None:
        self.read_at, self.machine, self.dyn = read_at, machine, dyn
        self._kind = kind
        self._interpreter = next((header for header in headers if header[0] == _PT_INTERP), None)
        #: Address, file offset, and size of each loaded segment.
        self._loads = [(h[3], h[2], h[5]) for h in headers if h[0] == _PT_LOAD]
        #: The largest page size with which the segments can be mapped, below ``_MAX_PAGE``; else 0.
        self.pages = min((h[7] & -h[7] for h in headers if h[0] == _PT_LOAD and h[7] % _MAX_PAGE), default=0)
        self.tags = [tag for header in headers if header[0] == _PT_DYNAMIC for tag in self._tags(header[2], header[5])]
        strings, size = self.last(_STRTAB), self.last(_STRSZ)
        self.strings = self.offset(strings) if strings is not None else 0
        self.strings_size = size or 0
        self._kept = 0

    def text(self, index: int) -> str:
        """Return the string at ``index`` and count it as kept."""
        return self.keep(self.string(index))

    def keep(self, text: str) -> str:
        """Return ``text``; raise BadElf if too much text was kept from this file."""
        self._kept += len(text) + 50
        if self._kept > _MAX_TEXT:
            raise BadElf("its names have more than %d bytes" % _MAX_TEXT)
        return text

    def _tags(self, offset: int, size: int) -> Iterator[Tuple[int, int]]:
        """Return the tags and values of a dynamic section."""
        if size > _MAX_DYNAMIC:
            raise BadElf("its dynamic section has %d bytes" % size)
        entries = self.dyn.iter_unpack(self.exactly(offset, size - size % self.dyn.size))
        return itertools.takewhile(lambda entry: entry[0] != _NULL, entries)

    def last(self, tag: int) -> Optional[int]:
        """Return the value of a tag, or of its last occurrence, as the loader does; None if it is absent."""
        return next((value for each, value in reversed(self.tags) if each == tag), None)

    def offset(self, address: int) -> int:
        """Return the file offset from which an address is loaded."""
        for start, offset, size in self._loads:
            if start <= address < start + size:
                return offset + address - start
        raise BadElf(f"address {address:#x} is not in the file")

    def exactly(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes at ``offset``; raise BadElf if the file ends earlier."""
        data = self.read_at(offset, size)
        if len(data) != size:
            raise BadElf("it ends before byte %d" % (offset + size))
        return data

    def string(self, index: int) -> str:
        """Return the string at ``index`` of the dynamic string table."""
        if not 0 <= index < self.strings_size:
            raise BadElf("a name is outside of its string table")
        limit = min(self.strings_size - index, _MAX_STRING)
        size = min(256, limit)
        while True:
            data = self.read_at(self.strings + index, size)
            end = data.find(b"\0")
            if end >= 0:
                return data[:end].decode("utf-8", "surrogateescape")
            if size == limit or len(data) < size:
                raise BadElf("a name has no end")
            size = min(size * 8, limit)

    @property
    def is_program(self) -> bool:
        """Whether the kernel could start it; libraries have no interpreter, and static programs may lack one too."""
        is_static_pie = bool((self.last(_FLAGS_1) or 0) & _DF_1_PIE)
        return self._interpreter is not None or self._kind == _ET_EXEC or is_static_pie

    def interpreter(self) -> Optional[str]:
        if self._interpreter is None:
            return None
        text = self.exactly(self._interpreter[2], min(self._interpreter[5], 4096))
        return text.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _open(read_at: ReadAt) -> Optional[_Elf]:
    head = read_at(0, EHDR.size)
    if head[:6] != b"\x7fELF\x02\x01":
        return None
    if len(head) < EHDR.size:
        raise BadElf("it ends in its header")
    fields = EHDR.unpack(head)
    kind, machine, offset, size, count = fields[1], fields[2], fields[5], fields[9], fields[10]
    if kind not in (_ET_EXEC, _ET_DYN):
        return None  # an object file or a core
    if size != PHDR.size or count > _MAXPHDRS:
        raise BadElf("it has %d program headers of %d bytes" % (count, size))
    table = read_at(offset, size * count)
    if len(table) != size * count:
        raise BadElf("it ends in its program headers")
    return _Elf(read_at, kind, machine, list(PHDR.iter_unpack(table)))


def _open_32(read_at: ReadAt) -> Optional[_Elf]:
    head = read_at(0, _EHDR_32.size)
    if head[:6] != _CLASS_32 or len(head) < _EHDR_32.size:
        return None
    fields = _EHDR_32.unpack(head)
    kind, machine, offset, size, count = fields[1], fields[2], fields[5], fields[9], fields[10]
    if kind not in (_ET_EXEC, _ET_DYN) or size != _PHDR_32.size or count > _MAXPHDRS:
        return None
    table = read_at(offset, size * count)
    headers = [(h[0], h[6], *h[1:6], h[7]) for h in _PHDR_32.iter_unpack(table[: len(table) - len(table) % size])]
    return _Elf(read_at, kind, machine, headers, _DYN_32)


def _paths(elf: _Elf, tag: int) -> List[str]:
    texts = (elf.text(value) for each, value in elf.tags if each == tag)
    return [path for text in texts for path in text.split(":") if path]


def _versions(elf: _Elf) -> Dict[str, List[str]]:
    """Return the required versions by library, without weak ones, which may be missing."""
    required: Dict[str, List[str]] = {}
    for offset, (_, count, name, aux, _) in _chain(elf, _VERNEED_TAG, _VERNEEDNUM, _VERNEED):
        versions = required.setdefault(elf.text(name), [])
        for _, (_, flags, _, version, _) in _linked(elf, offset + aux, count, _VERNAUX):
            if not flags & 2:  # VER_FLG_WEAK
                versions.append(elf.text(version))
    return required


def _definitions(elf: _Elf) -> List[str]:
    names = []
    for offset, fields in _chain(elf, _VERDEF_TAG, _VERDEFNUM, _VERDEF):
        name, _ = struct.unpack("<II", elf.exactly(offset + fields[5], 8))
        if not fields[1] & 1:  # VER_FLG_BASE: the file's own name
            names.append(elf.text(name))
    return names


def _chain(elf: _Elf, tag: int, number: int, form: struct.Struct) -> Iterator[Tuple[int, Sequence[int]]]:
    """Yield the records at the address in ``tag``, as many as ``number`` has."""
    address, count = elf.last(tag), elf.last(number)
    if address is not None and count:
        yield from _linked(elf, elf.offset(address), count, form)


def _linked(elf: _Elf, offset: int, count: int, form: struct.Struct) -> Iterator[Tuple[int, Sequence[int]]]:
    """Yield (offset, fields) for ``count`` records; each record's last field is the distance to the next."""
    if count > _MAX_VERSIONS:
        raise BadElf("it has %d versions" % count)
    for _ in range(count):
        fields = form.unpack(elf.exactly(offset, form.size))
        yield offset, fields
        if not fields[-1]:
            return
        offset += fields[-1]


def _symbol_count(elf: _Elf) -> int:
    """Return the number of dynamic symbols, which only the hash tables give.

    A GNU hash table has only defined symbols. If there are none, it does not tell how many others there are. Then the
    count is up to the last one that a relocation uses, as every symbol that a program needs is.
    """
    address = elf.last(_HASH)
    if address is not None:
        _, count = struct.unpack("<II", elf.exactly(elf.offset(address), 8))
        return _plausible(count)
    address = elf.last(_GNU_HASH)
    if address is None:
        return 0
    start = elf.offset(address)
    buckets, first, blooms, _ = struct.unpack("<IIII", elf.exactly(start, 16))
    _plausible(buckets), _plausible(blooms)
    start += 16 + 8 * blooms
    highest = max((n for (n,) in _WORD.iter_unpack(elf.exactly(start, 4 * buckets))), default=0)
    if highest < first:
        return _plausible(max(first, _last_relocated(elf) + 1))  # it defines none
    number = highest
    start += 4 * buckets
    while True:  # a chain ends with a hash whose lowest bit is set
        (value,) = _WORD.unpack(elf.exactly(start + 4 * (number - first), 4))
        number += 1
        if value & 1:
            return _plausible(number)


def _last_relocated(elf: _Elf) -> int:
    """Return the highest number of a symbol in relocations; 0 if there is none."""
    highest = 0
    for table, size in ((_RELA, _RELASZ), (_JMPREL, _PLTRELSZ)):
        address, left = elf.last(table), elf.last(size) or 0
        start = elf.offset(address) if address is not None else 0
        for base in range(0, left if start else 0, _RELOCATIONS):
            part = elf.exactly(start + base, min(_RELOCATIONS, left - base) // _RELOCATION.size * _RELOCATION.size)
            highest = max([highest, *(info >> 32 for _, info, _ in _RELOCATION.iter_unpack(part))])
    return highest


def _plausible(count: int) -> int:
    if count > _MAX_SYMBOLS:
        raise BadElf("it has %d symbols" % count)
    return count
