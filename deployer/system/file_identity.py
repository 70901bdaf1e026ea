"""The identity of a library file, without ``typing`` and ``re``, because each rank imports this (see ``rank``)."""

import os

from deployer.contract.elf import elf_notes

_FAR = 2**62  # system calls accept no offset far above
_CHUNK = 1024 * 1024


def identity(path: str) -> str:
    """Return ``build-id:HEX`` or ``sha256:HEX`` of the file at ``path``. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        build_id = elf_notes.build_id(reader(descriptor))
        return "build-id:" + build_id if build_id else "sha256:" + _sha256(descriptor)
    finally:
        os.close(descriptor)


def reader(descriptor: int) -> "elf_notes.ReadAt":
    """Return a function that reads ``size`` bytes at ``offset`` of an open file.

    It returns nothing at an offset that no file can have, as in a header full of random numbers.
    """

    def read_at(offset: int, size: int) -> bytes:
        return os.pread(descriptor, size, offset) if offset < _FAR else b""

    return read_at


def _sha256(descriptor: int) -> str:
    import hashlib  # takes a while, and most libraries have a build-id

    digest = hashlib.sha256()
    for chunk in iter(lambda: os.read(descriptor, _CHUNK), b""):
        digest.update(chunk)
    return digest.hexdigest()
