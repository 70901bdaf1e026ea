"""Instruction sets of AArch64 code. Each instruction is a word of 32 bits, which show its set.

A compiler that may use atomic instructions (LSE) uses no exclusive loads and stores. Otherwise it calls functions that
ask once and contain both ("outline atomics"). BTI and the usual PAC are hints, which older processors skip.

Sources: Arm Architecture Reference Manual for A-profile, C4, "A64 Instruction Set Encoding"; Linux,
Documentation/arch/arm64/elf_hwcaps.rst; libgcc, lse.S; glibc, sysdeps/aarch64/start.S. LLVM 14 decodes random words
alike, except for non-temporal loads of SVE2, which count as SVE.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence

from deployer.connected.linker.code.steps import BRANCH, CALL, END, JUMP, POINTER, CodeStep

_EXCLUSIVE, _GUARDED, _NEON = "exclusive", "guarded", "neon"
#: Masks and values of words, with their set. The first match counts; "" is part of ARMv8.0.
_TABLE: tuple[tuple[int, int, str], ...] = (
    (0x3FA07C00, 0x08A07C00, "atomics"),  # CAS
    (0xBFA07C00, 0x08207C00, "atomics"),  # CASP
    (0x3FFFFC00, 0x38BFC000, "lrcpc"),  # LDAPR
    (0x3F208C00, 0x38200000, "atomics"),  # LDADD, LDCLR, ...
    (0x3F20FC00, 0x38208000, "atomics"),  # SWP
    (0xFFFFFBFF, 0xD65F0BFF, "paca"),  # RETAA; the hints PACIASP and AUTIASP do nothing on older processors
    (0xFEDFF800, 0xD61F0800, "paca"),  # BRAA, BLRAA
    (0xFF200400, 0xF8200400, "paca"),  # LDRAA
    (0xFFFFFC00, 0x1E7E0000, "jscvt"),  # FJCVTZS
    (0xFFFFFC00, 0x1E634000, "bf16"),  # BFCVT
    (0xFFFE7C00, 0x1EE24000, ""),  # FCVT from half precision
    (0xFF800000, 0x1F000000, ""),  # FMADD
    (0x5FE00000, 0x1EC00000, "fphp"),  # conversions from and to fixed-point
    (0x5FE00000, 0x1EE00000, "fphp"),  # arithmetic with halves
    (0xFFC00000, 0x1FC00000, "fphp"),  # FMADD with halves
    (0xBFE0FC00, 0x2E40FC00, "bf16"),  # BFDOT
    (0xFFE0FC00, 0x6E40EC00, "bf16"),  # BFMMLA
    (0xBFE0FC00, 0x2EC0FC00, "bf16"),  # BFMLAL
    (0xBFFFFC00, 0x0EA16800, "bf16"),  # BFCVTN
    (0xBFC0F400, 0x0F40F000, "bf16"),  # BFDOT, by element
    (0xBFC0F400, 0x0FC0F000, "bf16"),  # BFMLAL, by element
    (0xDFE0FC00, 0x4E80A400, "i8mm"),  # SMMLA, UMMLA
    (0xFFE0FC00, 0x4E80AC00, "i8mm"),  # USMMLA
    (0xBFE0FC00, 0x0E809C00, "i8mm"),  # USDOT
    (0xBF40F400, 0x0F00F000, "i8mm"),  # SUDOT, USDOT, by element
    (0x9FE0FC00, 0x0E809400, "asimddp"),  # SDOT, UDOT
    (0x9FC0F400, 0x0F80E000, "asimddp"),  # the same by element
    (0xBF60FC00, 0x0E20EC00, "asimdfhm"),  # FMLAL, FMLSL
    (0xBF60FC00, 0x2E20CC00, "asimdfhm"),
    (0xBFC0B400, 0x0F800000, "asimdfhm"),  # by element
    (0xBFC0B400, 0x2F808000, "asimdfhm"),
    (0xBF20F400, 0x2E008400, "asimdrdm"),  # SQRDMLAH, SQRDMLSH
    (0xFF20F400, 0x7E008400, "asimdrdm"),
    (0xAF00D400, 0x2F00D000, "asimdrdm"),  # by element
    (0xBF20E400, 0x2E00C400, "fcma"),  # FCMLA
    (0xBF20EC00, 0x2E00E400, "fcma"),  # FCADD
    (0xBF009400, 0x2F001000, "fcma"),  # by element
    (0x9F60C400, 0x0E400400, "asimdhp"),  # three vectors
    (0xDF60C400, 0x5E400400, "asimdhp"),
    (0x9F7E0C00, 0x0E780800, "asimdhp"),  # two vectors
    (0xDF7E0C00, 0x5E780800, "asimdhp"),
    (0xBF7FCC00, 0x0E30C800, "asimdhp"),  # across lanes
    (0xFF7FCC00, 0x5E30C800, "asimdhp"),
    (0x8FC0B400, 0x0F001000, "asimdhp"),  # FMLA, FMLS, by element
    (0x8FC0F400, 0x0F009000, "asimdhp"),  # FMUL, FMULX, by element
    (0xBFF8FC00, 0x0F00FC00, "asimdhp"),  # FMOV of a constant
    (0x8F70EC00, 0x0F10E400, "asimdhp"),  # SCVTF, UCVTF with fixed point
    (0x8F70FC00, 0x0F10FC00, "asimdhp"),  # FCVTZ with fixed point
    (0xFFC08000, 0xCE000000, "sha3"),  # EOR3, BCAX
    (0xFFE00000, 0xCE800000, "sha3"),  # XAR
    (0xFFE0FC00, 0xCE608C00, "sha3"),  # RAX1
    (0xFF80F800, 0x44800000, "sve"),  # SDOT, UDOT
    (0xFFE0FC00, 0x44807800, "i8mm"),  # USDOT
    (0xFFE0F800, 0x44A01800, "i8mm"),  # USDOT, SUDOT, by element
    (0xFF20FC00, 0x45009800, "i8mm"),  # SMMLA, UMMLA, USMMLA
    (0xFFE0FC00, 0x64608000, "bf16"),  # BFDOT
    (0xFFE0FC00, 0x64604000, "bf16"),  # the same by element
    (0xFFE0FC00, 0x6460E400, "bf16"),  # BFMMLA
    (0xFFE0F800, 0x64E08000, "bf16"),  # BFMLAL
    (0xFFE0F000, 0x64E04000, "bf16"),  # the same by element
    (0xFFFFE000, 0x658AA000, "bf16"),  # BFCVT
    (0xFFFFE000, 0x648AA000, "bf16"),  # BFCVTNT
    (0xFE000000, 0x44000000, "sve2"),
    (0xFF3EE000, 0x04068000, "sve2"),  # SQSHL
    (0xFF3CE000, 0x040C8000, "sve2"),  # SRSHR
    (0xFF20E000, 0x04206000, "sve2"),  # MUL without predicate
    (0xFF20F800, 0x04203800, "sve2"),  # EOR3, BSL
    (0xFF20FC00, 0x04203400, "sve2"),  # XAR
    (0xFFE0E000, 0x05600000, "sve2"),  # EXT of two registers
    (0xFF3FE000, 0x052D8000, "sve2"),  # SPLICE of two registers
    (0xFF20F800, 0x05202800, "sve2"),  # TBL of two registers, TBX
    (0xFF20E400, 0x25200000, "sve2"),  # WHILEGE
    (0xFF20FC00, 0x25203000, "sve2"),  # WHILEWR
    (0xFF38E000, 0x64108000, "sve2"),  # FADDP
    (0xFF38E000, 0x6408A000, "sve2"),  # FCVTNT, FCVTLT
    (0xFFE0D800, 0x64A08000, "sve2"),  # FMLALB
    (0xFFE0D000, 0x64A04000, "sve2"),  # the same by element
    (0xFFF9E000, 0x6518A000, "sve2"),  # FLOGB
    (0xFFFFE000, 0x650AA000, "sve2"),  # FCVTX
    (0xFF30FC00, 0x0420E000, ""),  # CNTD: every unwinder of libgcc has it, for programs with SVE
    (0xFFFFF800, 0x04BF5000, ""),  # RDVL
    (0x1E000000, 0x04000000, "sve"),
    (0x3FA00000, 0x08000000, _EXCLUSIVE),
    (0x9E000000, 0x0E000000, _NEON),
)

#: The rows that words with each first byte can match.
_ROWS = [[row for row in _TABLE if not (row[1] ^ top << 24) & row[0] & 0xFF000000] for top in range(256)]
BEYOND: Sequence[str] = tuple(dict.fromkeys(name for _, _, name in _TABLE if name not in ("", _EXCLUSIVE, _NEON)))

#: Text in programs that query the processor, or contain code for several processors; and instructions: reading
#: ID_AA64ISAR0_EL1 and its like. ``__getauxval`` is called by outline atomics, for themselves only.
ASKS = re.compile(
    rb"(?i)(?<!__)getauxval|cpuinfo|cpu[_ ]?(id|model|flag|feature|info|support|cap|indicator)|hwcap|simd|sve[_2]|hwy"
)
ASKING = re.compile(rb"[\x00-\xff][\x00\x04-\x07]\x38\xd5", re.DOTALL)
IRELATIVE, RELATIVE = 1032, 1027
#: More than on x86-64, because in static programs no count tells their own code from that of the C library.
LEVELS = 6

#: Outline atomics: ``cbz w16`` before the atomic instruction, and within how many words the other way follows.
_CBZ_W16, _HELPER = (0xFF00001F, 0x34000010), 8
#: The fractions above which a file was compiled for atomics or SVE, if it asks the processor, and if not.
_WHOLE, _WHOLE_UNASKED = 0.8, 0.2
_WORD = struct.Struct("<I")


def set_of(word: int) -> str:
    """Return an instruction's set by the kernel's name; another text for older instructions."""
    return next((name for mask, value, name in _ROWS[word >> 24] if word & mask == value), "")


def _set(word: int, last: int) -> str:
    """Return an instruction's set; ``_GUARDED`` for an atomic instruction that the one before it skips."""
    name = set_of(word)
    return _GUARDED if name == "atomics" and last & _CBZ_W16[0] == _CBZ_W16[1] else name


