"""Which instruction sets of x86-64 beyond the oldest the code of a file uses, and whether it may ask for them first.

A compiler that may use AVX encodes all vector and floating-point instructions in its way (VEX, EVEX), so hardly any is
left in the old encoding of SSE. A file that chooses its code at run time has both.

Sources: Intel 64 Manual, volume 2, "VEX" and "EVEX"; glibc, sysdeps/x86_64/start.S; Go, src/debug/buildinfo. Of a large
file, parts all over it are decoded. Everything is bounded.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import capstone

from deployer.connected.linker import elf_sections
from deployer.connected.linker.code_facts import BEYOND, Instructions
from deployer.connected.linker.elf_sections import Section
from deployer.contract.elf import EHDR, ReadAt

_PART, _MAX_PARTS = 64 * 1024, 32
#: Beginnings of frequent VEX and EVEX instructions. Code without any has about 4 such places per part by chance.
_LIKELY = re.compile(
    rb"\xc5[\xc0-\xff][\x10\x11\x12\x14\x16\x28-\x2a\x54\x57-\x59\x5c\x5e\x6e\x6f\x77\x7e\x7f\xd4\xd6\xdb\xeb\xef\xfe]"
    rb"|\xc4[\x42\x62\xc2\xe2][\x80-\xff]"
    rb"|\x62[\x61\x62\x71\x72\xe1\xe2\xf1-\xf3][\x05\x0d\x15\x1d\x25\x2d\x35\x3d\x45\x4d\x55\x5d\x65\x6d\x75\x7c-\x7f"
    rb"\x85\x8d\x95\x9d\xa5\xad\xb5\xbd\xc5\xcd\xd5\xdd\xe5\xed\xf5\xfc-\xff][\x08\x18\x28\x38\x48\x58]"
)
_FEW_PER_PART = 24

#: By the kernel's names of sets: the instructions, in the new encodings. All others are of AVX.
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
#: Of the vector instructions, the part in the new encodings from which on a file was compiled for them as a whole.
_WHOLE, _FEW = 0.8, 4
#: The part of a set below which it may be that of a few functions that are chosen at run time.
_RARE = 0.02

#: Names and texts of programs that ask the processor, or have code for several.
_ASKS = re.compile(
    rb"(?i)avx|cpuinfo|cpu[_ ]?(id|model|flag|feature|info|support|cap|indicator)|getauxval|hwcap|simd|sse[34]|hwy"
)
_TEXTS = (b".dynstr", b".strtab", b".rodata")
_CPUID, _XGETBV = b"\x0f\xa2", b"\x0f\x01\xd0"
_RELOCATIONS, _RELOCATION_SIZE, _IRELATIVE = 4, 24, b"\x25\0\0\0"
_MAX_READ, _MAX_TABLE = 256 * 1024 * 1024, 16 * 1024 * 1024

#: Where Go's programs say for which processors they were compiled; they ask for them at their start, and end.
_GO_SECTION, _GO_LEVEL = b".go.buildinfo", re.compile(rb"GOAMD64=v([34])")

#: lea rdi, [rip + N]; mov rdi, N; mov edi, N.
_POINTER = re.compile(rb"(\x48\x8d\x3d|\x48\xc7\xc7|\xbf)(.{4})", re.DOTALL)
_RELATIVE = b"\x48\x8d\x3d"
_OF_RIP = re.compile(r".*\[rip ([+-]) (0x[0-9a-f]+)\]")
#: Bytes of start code and of a piece of code; instructions of ``main``, and of one that only starts the program.
_MAX_START, _MAX_BLOCK, _MAX_MAIN, _SHORT = 128, 1024, 4000, 40
_ENDS = ("ret", "jmp", "hlt", "ud2")


class _Instruction(NamedTuple):
    """An instruction: its address, place in what was decoded, size, mnemonic and operands."""

    address: int
    at: int
    size: int
    mnemonic: str
    operands: str


def of_file(read_at: ReadAt) -> Instructions:
    """Return the instruction sets that a file for x86-64 uses."""
    sections = list(elf_sections.each(read_at))
    code = [each for each in sections if each.is_code]
    of_go = (read_at(each.offset, min(each.size, _PART)) for each in sections if each.name == _GO_SECTION)
    level = _GO_LEVEL.search(b"".join(of_go))
    if level:
        sets = [name for name in BEYOND if name != _AVX512 or level[1] == b"4"]
        return Instructions(sets, sets)
    parts = list(_parts(code))
    if not any(_is_likely(read_at(part.offset, part.size)) for part in parts):
        return Instructions()
    found: Counter[str] = Counter()
    for part in parts:
        data = read_at(part.offset, part.size)
        found.update(filter(None, (_set(data, each) for each in _decoded(data, part.address))))
    used = sorted(name for name in found if name != _LEGACY)
    if not used:
        return Instructions()
    asks = _asks(read_at, sections)
    wide = sum(found[name] for name in used if not name.startswith("bmi"))
    vectors = wide + found[_LEGACY]
    is_whole = wide >= max(_FEW, _WHOLE * vectors)
    whole = [name for name in used if is_whole and found[name] >= _RARE * vectors and not (asks and name == _AVX512)]
    return Instructions(used, whole, sorted(_in_main(read_at, code)), asks)


def _is_likely(data: bytes) -> bool:
    return len(_LIKELY.findall(data)) >= _FEW_PER_PART * len(data) / _PART


def _parts(code: Sequence[Section]) -> Iterator[Section]:
    """Yield parts of the code, evenly spread if it is large."""
    counts = [-(-each.size // _PART) for each in code]
    total = sum(counts)
    for step in range(min(total, _MAX_PARTS)):
        number = step * total // min(total, _MAX_PARTS)
        for each, count in zip(code, counts, strict=True):
            if number < count:
                at = number * _PART
                size = min(_PART, each.size - at)
                yield each._replace(address=each.address + at, offset=each.offset + at, size=size)
                break
            number -= count


def _decoded(data: bytes, address: int) -> Iterator[_Instruction]:
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.skipdata = True
    for place, size, mnemonic, operands in decoder.disasm_lite(data, address):
        yield _Instruction(place, place - address, size, mnemonic, operands)


def _set(data: bytes, each: _Instruction) -> str:
    """Return the set that an instruction is of; ``_LEGACY`` for vectors in the old encoding; empty for others."""
    first, mnemonic = data[each.at], each.mnemonic
    if first not in _NEW:
        return _LEGACY if "xmm" in each.operands else ""
    if mnemonic.startswith(("v", "k")) and (first == _EVEX or mnemonic.startswith("k")):
        return _AVX512
    if mnemonic.startswith("vp") and "ymm" in each.operands and not _AVX_OF_256.match(mnemonic):
        return "avx2"
    return next((name for name, pattern in _SETS.items() if pattern.match(mnemonic)), "")


def _asks(read_at: ReadAt, sections: Sequence[Section]) -> bool:
    """Return whether a file shows that it asks the processor, or lets the loader choose functions by it."""
    left = _MAX_READ
    for each in sections:
        size = min(each.size, _MAX_TABLE if not each.is_code else left, left)
        if each.is_code or each.name in _TEXTS or each.kind == _RELOCATIONS:
            left -= size
            if _is_sign(each, read_at(each.offset, size)):
                return True
    return left == 0  # not all of it was read


def _is_sign(section: Section, data: bytes) -> bool:
    if section.is_code:
        return _CPUID in data or _XGETBV in data
    if section.kind == _RELOCATIONS:
        return any(data[at : at + 4] == _IRELATIVE for at in range(8, len(data), _RELOCATION_SIZE))
    return _ASKS.search(data) is not None


def _in_main(read_at: ReadAt, code: Sequence[Section]) -> set[str]:
    """Return the sets that ``main`` uses.

    Fortran's and Rust's only starts the program: what it calls or gives to their library counts then.
    """
    found: set[str] = set()
    start = _main(read_at, code, EHDR.unpack(read_at(0, EHDR.size))[4])
    if start is not None:
        started = _follow(read_at, code, start, found)
        for each in started if not found else ():
            _follow(read_at, code, each, found)
    return found


def _main(read_at: ReadAt, code: Sequence[Section], entry: int) -> int | None:
    """Return the address of ``main``, which C's start code gives to the C library in ``rdi``."""
    data = _from(read_at, code, entry)[:_MAX_START]
    match = _POINTER.search(data)
    if match is None:
        return None
    number = int.from_bytes(match[2], "little", signed=True)
    return entry + match.end() + number if match[1] == _RELATIVE else number


