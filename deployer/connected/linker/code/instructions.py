"""The instruction sets beyond the baseline that a file's code uses, and whether it may check for them first.

Only evenly spread parts of a large file are decoded. Every read is bounded. What depends on the processor is in
``x86_64`` and ``aarch64``.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from deployer.connected.linker.code import aarch64, elf_sections, x86_64
from deployer.connected.linker.code.elf_sections import Section
from deployer.connected.linker.code.steps import BRANCH, CALL, END, JUMP, POINTER, CodeStep
from deployer.contract.elf import elf_notes
from deployer.contract.elf.elf import ReadAt
from deployer.contract.elf.machines import AARCH64, X86_64


class Decoder(Protocol):
    """What is known of an architecture: a module.

    Attributes:
        BEYOND: the instruction sets to search for, by the kernel's names.
        ASKS: names and text in programs that query the processor, or contain code for several processors.
        ASKING: instructions that query the processor.
        IRELATIVE: the relocation that calls a function to choose an address.
        LEVELS: how many levels of calls are followed from ``main``.
    """

    BEYOND: Sequence[str]
    ASKS: re.Pattern[bytes]
    ASKING: re.Pattern[bytes]
    IRELATIVE: int
    LEVELS: int

    def counts(self, parts: Sequence[tuple[bytes, int]]) -> Counter[str]:
        """Return the number of instructions of each set in parts of the code, each with its address."""

    def whole(self, counts: Counter[str], asks: bool) -> Sequence[str]:
        """Return the sets that a file with these instructions was compiled for."""

    def main(self, start: bytes, entry: int) -> tuple[int, bool] | None:
        """Return the address of ``main`` from the start code at ``entry``; None if it is not recognized.

        The second value is whether it is instead the address of a word that the loader fills in.
        """

    def steps(self, data: bytes, address: int) -> Iterator[CodeStep]:
        """Yield the instructions in order."""


_DECODERS: Mapping[int, Decoder] = {X86_64.number: x86_64, AARCH64.number: aarch64}
#: The instruction sets to search for, by the kernel's names, for each machine that can be decoded.
BEYOND = {number: decoder.BEYOND for number, decoder in _DECODERS.items()}

_PART, _MAX_PARTS = 64 * 1024, 32
_TEXTS = (b".dynstr", b".strtab", b".rodata")
_SYMBOLS, _SYMBOL = (b".dynsym", b".dynstr"), struct.Struct("<I20x")
_RELOCATIONS, _RELA = 4, struct.Struct("<QQq")
_MAX_READ = 256 * 1024 * 1024
_GO_SECTION = b".go.buildinfo"
#: Limits: bytes of start code, bytes per block, instructions in ``main``, and in one that only starts the program;
#: functions that are followed.
_MAX_START, _MAX_BLOCK, _MAX_MAIN, _SHORT, _MAX_FUNCTIONS = 128, 1024, 4000, 40, 100


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
    """Return the instruction sets that a file uses; empty if its machine cannot be decoded."""
    header = elf_notes.header(read_at)
    decoder = _DECODERS.get(header[2]) if header else None
    if decoder is None:
        return Instructions()
    sections = list(elf_sections.sections_of(read_at))
    code = [section for section in sections if section.is_code]
    of_go = (read_at(part.offset, min(part.size, _PART)) for part in sections if part.name == _GO_SECTION)
    stated = x86_64.stated(b"".join(of_go)) if decoder is x86_64 else ()
    if stated:
        return Instructions(stated, stated)
    counts = decoder.counts([(read_at(part.offset, part.size), part.address) for part in _parts(code)])
    used = sorted(counts.keys() & set(decoder.BEYOND))
    if not used:
        return Instructions()
    asks = _asks(read_at, sections, decoder)
    return Instructions(used, decoder.whole(counts, asks), sorted(_in_main(read_at, code, decoder)), asks)


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


def _asks(read_at: ReadAt, sections: Sequence[Section], decoder: Decoder) -> bool:
    """Return whether a file shows that it queries the processor, or lets the loader choose functions accordingly."""
    irelative = decoder.IRELATIVE.to_bytes(4, "little")
    left = _MAX_READ
    for section in sections:
        if section.is_code or section.name in _TEXTS or section.kind == _RELOCATIONS:
            data = read_at(section.offset, min(section.size, left))
            left -= len(data)
            if section.kind == _RELOCATIONS:
                asks = any(data[at : at + 4] == irelative for at in range(8, len(data), _RELA.size))
            else:
                asks = (decoder.ASKING if section.is_code else decoder.ASKS).search(data) is not None
            if asks:
                return True
    return left == 0 or _calls_getauxval(read_at, sections)  # or part of the file was not read


def _calls_getauxval(read_at: ReadAt, sections: Sequence[Section]) -> bool:
    """Return whether a symbol is ``getauxval``, whose text may be the end of ``__getauxval``."""
    parts = {part.name: read_at(part.offset, min(part.size, _MAX_READ)) for part in sections if part.name in _SYMBOLS}
    symbols, names = (parts.get(name, b"") for name in _SYMBOLS)
    at = names.find(b"__getauxval\0") + 2
    return at > 1 and any(symbol[0] == at for symbol in _SYMBOL.iter_unpack(symbols[: len(symbols) // 24 * 24]))


def _in_main(read_at: ReadAt, code: Sequence[Section], decoder: Decoder) -> set[str]:
    """Return the sets that ``main`` uses.

    In Fortran and Rust, ``main`` only starts the program; then the functions that it calls or passes to the language's
    library count, and on AArch64 those that these are certain to call.
    """
    entry = elf_notes.header(read_at)[4]
    found = decoder.main(_from(read_at, code, entry)[:_MAX_START], entry)
    main = _relocated(read_at, found[0]) if found and found[1] else found and found[0]
    if main is None:
        return set()
    sets: set[str] = set()
    seen, level = set[int](), {main}
    for _ in range(1 + decoder.LEVELS):
        seen |= level
        started = [_follow(read_at, code, address, sets, decoder) for address in sorted(level)]
        level = set().union(*started) - seen
        if sets or len(seen) > _MAX_FUNCTIONS:
            break
    return sets


def _follow(read_at: ReadAt, code: Sequence[Section], start: int, sets: set[str], decoder: Decoder) -> set[int]:
    """Add the sets that a function uses, on all its paths, to ``sets``.

    Return the functions that it starts, if it is short and has only one path; otherwise those that it calls before its
    paths part, if many levels are followed.
    """
    seen: set[int] = set()
    started: set[int] = set()
    certain: set[int] = set()
    todo, branches = [start], 0
    while todo and len(seen) < _MAX_MAIN:
        begin = todo.pop()
        data = _from(read_at, code, begin) if begin not in seen else b""
        for step in decoder.steps(data, begin):
            if step.address in seen:
                break
            seen.add(step.address)
            sets.update({step.set} & set(decoder.BEYOND))
            if step.target is not None:
                (started.add if step.kind in (CALL, POINTER) else todo.append)(step.target)
            certain |= {step.target} if step.target and step.kind == CALL and not branches else set()
            branches += step.kind == BRANCH
            if step.kind in (JUMP, END):
                break
    if branches or len(seen) > _SHORT:
        return certain if decoder.LEVELS > 1 else set()
    return started


def _relocated(read_at: ReadAt, address: int) -> int | None:
    """Return the address that the loader writes at ``address`` of an AArch64 program; None if it writes none."""
    for section in elf_sections.sections_of(read_at):
        if section.kind == _RELOCATIONS:
            data = read_at(section.offset, min(section.size, _MAX_READ))
            for place, kind, addend in _RELA.iter_unpack(data[: len(data) // _RELA.size * _RELA.size]):
                if place == address and kind == aarch64.RELATIVE:
                    return int(addend)
    return None


def _from(read_at: ReadAt, code: Sequence[Section], address: int) -> bytes:
    """Return the code from an address on; empty if the address is in no section of the program's own code."""
    for section in code:
        skipped = address - section.address
        if 0 <= skipped < section.size and section.name.startswith(b".text"):
            return read_at(section.offset + skipped, min(section.size - skipped, _MAX_BLOCK))
    return b""