def counts(parts: Sequence[tuple[bytes, int]]) -> Counter[str]:
    """Return the number of instructions of each set in parts of the code, without outline atomics."""
    found: Counter[str] = Counter()
    for data, _ in parts:
        last, left = 0, 0
        for word in _words(data):
            name = _set(word, last) if _ROWS[word >> 24] else ""
            if name == _GUARDED:
                left = _HELPER
            elif name and not (left > 0 and name == _EXCLUSIVE):
                found[name] += 1
            last, left = word, left - 1
    return found


def whole(counts: Counter[str], asks: bool) -> list[str]:
    """Return the sets that a file with these instructions was compiled for.

    If it was compiled for one, and asks for none, nothing chooses the others either.
    """
    least = _WHOLE if asks else _WHOLE_UNASKED
    vectors = counts["sve"] + counts["sve2"]
    sure = ["atomics"] if counts["atomics"] > _WHOLE * (counts["atomics"] + counts[_EXCLUSIVE]) else []
    sure += [name for name in ("sve", "sve2") if counts[name] and vectors >= least * (vectors + counts[_NEON])]
    return [name for name in BEYOND if counts[name]] if sure and not asks else sure


def main(start: bytes, entry: int) -> tuple[int, bool] | None:
    """Return the address that start code passes in x0, and whether it is of a word that the loader fills in."""
    page = None
    for index, word in enumerate(_words(start)):
        if word & 0x9F00001F == 0x90000000:  # adrp x0
            page = _page(word, entry + 4 * index)
        elif page is not None and word & 0xFFC003FF == 0x91000000:  # add x0, x0, N
            return page + (word >> 10 & 0xFFF), False
        elif page is not None and word & 0xFFC003FF == 0xF9400000:  # ldr x0, [x0, N]
            return page + (word >> 10 & 0xFFF) * 8, True
    return None


