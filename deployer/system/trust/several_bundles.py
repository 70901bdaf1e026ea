"""Open one of the bundles in a file with several (``contract.bundle.multiarch``), as if it were alone in its file."""

import io
import os
from typing import IO, Optional, Tuple

from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle import multiarch
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.bundle.multiarch import OneOfSeveral, Several
from deployer.contract.bundle.sealed_file import TAIL, Seal
from deployer.contract.elf import machines
from deployer.system import files


class BundlePart(io.BufferedReader):
    """One bundle of a file, with the two empty blocks at its end that the file lacks.

    Attributes:
        start: where the bundle starts in the file, in bytes.
        size: bytes of the bundle.
    """

    def __init__(self, stream: IO[bytes], several: Several, one: OneOfSeveral) -> None:
        self.start, self.size = several.offset(one), one.size
        self._descriptor, self._several, self._one = stream.fileno(), several, one
        super().__init__(files.RandomAccessFile(self._pread, one.size))

    def fileno(self) -> int:
        return self._descriptor

    def _pread(self, offset: int, count: int) -> bytes:
        there = min(count, max(0, self.size - multiarch.END - offset))
        data = os.pread(self._descriptor, there, self.start + offset)
        return data + b"\0" * (count - there) if len(data) == there else data

    def check(self, seal: Seal, manifest: Manifest) -> None:
        """Raise IntegrityError unless the bundle is the one that the table states."""
        one = OneOfSeveral.of(manifest, seal, self.size)
        if (one, manifest.name, manifest.version) != (self._one, self._several.name, self._several.version):
            raise IntegrityError(f"the bundle for {self._one.machine} is not the one that the table states")


def split(path: str) -> Tuple[str, Optional[str]]:
    """Return the file and the machine of FILE:MACHINE; of any other path, the path and None."""
    file, colon, machine = path.rpartition(":")
    return (file, machine) if colon and machine in machines.BY_KERNEL and not files.lexists(path) else (path, None)


def table(stream: IO[bytes], path: str) -> Optional[Several]:
    """Return the table of a file with several bundles; None for any other file. Raises IntegrityError."""
    size = os.fstat(stream.fileno()).st_size
    tail = os.pread(stream.fileno(), TAIL, max(0, size - TAIL))
    if not multiarch.is_table(tail):
        return None
    try:
        several = multiarch.read(tail, size)
        ending = multiarch.ending(several)
        if os.pread(stream.fileno(), len(ending), size - len(ending)) != ending:
            raise IntegrityError("the index of the images is not the one that the table gives")
    except IntegrityError as error:
        hint = "the file is damaged or was changed: pack it again"
        raise IntegrityError(f"{path}: {error.message}", error.hint or hint) from error
    return several


def one_of(stream: IO[bytes], path: str, machine: Optional[str]) -> IO[bytes]:
    """Return the bundle for a processor in an open file, or the file if it is a bundle itself.

    Args:
        machine: the kernel's name of the processor; None: there must be only one.

    Raises:
        UsageError: the file has no bundle for it.
        IntegrityError: the table is damaged.
    """
    several = table(stream, path)
    if several is None:
        return stream
    for one in several.bundles:
        if machine == one.machine:
            return BundlePart(stream, several, one)
    names = " and ".join(several.machines)
    hint = f"choose one: {', '.join(several.paths(path))}"
    if machine:
        raise UsageError(f"{path} has bundles for {names}, but not for {machine}", f"pack it for {machine} too; {hint}")
    raise UsageError(f"{path} has bundles for {names}", hint)


def in_file(path: str) -> Optional[Several]:
    """Return the table of a file with several bundles; None for any other path, and if it cannot be read."""
    try:
        with files.open_regular(path) as stream:
            return table(stream, path)
    except OSError:
        return None  # whoever opens it next reports the error
