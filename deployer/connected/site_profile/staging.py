"""staging: where the image is while ranks run, out of what a profile says of a partition's file systems."""

from collections.abc import Mapping
from typing import NamedTuple

from deployer.connected.site_profile.model import Filesystem
from deployer.contract.plan import DISK, MEMORY, NOT_STAGED, SQUASHFS

#: Up to so many nodes the ranks read the image from the shared file system, which costs no memory and no start; beyond,
#: each node's ten thousands of small reads are too many for it.
FEW_NODES = 4

#: From so many nodes on, the one file is not read by each: Slurm hands it on from node to node.
MANY_NODES = 16

_MEMORY_TYPES = ("tmpfs", "ramfs")
#: It is there for this, on every node; /tmp may be cleared under a running job, or be small.
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  named, not used here


#: Others keep an image in a form and a place of their own; and those that mount one, once a node.
_RUNTIMES = ("charliecloud", "udocker")
_MOUNTING = ("charliecloud",)


class Staging(NamedTuple):
    """One way: ``kind`` of ``plan.STAGINGS``, the node's own folder for it with its size, the most nodes, and from how
    many on the file is sent to them."""

    kind: str
    place: str | None = None
    room_mb: int | None = None
    max_nodes: int | None = None
    broadcast: int | None = None


def stagings(runtime: str, filesystems: Mapping[str, Filesystem], fuse: bool | None) -> list[Staging]:
    """Return the ways of a partition, best first: the installed folder for a few nodes, else a node's disk, which costs
    no memory, else its memory, unpacked or, where users can mount (``fuse``), compressed. Where nobody said what a node
    has of its own, the folder is all there is."""
    if runtime not in _RUNTIMES:
        return [Staging(NOT_STAGED)]
    own = {path: each for path, each in filesystems.items() if each.shared is False and each.type is not None}
    disks = {path: each for path, each in own.items() if each.type not in _MEMORY_TYPES}
    memories = {path: each for path, each in own.items() if each.type in _MEMORY_TYPES}
    staged = []
    if disks:
        path = max(disks, key=lambda each: (disks[each].size_mb or 0, each))
        staged.append(Staging(DISK, path, disks[path].size_mb, broadcast=MANY_NODES))
    if memories:
        path = _SHARED_MEMORY if _SHARED_MEMORY in memories else min(memories)
        staged.append(Staging(MEMORY, path, memories[path].size_mb, broadcast=MANY_NODES))
        if fuse and runtime in _MOUNTING:
            staged.append(Staging(SQUASHFS, path, memories[path].size_mb, broadcast=MANY_NODES))
    return [Staging(NOT_STAGED, max_nodes=FEW_NODES if staged else None), *staged]
