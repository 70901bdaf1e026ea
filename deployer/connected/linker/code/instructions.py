"""The instruction sets beyond baseline x86-64 that a file's code uses, and whether it may check for them first.

A compiler that may use AVX encodes all vector and floating-point instructions in the new form (VEX, EVEX). Hardly any
remain in the old SSE encoding. A file that chooses its code at run time contains both.

Sources: Intel 64 Manual, volume 2, "VEX" and "EVEX"; glibc, sysdeps/x86_64/start.S; Go, src/debug/buildinfo. Only
evenly spread parts of a large file are decoded. Every read is bounded.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from deployer.connected.linker.code import elf_sections
from deployer.connected.linker.code.elf_sections import Section
from deployer.contract.elf import elf_notes
from deployer.contract.elf.elf import ReadAt

#: The instruction sets to search for, by the kernel's names.
BEYOND = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "avx512f")

_PART, _MAX_PARTS = 64 * 1024, 32
#: First bytes of frequent VEX and EVEX instructions. Code without any has about 4 such matches per part by chance.
_LIKELY = re.compile(
    rb"\xc5[\xc0-\xff][\x10\x11\x12\x14\x16\x28-\x2a\x54\x57-\x59\x5c\x5e\x6e\x6f\x77\x7e\x7f\xd4\xd6\xdb\xeb\xef\xfe]"
    rb"|\xc4[\x42\x62\xc2\xe2][\x80-\xff]"
    rb"|\x62[\x61\x62\x71\x72\xe1\xe2\xf1-\xf3][\x05\x0d\x15\x1d\x25\x2d\x35\x3d\x45\x4d\x55\x5d\x65\x6d\x75\x7c-\x7f"
    rb"\x85\x8d\x95\x9d\xa5\xad\xb5\xbd\xc5\xcd\xd5\xdd\xe5\xed\xf5\xfc-\xff][\x08\x18\x28\x38\x48\x58]"
)
_FEW_PER_PART = 24

#: For each set, by the kernel's name: its instructions in the new encodings. All others belong to AVX.
_SETS = {
    "bmi1": re.compile(r"andn$|bextr|bls(i|msk|r)$"),
    "bmi2": re.compile(r"bzhi|mulx|pdep|pext|rorx|sarx|sh[lr]x"),
    "fma": re.compile(r"vfn?m(add|sub)"),
    "f16c": re.compile(r"vcvt(ph2ps|ps2ph)"),
    "avx2": re.compile(
        r"vp(broadcast|gather|maskmov|s[lr]lv|srav|blendd)|vperm(d|q|ps|pd)$|v(extract|insert|broadcast)i|vgather"
    ),
    "avx": re.compile(r"v"),
}
_AVX_OF_256 = re.compile(r"vpermil|vptest")
_AVX512, _LEGACY = "avx512f", "legacy"
_NEW, _EVEX = (0xC4, 0xC5, 0x62), 0x62
#: The fraction of vector instructions in the new encodings above which the whole file was compiled for them.
_WHOLE, _FEW = 0.8, 4
#: The fraction of a set below which it may come from a few functions that are chosen at run time.
_RARE = 0.02

#: Names and text in programs that query the processor, or contain code for several processors.
_ASKS = re.compile(
    rb"(?i)avx|cpuinfo|cpu[_ ]?(id|model|flag|feature|info|support|cap|indicator)|getauxval|hwcap|simd|sse[34]|hwy"
)
_TEXTS = (b".dynstr", b".strtab", b".rodata")
_CPUID = re.compile(rb"\x0f(\xa2|\x01\xd0)")  # cpuid or xgetbv
_RELOCATIONS, _RELOCATION_SIZE, _IRELATIVE = 4, 24, b"\x25\0\0\0"
_MAX_READ = 256 * 1024 * 1024

#: Where Go programs record the processors that they were compiled for; they check at startup, and exit on a mismatch.
_GO_SECTION, _GO_LEVEL = b".go.buildinfo", re.compile(rb"GOAMD64=v([34])")

#: How C start code passes the address of ``main`` to the C library: lea rdi, [rip + N]; mov rdi, N; mov edi, N.
_POINTER = re.compile(rb"(\x48\x8d\x3d|\x48\xc7\xc7|\xbf)(.{4})", re.DOTALL)
_RELATIVE = b"\x48\x8d\x3d"
_OF_RIP = re.compile(r".*\[rip ([+-]) (0x[0-9a-f]+)\]")
#: Limits: bytes of start code, bytes per block, instructions in ``main``, and in one that only starts the program.
_MAX_START, _MAX_BLOCK, _MAX_MAIN, _SHORT = 128, 1024, 4000, 40
_ENDS = ("ret", "jmp", "hlt", "ud2")


class Instructions(NamedTuple):
    """The instruction sets in ``BEYOND`` that the code of a file uses.

    Attributes:
        used: sets used anywhere in the file.
        whole: sets used throughout: the file was compiled for them.
        in_main: sets used in ``main``, which cannot be chosen at run time.
        asks: whether the file may query the processor first.
    """

    used: Sequence[str] = ()
    whole: Sequence[str] = ()
    in_main: Sequence[str] = ()
    asks: bool = False


def of_file(read_at: ReadAt) -> Instructions:
    """Return the instruction sets that an x86-64 file uses."""
    sections = list(elf_sections.sections_of(read_at))
    code = [section for section in sections if section.is_code]
    of_go = (read_at(part.offset, min(part.size, _PART)) for part in sections if part.name == _GO_SECTION)
    level = _GO_LEVEL.search(b"".join(of_go))
    if level:
        sets = [name for name in BEYOND if name != _AVX512 or level[1] == b"4"]
        return Instructions(sets, sets)
    parts = list(_parts(code))
    texts = (read_at(part.offset, part.size) for part in parts)
    if not any(len(_LIKELY.findall(data)) >= _FEW_PER_PART * len(data) / _PART for data in texts):
        return Instructions()
    counts: Counter[str] = Counter()
    for part in parts:
        data = read_at(part.offset, part.size)
        counts.update(_set(data[at - part.address], *text) for at, _, *text in _decoded(data, part.address))
    used = sorted(counts.keys() - {"", _LEGACY})
    if not used:
        return Instructions()
    asks = _asks(read_at, sections)
    wide = sum(counts[name] for name in used if not name.startswith("bmi"))
    vectors = wide + counts[_LEGACY]
    is_whole = wide >= max(_FEW, _WHOLE * vectors)
    whole = [name for name in used if is_whole and counts[name] >= _RARE * vectors and not (asks and name == _AVX512)]
    return Instructions(used, whole, sorted(_in_main(read_at, code)), asks)


def _parts(code: Sequence[Section]) -> Iterator[Section]:
    """Yield parts of the code, evenly spread if the code is large."""
    counts = [-(-section.size // _PART) for section in code]
    total = sum(counts)
    for step in range(min(total, _MAX_PARTS)):
        number = step * total // min(total, _MAX_PARTS)
        for section, count in zip(code, counts, strict=True):
            if number < count:
                at = number * _PART
                size = min(_PART, section.size - at)
                yield section._replace(address=section.address + at, offset=section.offset + at, size=size)
                break
            number -= count


def _decoded(data: bytes, address: int) -> Iterator[tuple[int, int, str, str]]:
    """Yield the address, size, mnemonic and operands of each instruction."""
    import capstone  # slow to import

    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.skipdata = True
    yield from decoder.disasm_lite(data, address)


def _set(first: int, mnemonic: str, operands: str) -> str:
    """Return an instruction's set; ``_LEGACY`` for vectors in the old encoding; empty for other instructions."""
    if first not in _NEW:
        return _LEGACY if "xmm" in operands else ""
    if mnemonic.startswith("k") or (first == _EVEX and mnemonic.startswith("v")):
        return _AVX512
    if mnemonic.startswith("vp") and "ymm" in operands and not _AVX_OF_256.match(mnemonic):
        return "avx2"
    return next((name for name, pattern in _SETS.items() if pattern.match(mnemonic)), "")


