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
from pathlib import Path

from deployer.connected.ground import own_data
from deployer.connected.linker.code.steps import BRANCH, CALL, END, JUMP, POINTER, CodeStep

_EXCLUSIVE, _GUARDED, _NEON = "exclusive", "guarded", "neon"
#: Masks and values of words, with their set. The first match counts; "" is part of ARMv8.0.
_TABLE: list[tuple[int, int, str]] = own_data.load_yaml(Path(__file__).with_suffix(".yaml"))

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