def _follow(read_at: ReadAt, code: Sequence[Section], start: int, found: set[str]) -> set[int]:
    """Add the sets that a function uses, on all its paths, to ``found``; return what it starts if it is short and has
    one path."""
    seen: set[int] = set()
    started: set[int] = set()
    branches = 0
    todo = [start]
    while todo and len(seen) < _MAX_MAIN:
        address = todo.pop()
        data = _from(read_at, code, address) if address not in seen else b""
        for each in _decoded(data, address):
            if each.address in seen:
                break
            seen.add(each.address)
            found.update({_set(data, each)} - {"", _LEGACY})
            target = int(each.operands, 16) if each.operands.startswith("0x") and each.mnemonic[0] in "cj" else None
            pointer = _OF_RIP.match(each.operands) if each.mnemonic == "lea" else None
            if pointer:
                started.add(each.address + each.size + int(pointer[1] + pointer[2], 16))
            elif target is not None and each.mnemonic == "call":
                started.add(target)
            elif target is not None:
                todo.append(target)
                branches += each.mnemonic != "jmp"
            if each.mnemonic in _ENDS:
                break
    return set() if branches or len(seen) > _SHORT else started


def _from(read_at: ReadAt, code: Sequence[Section], address: int) -> bytes:
    """Return the code from an address on; nothing if no section of the program's own code has it."""
    for each in code:
        skipped = address - each.address
        if 0 <= skipped < each.size and each.name.startswith(b".text"):
            return read_at(each.offset + skipped, min(each.size - skipped, _MAX_BLOCK))
    return b""
