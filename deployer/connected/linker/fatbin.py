"""Which GPUs a file's CUDA kernels are for: the headers of the fat binaries in its section ``.nv_fatbin``.

The section ``__nv_relfatbin`` has relocatable kernels (``nvcc -rdc=true``). Their machine code was linked into the
other section; their PTX is compiled and linked by the driver.

A section holds containers, each with entries: machine code of one architecture (``sm_80``), or PTX, which the driver
compiles for newer ones (``compute_80``). Headers are never compressed, what is between them is not read.

Format: as NVIDIA's fatbinary 11.8 and 13.0 write it, compared with files that were compiled for known architectures,
with and without compression and relocation; NVIDIA documents only the container's header (``fatbinary_section.h``).
Everything is bounded, and what is not of this form has no kernels that are known.
"""

import struct
from collections.abc import Iterable, Iterator

from deployer.connected.linker import elf_sections
from deployer.contract.elf import ReadAt

_NAMES = (b".nv_fatbin", b"__nv_relfatbin")
#: Magic, version, size of this header, size of the entries.
_CONTAINER = struct.Struct("<IHHQ")
_MAGIC, _VERSION = 0xBA55ED50, 1
#: Kind, version, size of this header, size of the content; minor and major version of the content's format,
#: architecture; flags.
_ENTRY = struct.Struct("<HHIQ8xHHI8xQ")
_PTX, _CODE = 1, 2
_PTX_VERSION = "ptx_"
#: Code that uses what one architecture alone has (sm_90a).
_THIS_ALONE = 0x100000
_ALIGNED = 8
_MAX_ENTRIES = 1_000_000

Capability = tuple[int, int]


class _Other(Exception):
    """It is of another form."""


def kernels(read_at: ReadAt) -> tuple[str, ...]:
    """Return what a file has kernels for, sorted: ``sm_80``, ``sm_90a``, ``compute_80``; ``other`` for unknown
    kinds; ``ptx_8.2`` for the version of PTX. Empty if it has none, or has an unknown format."""
    found: set[str] = set()
    try:
        steps = iter(range(_MAX_ENTRIES))  # of the whole file: its sections and containers may overlap
        for each in elf_sections.each(read_at):
            if each.name in _NAMES:
                found.update(_entries(read_at, each.offset, each.offset + each.size, steps))
    except (_Other, struct.error):
        return ()
    return tuple(sorted(found))


def serve(found: Iterable[str], gpu: Capability) -> bool:
    """Return whether one of the kernels runs on a GPU of this compute capability, as far as that is known."""
    return any(_serves(each, gpu) for each in found)


def machine_code(found: Iterable[str]) -> list[str]:
    """Return the kernels that the driver need not compile."""
    return [each for each in found if not each.startswith(("compute_", _PTX_VERSION))]


def architectures(found: Iterable[str]) -> list[str]:
    """Return the kernels without the versions of their PTX."""
    return [each for each in found if not each.startswith(_PTX_VERSION)]


def ptx_version(found: Iterable[str]) -> tuple[int, int] | None:
    """Return the newest version of PTX in a file, None if it has none."""
    versions = [each[len(_PTX_VERSION) :].split(".") for each in found if each.startswith(_PTX_VERSION)]
    return max(((int(major), int(minor)) for major, minor in versions), default=None)


def _serves(kernel: str, gpu: Capability) -> bool:
    kind, _, name = kernel.partition("_")
    if kind == "other":
        return True
    if kernel.startswith(_PTX_VERSION):
        return False
    made = divmod(int(name.rstrip("a")), 10)
    if name.endswith("a"):
        return made == gpu
    return made <= gpu and (kind == "compute" or made[0] == gpu[0])


def _entries(read_at: ReadAt, start: int, end: int, steps: Iterator[int]) -> Iterator[str]:
    for _ in steps:
        if start + _CONTAINER.size > end:
            return
        magic, version, head, size = _CONTAINER.unpack(read_at(start, _CONTAINER.size))
        if magic == 0:  # padding
            start += _ALIGNED
            continue
        if magic != _MAGIC or version != _VERSION or head < _CONTAINER.size or start + head + size > end:
            raise _Other
        yield from _of_container(read_at, start + head, start + head + size, steps)
        start += head + size
        start += -start % _ALIGNED
    raise _Other


def _of_container(read_at: ReadAt, start: int, end: int, steps: Iterator[int]) -> Iterator[str]:
    for _ in steps:
        if start + _ENTRY.size > end:
            return
        kind, _, head, size, minor, major, architecture, flags = _ENTRY.unpack(read_at(start, _ENTRY.size))
        if head < _ENTRY.size:
            raise _Other
        name = f"{architecture}a" if flags & _THIS_ALONE else f"{architecture}"
        yield f"sm_{name}" if kind == _CODE else f"compute_{name}" if kind == _PTX else "other"
        if kind == _PTX:
            yield f"{_PTX_VERSION}{major}.{minor}"
        start += head + size
    raise _Other
