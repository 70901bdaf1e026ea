"""What is known of the code of files, kept for the next time. Code is only decoded if a node lacks what it may use."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground.caches import CachedFacts
from deployer.contract import json_records
from deployer.contract.elf import ReadAt

_SCHEMA = "code-facts"
#: Raise it when something else is looked for: older facts are made again.
_VERSION = 1

#: The sets that are looked for, by the kernel's names.
BEYOND = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "avx512f")


class Instructions(NamedTuple):
    """The instruction sets that the code of a file uses, of ``BEYOND``.

    Attributes:
        used: somewhere.
        whole: everywhere: the file was compiled for them.
        in_main: in ``main``, which cannot be chosen at run time.
        asks: it may ask the processor first.
    """

    used: Sequence[str] = ()
    whole: Sequence[str] = ()
    in_main: Sequence[str] = ()
    asks: bool = False


class CodeFacts:
    """The instruction sets of the files of an image or of wheels.

    Args:
        reader: returns what reads a file; None if there is none at the path.
        kept: the file in which they are kept; None: nowhere.
    """

    def __init__(self, reader: Callable[[str], ReadAt | None], kept: Path | None) -> None:
        self._reader = reader
        self._kept = CachedFacts(kept, _SCHEMA, _VERSION)
        self._known: dict[str, Instructions] | None = None

    def of(self, path: str) -> Instructions:
        """Return the sets of the ELF file at a path; none if there is no such file. Raises IntegrityError."""
        if self._known is None:
            self._known = self._kept.load(_read) or {}
        if path not in self._known:
            from deployer.connected.linker import instructions  # the decoder takes a moment to import

            read_at = self._reader(path)
            self._known[path] = instructions.of_file(read_at) if read_at else Instructions()
            self._kept.save({"files": self._known})
        return self._known[path]


def _read(fields: json_records.Fields) -> dict[str, Instructions]:
    return {name: Instructions(*sets) for name, sets in fields.child("files").record.items()}