def steps(data: bytes, address: int) -> Iterator[CodeStep]:
    """Yield the instructions in order."""
    pages: dict[int, int] = {}
    last = 0
    for index, word in enumerate(_words(data)):
        at = address + 4 * index
        kind, target = "", None
        if word & 0x7C000000 == 0x14000000:  # b, bl
            kind, target = CALL if word >> 31 else JUMP, at + _signed(word, 26) * 4
        elif word & 0xFE000000 in (0x54000000, 0x34000000, 0xB4000000):  # b.eq, cbz
            kind, target = BRANCH, at + _signed(word >> 5, 19) * 4
        elif word & 0x7E000000 == 0x36000000:  # tbz
            kind, target = BRANCH, at + _signed(word >> 5, 14) * 4
        elif word & 0xFEBF0000 == 0xD61F0000 or word & 0xFFE0001F == 0xD4200000 or word >> 16 == 0:  # br, ret; brk; udf
            kind = END
        elif word & 0x9F000000 == 0x90000000:  # adrp
            pages[word & 31] = _page(word, at)
        elif word & 0xFFC00000 == 0x91000000 and word >> 5 & 31 in pages:  # add
            kind, target = POINTER, pages[word >> 5 & 31] + (word >> 10 & 0xFFF)
        yield CodeStep(at, _set(word, last), kind, target)
        last = word


def _words(data: bytes) -> Iterator[int]:
    return (word for (word,) in _WORD.iter_unpack(data[: len(data) // 4 * 4]))


def _page(word: int, address: int) -> int:
    """Return the page that an ADRP at an address takes."""
    return (address & ~0xFFF) + _signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) * 4096


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (number >> bits - 1 << bits)
