"""Cached facts about the code of files. It is read only if a node lacks an instruction set, or has large pages."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from deployer.connected.ground.caches import CachedFacts
from deployer.connected.linker.code import instructions, jemalloc
from deployer.connected.linker.code.instructions import Instructions
from deployer.contract.base import json_records
from deployer.contract.elf.elf import ReadAt

_T = TypeVar("_T")

_SCHEMA = "code-facts"
#: Increase it when different facts are extracted; older cached facts are then discarded.
_VERSION = 2


class CodeFacts:
    """The instruction sets, and the page sizes of jemalloc, of the files in an image or in wheels.

    Args:
        reader: returns a function that reads the file at a path; None if no such file exists.
        kept: the cache file; None: no cache.
    """

    def __init__(self, reader: Callable[[str], ReadAt | None], kept: Path | None) -> None:
        self._reader = reader
        self._kept = CachedFacts(kept, _SCHEMA, _VERSION)

    def of(self, path: str) -> Instructions:
        """Return the instruction sets of the ELF file at a path; empty if none exists. Raises IntegrityError."""
        return self._fact(self._loaded.files, path, instructions.of_file, Instructions())

    def jemalloc(self, path: str) -> int:
        """Return the page size of the jemalloc in a file (``jemalloc.page_size``). Raises IntegrityError."""
        return self._fact(self._loaded.jemalloc, path, jemalloc.page_size, 0)

    @functools.cached_property
    def _loaded(self) -> "_Known":
        return self._kept.load(_read) or _Known({}, {})

    def _fact(self, known: dict[str, _T], path: str, examine: Callable[[ReadAt], _T], absent: _T) -> _T:
        if path not in known:
            read_at = self._reader(path)
            known[path] = examine(read_at) if read_at else absent
            self._kept.save(self._loaded._asdict())
        return known[path]


class _Known(NamedTuple):
    """The known facts, by path."""

    files: dict[str, Instructions]
    jemalloc: dict[str, int]


def _read(fields: json_records.Fields) -> _Known:
    return _Known(
        {name: Instructions(*sets) for name, sets in fields.child("files").record.items()},
        {name: int(size) for name, size in fields.child("jemalloc").record.items()},
    )
