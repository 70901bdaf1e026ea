"""Names of processor architectures: the number in ELF headers, the kernel's name, and the name in OCI documents.

A profile, a plan and a definition have the kernel's names (``uname -m``); an image and a bundle have OCI's.
Sources: System V ABI, "ELF Header"; OCI image-spec, "config", which takes Go's GOARCH.
"""

import struct
from typing import Dict, NamedTuple, Optional


class Processor(NamedTuple):
    """A processor architecture.

    Attributes:
        number: the machine's number in ELF headers.
        kernel: its name in the kernel.
        oci: its name in OCI documents. Debian has the same, except for ppc64el and i386.
    """

    number: int
    kernel: str
    oci: str


X86_64 = Processor(62, "x86_64", "amd64")
AARCH64 = Processor(183, "aarch64", "arm64")
I386 = Processor(3, "i386", "386")
ARM = Processor(40, "arm", "arm")

ALL = (
    X86_64,
    AARCH64,
    I386,
    ARM,
    Processor(21, "ppc64le", "ppc64le"),
    Processor(22, "s390x", "s390x"),
    Processor(243, "riscv64", "riscv64"),
)
BY_NUMBER: Dict[int, Processor] = {each.number: each for each in ALL}
BY_KERNEL: Dict[str, Processor] = {each.kernel: each for each in ALL}
BY_OCI: Dict[str, Processor] = {each.oci: each for each in ALL}

#: The kernel's names of the architectures that images and the kit can be made for.
SUPPORTED = (X86_64.kernel, AARCH64.kernel)
#: Architectures whose Linux also runs programs of another one.
ALSO_RUNS = {X86_64: I386, AARCH64: ARM}


#: The bytes of an ELF file that ``of_elf`` needs: the magic number, the byte order, and the machine.
_HEADER = struct.Struct("<4sxB12xH")
HEADER_SIZE = _HEADER.size


def of_elf(head: bytes) -> Optional[Processor]:
    """Return the architecture of the ELF file that begins with ``head``; None if it is not one of a known one."""
    if len(head) < HEADER_SIZE:
        return None
    magic, order, machine = _HEADER.unpack_from(head)
    return BY_NUMBER.get(machine) if magic == b"\x7fELF" and order == 1 else None


def kernel_name(oci: str) -> Optional[str]:
    """Return the kernel's name of an architecture with a name in OCI; None if it is not known."""
    return BY_OCI[oci].kernel if oci in BY_OCI else None
