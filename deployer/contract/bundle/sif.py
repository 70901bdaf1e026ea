"""The Singularity Image Format: a header, a table of descriptors, and objects, such as a SquashFS file. Pure.

Source: sylabs/sif 4c442152, pkg/sif: sif.go, descriptor.go, arch.go, create.go.
"""

import struct
from typing import Callable, List, NamedTuple

from deployer.contract.base.errors import UsageError

#: The launch script, which makes the file executable, then magic number and version.
_START = (b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC", b"01")
MAGIC, MAGIC_AT = _START[1] + b"\0", 32
#: The words of ``_START``, architecture, UUID, two times; descriptors: free, total, offset, size; data: offset, size.
_HEADER = struct.Struct("<32s10s3s3s16s8q")
#: Kind, used, id, group, link, offset, size, size with padding, two times, user, group, name, and what the kind needs.
_DESCRIPTOR = struct.Struct("<iB3I3q4q128s384s")
#: For a partition: its file system, its role, its architecture. For a signature: the hash, the key's fingerprint.
_PARTITION, _SIGNATURE = struct.Struct("<2i3s"), struct.Struct("<i20s")
_OF_PARTITION, _OF_SIGNATURE = 0x4004, 0x4005
_SQUASHFS, _FILE_SYSTEMS = 1, {2: "ext3", 4: "raw", 5: "an encrypted"}
_PRIMARY, _OVERLAY = 2, 4
#: Architectures, with their names in OCI; of the others, messages have the number.
_ARCHITECTURES = {b"02\0": "amd64", b"04\0": "arm64"}
_OTHERS = {b"01\0": "386", b"03\0": "arm", b"05\0": "ppc64", b"06\0": "ppc64le", b"11\0": "s390x", b"12\0": "riscv64"}
#: Descriptors that Apptainer reserves, and the most that are read.
_RESERVED, _MOST = 48, 4096
_DESCRIPTORS_AT, _DATA_AT, _GROUP = 4096, 32768, 0xF0000001


class SifContents(NamedTuple):
    """What is in a SIF file.

    Attributes:
        offset: the start of the SquashFS file with the root filesystem, in bytes.
        size: its bytes.
        architecture: its name in OCI.
        signers: the fingerprints of the keys that signed the file; nothing is verified.
    """

    offset: int
    size: int
    architecture: str
    signers: List[str]


def find(read: Callable[[int, int], bytes], size: int) -> SifContents:
    """Return the contents of a SIF file of ``size`` bytes; ``read(offset, length)`` returns bytes of the file.

    Raises:
        UsageError: the file is cut or damaged, or deployer cannot use its root filesystem.
    """
    whole = read(0, _HEADER.size).ljust(_HEADER.size, b"\0")
    _, _, version, _, _, _, _, _, total, offset, *_ = _HEADER.unpack(whole)
    if version[:2] != _START[2] or not 0 <= total <= _MOST or offset < 0:
        raise UsageError("the header of the SIF file is damaged")
    table = read(offset, total * _DESCRIPTOR.size) if offset + total * _DESCRIPTOR.size <= size else b""
    used = [row for row in _DESCRIPTOR.iter_unpack(table) if row[1]]
    if (total and not table) or any(min(row[5:7]) < 0 or row[5] + row[6] > size for row in used):
        raise UsageError(f"the SIF file is cut or damaged: it has {size} bytes, and one of its objects is outside")
    partitions = [(row, *_PARTITION.unpack_from(row[-1])) for row in used if row[0] == _OF_PARTITION]
    primary = [each for each in partitions if each[2] == _PRIMARY]
    if len(primary) != 1:
        hint = "an OCI-SIF of SingularityCE has none: make a plain SIF, with singularity build FILE.sif"
        raise UsageError(f"the SIF file has {len(primary)} root filesystems, not one", hint)
    if any(role == _OVERLAY for _, _, role, _ in partitions):
        raise UsageError("the SIF file has an overlay, whose changes deployer cannot read", "build a SIF without one")
    row, kind, _, machine = primary[0]
    if kind != _SQUASHFS:
        hint = "give a SIF with SquashFS, which apptainer build makes; decrypt it with apptainer build --sandbox"
        raise UsageError(f"the SIF file has {_FILE_SYSTEMS.get(kind, 'an unknown')} filesystem, not SquashFS", hint)
    if machine not in _ARCHITECTURES:
        name = _OTHERS.get(machine, f"architecture {machine[:2]!r}")
        raise UsageError(f"the SIF file is for {name}, and deployer runs on x86_64 and aarch64")
    keys = [_SIGNATURE.unpack_from(row[-1])[1].hex().upper() for row in used if row[0] == _OF_SIGNATURE]
    return SifContents(row[5], row[6], _ARCHITECTURES[machine], sorted(set(keys)))


def header(size: int, architecture: str) -> bytes:
    """Return what precedes a SquashFS file of ``size`` bytes in a SIF file, always the same: without times and UUID.

    Args:
        architecture: its name in OCI.
    """
    machine = next(key for key, name in _ARCHITECTURES.items() if name == architecture)
    partition = _PARTITION.pack(_SQUASHFS, _PRIMARY, machine)
    row = _DESCRIPTOR.pack(_OF_PARTITION, 1, 1, _GROUP, 0, _DATA_AT, size, size, 0, 0, 0, 0, b"root", partition)
    space = _RESERVED * _DESCRIPTOR.size
    numbers = (0, 0, _RESERVED - 1, _RESERVED, _DESCRIPTORS_AT, space, _DATA_AT, size)
    return (_HEADER.pack(*_START, machine, b"", *numbers).ljust(_DESCRIPTORS_AT, b"\0") + row).ljust(_DATA_AT, b"\0")
