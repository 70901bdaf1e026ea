"""The architecture of a root filesystem: what its programs are for, whatever its label says."""

import struct

from deployer.connected.rootfs.merge import Rootfs, TreeNode
from deployer.contract.base.tarformat import FILE

#: OCI's names of architectures, by the machine's number in ELF headers.
NAMES = {3: "386", 21: "ppc64le", 40: "arm", 62: "amd64", 183: "arm64", 243: "riscv64"}
#: OCI's names of architectures, by those of the kernel. Debian has the same names for the first two.
OF_KERNEL = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}

#: Programs of the image's own architecture. Other programs may be for cross compilers or emulators.
_TYPICAL = (b"bin/sh", b"usr/bin/env", b"sbin/ldconfig", b"usr/bin/python3")
#: The magic number, the byte order, and the machine.
_ELF_HEADER = struct.Struct("<4sxB12xH")
#: Architectures whose Linux also runs programs of another one.
_ALSO_RUNS = {"amd64": "386", "arm64": "arm"}


def architecture(root: Rootfs) -> str:
    """Return the architecture of a typical program, otherwise of the first program, or "unknown"."""
    for path in _TYPICAL:
        node = root.find(path)
        if node and (name := _of_program(node)):
            return name
    return next(filter(None, (_of_program(node) for _, node in root.walk())), "unknown")


def contradicts(label: str, measured: str) -> bool:
    """Return whether an image's label names another architecture than the one that its programs are for."""
    return "unknown" not in (label, measured) and label != measured and _ALSO_RUNS.get(label) != measured


def _of_program(node: TreeNode) -> str:
    """Return the architecture of a file, empty if it is not a program."""
    if node.kind != FILE or not node.mode & 0o111 or node.data is None or node.data.size <= _ELF_HEADER.size:
        return ""
    magic, order, machine = _ELF_HEADER.unpack(node.data.read(0, _ELF_HEADER.size))
    return NAMES.get(machine, "") if magic == b"\x7fELF" and order == 1 else ""
