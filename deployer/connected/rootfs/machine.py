"""The architecture of a root filesystem: what its programs are for, whatever its label says."""

from deployer.connected.rootfs.merge import Rootfs, TreeNode
from deployer.contract.base.tarformat import FILE
from deployer.contract.elf import machines

#: Programs of the image's own architecture. Other programs may be for cross compilers or emulators.
_TYPICAL = (b"bin/sh", b"usr/bin/env", b"sbin/ldconfig", b"usr/bin/python3")


def architecture(root: Rootfs) -> str:
    """Return the architecture of a typical program, otherwise of the first program, or "unknown"."""
    for path in _TYPICAL:
        node = root.find(path)
        if node and (name := _of_program(node)):
            return name
    return next(filter(None, (_of_program(node) for _, node in root.walk())), "unknown")


def contradicts(label: str, measured: str) -> bool:
    """Return whether an image's label names another architecture than the one that its programs are for."""
    other = machines.ALSO_RUNS.get(machines.BY_OCI[label]) if label in machines.BY_OCI else None
    return "unknown" not in (label, measured) and label != measured and (other is None or other.oci != measured)


def _of_program(node: TreeNode) -> str:
    """Return the architecture of a file, empty if it is not a program."""
    if node.kind != FILE or not node.mode & 0o111 or node.data is None:
        return ""
    known = machines.of_elf(node.data.read(0, min(node.data.size, machines.HEADER_SIZE)))
    return known.oci if known else ""
