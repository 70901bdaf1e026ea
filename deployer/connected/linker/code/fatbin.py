"""GPU targets of a file's CUDA kernels, from the headers of the fat binaries in its section ``.nv_fatbin``.

The section ``__nv_relfatbin`` contains relocatable kernels (``nvcc -rdc=true``). Their machine code was linked into the
other section; the driver compiles and links their PTX.

A section holds containers, each with entries. An entry is machine code for one architecture (``sm_80``), or PTX, which
the driver compiles for newer ones (``compute_80``). Headers are never compressed; the data between them is not read.

Format: as NVIDIA's fatbinary 11.8 and 13.0 write it. It was compared with files compiled for known architectures, with
and without compression and relocation; NVIDIA documents only the container's header (``fatbinary_section.h``).
Every read is bounded. Data in any other format counts as having no known kernels.
"""

import struct
from collections.abc import Iterable, Iterator

from deployer.connected.linker.code import elf_sections
from deployer.contract.elf.elf import ReadAt

_NAMES = (b".nv_fatbin", b"__nv_relfatbin")
#: Magic number, version, size of this header, size of the entries.
_CONTAINER = struct.Struct("<IHHQ")
_MAGIC, _VERSION = 0xBA55ED50, 1
#: Kind, version, size of this header, size of the content; minor and major version of the content's format,
#: architecture; flags.
_ENTRY = struct.Struct("<HHIQ8xHHI8xQ")
_PTX, _CODE = 1, 2
_PTX_VERSION = "ptx_"
#: The code uses features specific to one architecture (sm_90a).
_THIS_ALONE = 0x100000
_ALIGNED = 8
_MAX_ENTRIES = 1_000_000

Capability = tuple[int, int]


class _Other(Exception):
    """The data has another format."""


def kernels(read_at: ReadAt) -> tuple[str, ...]:
    """Return the targets of a file's kernels, sorted: ``sm_80``, ``sm_90a``, ``compute_80``.

    ``other`` stands for unknown kinds, ``ptx_8.2`` for the version of PTX. Empty if the file has no kernels, or has an
    unknown format.
    """
    targets: set[str] = set()
    try:
        steps = iter(range(_MAX_ENTRIES))  # for the whole file: sections and containers may overlap
        for section in elf_sections.sections_of(read_at):
            if section.name in _NAMES:
                targets.update(_entries(read_at, section.offset, section.offset + section.size, steps))
    except (_Other, struct.error):
        return ()
    return tuple(sorted(targets))


def serve(kernels: Iterable[str], gpu: Capability) -> bool:
    """Return whether one of the kernels is known to run on a GPU of this compute capability."""
    for kind, _, name in (kernel.partition("_") for kernel in kernels):
        if kind == "other":
            return True
        if kind in ("sm", "compute"):
            target = divmod(int(name.rstrip("a")), 10)
            if target == gpu or (
                not name.endswith("a") and target < gpu and (kind == "compute" or target[0] == gpu[0])
            ):
                return True
    return False


def machine_code(kernels: Iterable[str]) -> list[str]:
    """Return the kernels that the driver does not have to compile."""
    return [kernel for kernel in kernels if not kernel.startswith(("compute_", _PTX_VERSION))]


def architectures(kernels: Iterable[str]) -> list[str]:
    """Return the kernels without their PTX versions."""
    return [kernel for kernel in kernels if not kernel.startswith(_PTX_VERSION)]


def ptx_version(kernels: Iterable[str]) -> tuple[int, int] | None:
    """Return the newest PTX version in a file; None if it has no PTX."""
    versions = [kernel[len(_PTX_VERSION) :].split(".") for kernel in kernels if kernel.startswith(_PTX_VERSION)]
    return max(((int(major), int(minor)) for major, minor in versions), default=None)


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
