"""The modules of Go programs and the crates of Rust programs, which compilers write into a section of the program.

Sources: debug/buildinfo of Go's library, as Go 1.18 and later write it; PARSING.md of cargo-auditable for Rust. A file
without such a section costs four reads; a damaged one gives what precedes the damage.
"""

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from deployer.connected.linker.code.elf_sections import sections_of
from deployer.connected.rootfs.entries import FileContent, reader_of
from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError

GOLANG, CARGO = "golang", "cargo"

_MAGIC, _GO_MAGIC = b"\x7fELF", b"\xff Go buildinf:"
#: The flag of texts that follow the header, whose size is the second number. Go puts 16 bytes around the modules' text.
_GO_INLINE, _GO_HEADER, _GO_MARK = 2, 32, 16
_GO_VERSION = re.compile(r"go(\d[\w.]*)")
#: The most bytes of a section, also when uncompressed.
_MAX_SIZE = 8 * 1024 * 1024
_WORD = re.compile(r"[!-~]+")


class ProgramPart(NamedTuple):
    """A module or a crate: the type of its purl, its name, and its version; empty if the program does not know it."""

    kind: str
    name: str
    version: str


def components(content: FileContent) -> Iterator[ProgramPart]:
    """Yield what a Go or Rust program was made of; nothing if it is another file."""
    if content.read(0, len(_MAGIC)) != _MAGIC:
        return
    with suppress(IntegrityError, IndexError, KeyError, TypeError, AttributeError, struct.error, zlib.error):
        read_at = reader_of(content)
        for section in sections_of(read_at):
            if section.name in _READERS and section.size <= _MAX_SIZE:
                found = _READERS[section.name](read_at(section.offset, section.size))
                yield from (one for one in found if _WORD.fullmatch(one.name))


def _go(section: bytes) -> Iterator[ProgramPart]:
    if not section.startswith(_GO_MAGIC) or not section[len(_GO_MAGIC) + 1] & _GO_INLINE:
        return
    compiler, end = _go_text(section, _GO_HEADER)
    if version := _GO_VERSION.match(compiler):
        yield ProgramPart(GOLANG, "stdlib", version[1])
    modules: list[ProgramPart] = []
    for line in _go_text(section, end)[0][_GO_MARK:-_GO_MARK].split("\n"):
        kind, name, number, *_ = (*line.split("\t"), "", "")
        module = ProgramPart(GOLANG, name, number.replace("(devel)", ""))
        if kind in ("mod", "dep"):
            modules.append(module)
        elif kind == "=>":  # it replaces the module before; a folder has no version
            modules[-1] = modules[-1]._replace(version="") if name.startswith((".", "/")) else module
    yield from modules


def _go_text(section: bytes, at: int) -> tuple[str, int]:
    """Return a text and its end. Its length goes before it, seven bits in a byte."""
    size = 0
    for shift in range(0, 63, 7):
        size |= (section[at] & 0x7F) << shift
        at += 1
        if section[at - 1] < 0x80:
            break
    return section[at : at + size].decode("latin-1"), at + size


def _rust(section: bytes) -> Iterator[ProgramPart]:
    content = zlib.decompressobj().decompress(section, _MAX_SIZE)
    for crate in json_records.parse(content, "a program's crates", IntegrityError)["packages"]:
        if crate.get("kind", "runtime") == "runtime":  # the others only built it
            yield ProgramPart(CARGO, str(crate["name"]), str(crate["version"]))


_READERS: dict[bytes, Callable[[bytes], Iterator[ProgramPart]]] = {b".go.buildinfo": _go, b".dep-v0": _rust}