def _asks(read_at: ReadAt, sections: Sequence[Section]) -> bool:
    """Return whether a file shows that it queries the processor, or lets the loader choose functions accordingly."""
    left = _MAX_READ
    for section in sections:
        if section.is_code or section.name in _TEXTS or section.kind == _RELOCATIONS:
            data = read_at(section.offset, min(section.size, left))
            left -= len(data)
            if section.kind == _RELOCATIONS:
                asks = any(data[at : at + 4] == _IRELATIVE for at in range(8, len(data), _RELOCATION_SIZE))
            else:
                asks = (_CPUID if section.is_code else _ASKS).search(data) is not None
            if asks:
                return True
    return left == 0  # otherwise part of the file was not read


def _in_main(read_at: ReadAt, code: Sequence[Section]) -> set[str]:
    """Return the sets that ``main`` uses.

    In Fortran and Rust, ``main`` only starts the program; then the functions that it calls or passes to the language's
    library count.
    """
    entry = elf_notes.header(read_at)[4]
    match = _POINTER.search(_from(read_at, code, entry)[:_MAX_START])
    if match is None:
        return set()
    number = int.from_bytes(match[2], "little", signed=True)
    sets: set[str] = set()
    started = _follow(read_at, code, entry + match.end() + number if match[1] == _RELATIVE else number, sets)
    for address in started if not sets else ():
        _follow(read_at, code, address, sets)
    return sets


def _follow(read_at: ReadAt, code: Sequence[Section], start: int, sets: set[str]) -> set[int]:
    """Add the sets that a function uses, on all its paths, to ``sets``.

    Return the functions that it starts, if it is short and has only one path.
    """
    seen: set[int] = set()
    started: set[int] = set()
    todo, branches = [start], 0
    while todo and len(seen) < _MAX_MAIN:
        begin = todo.pop()
        data = _from(read_at, code, begin) if begin not in seen else b""
        for address, size, mnemonic, operands in _decoded(data, begin):
            if address in seen:
                break
            seen.add(address)
            sets.update({_set(data[address - begin], mnemonic, operands)} - {"", _LEGACY})
            pointer = _OF_RIP.match(operands) if mnemonic == "lea" else None
            if pointer:
                started.add(address + size + int(pointer[1] + pointer[2], 16))
            elif operands.startswith("0x") and mnemonic == "call":
                started.add(int(operands, 16))
            elif operands.startswith("0x") and mnemonic.startswith("j"):
                todo.append(int(operands, 16))
                branches += mnemonic != "jmp"
            if mnemonic in _ENDS:
                break
    return set() if branches or len(seen) > _SHORT else started


def _from(read_at: ReadAt, code: Sequence[Section], address: int) -> bytes:
    """Return the code from an address on; empty if the address is in no section of the program's own code."""
    for section in code:
        skipped = address - section.address
        if 0 <= skipped < section.size and section.name.startswith(b".text"):
            return read_at(section.offset + skipped, min(section.size - skipped, _MAX_BLOCK))
    return b""
