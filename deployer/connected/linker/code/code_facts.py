"""Cached facts about the code of files. Code is decoded only if a node lacks an instruction set that it may use."""

from collections.abc import Callable
from pathlib import Path

from deployer.connected.ground.caches import CachedFacts
from deployer.connected.linker.code import instructions
from deployer.connected.linker.code.instructions import Instructions
from deployer.contract.base import json_records
from deployer.contract.elf.elf import ReadAt

_SCHEMA = "code-facts"
#: Increase it when different facts are extracted; older cached facts are then discarded.
_VERSION = 1


class CodeFacts:
    """The instruction sets of the files in an image or in wheels.

    Args:
        reader: returns a function that reads the file at a path; None if no such file exists.
        kept: the cache file; None: no cache.
    """

    def __init__(self, reader: Callable[[str], ReadAt | None], kept: Path | None) -> None:
        self._reader = reader
        self._kept = CachedFacts(kept, _SCHEMA, _VERSION)
        self._known: dict[str, Instructions] | None = None

    def of(self, path: str) -> Instructions:
        """Return the instruction sets of the ELF file at a path; empty if none exists. Raises IntegrityError."""
        if self._known is None:
            self._known = self._kept.load(_read) or {}
        if path not in self._known:
            read_at = self._reader(path)
            self._known[path] = instructions.of_file(read_at) if read_at else Instructions()
            self._kept.save({"files": self._known})
        return self._known[path]


def _read(fields: json_records.Fields) -> dict[str, Instructions]:
    return {name: Instructions(*sets) for name, sets in fields.child("files").record.items()}
