"""GPU targets of a file's HIP kernels, from the headers of the offload bundles in its section ``.hip_fatbin``.

The section has a bundle for each source file, each at a multiple of a page. A bundle has an entry for the host, and one
for each target: ``hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-``. A compressed bundle (``CCOB``) is a stream whose beginning
is such a bundle; only its table of entries is decompressed.

Format: LLVM's ClangOffloadBundler.rst and OffloadBundler.h, versions 1 to 3. It was compared with wheels whose targets
are known. Every read is bounded. Data in any other format counts as having no known kernels.
"""

import re
import struct
import zlib
from collections.abc import Iterable, Iterator

import zstandard

from deployer.connected.linker.code import elf_sections
from deployer.contract.elf.elf import ReadAt

_NAME = b".hip_fatbin"
_PLAIN, _PACKED = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
#: By version of a compressed bundle: its header (magic, version, method, size, ...). Version 1 lacks the size.
_HEADERS = {1: struct.Struct("<4sHHIQ"), 2: struct.Struct("<4sHHIIQ"), 3: struct.Struct("<4sHHQQQ")}
_COMMON = struct.Struct("<4sHH")
_ZLIB = 0
_COUNT, _ENTRY = struct.Struct("<Q"), struct.Struct("<QQQ")
_ALIGNED = 4096
_MAX_BUNDLES, _MAX_ENTRIES, _LONGEST, _TABLE = 100_000, 256, 256, 64 * 1024
_TARGET = re.compile(r"^hip[a-z0-9]*-.*?-(gfx[0-9a-f]+[\w:+-]*|amdgcnspirv)$")

#: The processors on which code for a generic one runs. Source: LLVM's AMDGPUUsage, "AMDGPU Generic Processors".
_GENERIC = {
    "gfx9-generic": r"gfx90[02469c]", "gfx9-4-generic": r"gfx9(4[0-2]|50)", "gfx10-1-generic": r"gfx101[0-3]",
    "gfx10-3-generic": r"gfx103[0-6]", "gfx11-generic": r"gfx11(0[0-3]|5[0-3])", "gfx12-generic": r"gfx120[01]",
}  # fmt: skip
#: Code in an intermediate language, which the driver's user space compiles for any processor.
_ANY = "amdgcnspirv"


class _Other(Exception):
    """The data has another format."""


def kernels(read_at: ReadAt) -> tuple[str, ...]:
    """Return the targets of a file's kernels, sorted: ``gfx90a``, ``gfx90a:xnack+``, ``gfx9-4-generic``."""
    targets: set[str] = set()
    try:
        steps = iter(range(_MAX_BUNDLES))
        for section in elf_sections.sections_of(read_at):
            if section.name == _NAME:
                targets.update(_bundles(read_at, section.offset, section.size, steps))
    except (_Other, struct.error, zlib.error, zstandard.ZstdError):
        return ()
    return tuple(sorted(targets))


def of_amd(kernels: Iterable[str]) -> list[str]:
    """Return the kernels that are for AMD's GPUs."""
    return [kernel for kernel in kernels if kernel.startswith(("gfx", _ANY))]


def serve(kernels: Iterable[str], processor: str) -> bool:
    """Return whether one of the kernels is for this processor, with any of its features (``xnack``, ``sramecc``)."""
    names = {kernel.partition(":")[0] for kernel in kernels}
    generic = (name for name in names if name in _GENERIC)
    return bool(names & {processor, _ANY}) or any(re.fullmatch(_GENERIC[name], processor) for name in generic)


def _bundles(read_at: ReadAt, start: int, end: int, steps: Iterator[int]) -> Iterator[str]:
    at = 0
    for _ in steps:
        if at >= end:
            return
        head, table = read_at(start + at, len(_PLAIN)), min(_TABLE, end - at)
        size = 1
        if head.startswith(_PLAIN):
            size, entries = _entries(read_at(start + at, table))
            yield from entries
        elif head.startswith(_PACKED):
            _, version, method = _COMMON.unpack_from(head)
            header = _HEADERS.get(version)
            if header is None:
                raise _Other
            size = header.unpack(read_at(start + at, header.size))[3] if version > 1 else end - at
            yield from _entries(_unpacked(read_at(start + at + header.size, table), method))[1]
        elif head.strip(b"\0"):
            raise _Other
        at += max(size, 1)
        at += -at % _ALIGNED
    raise _Other


def _unpacked(data: bytes, method: int) -> bytes:
    """Return the beginning of a compressed bundle, from the beginning of its stream."""
    if method == _ZLIB:
        return zlib.decompressobj().decompress(data, _TABLE)
    return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=False).read(_TABLE)


def _entries(table: bytes) -> tuple[int, list[str]]:
    """Return the size of a bundle, and its targets."""
    (count,) = _COUNT.unpack_from(table, len(_PLAIN))
    if not table.startswith(_PLAIN) or count > _MAX_ENTRIES:
        raise _Other
    at, size, found = len(_PLAIN) + _COUNT.size, 0, []
    for _ in range(count):
        offset, content, length = _ENTRY.unpack_from(table, at)
        at += _ENTRY.size + length
        if length > _LONGEST or at > len(table):
            raise _Other
        match = _TARGET.match(table[at - length : at].decode("ascii", "replace"))
        found += [match[1]] if match else []
        size = max(size, offset + content)
    return size, found
