"""staging: the place of the image while ranks run, chosen from the partition's file systems in the profile."""

from collections.abc import Mapping

from deployer.connected.site_profile.machine import Filesystem
from deployer.contract.site import runtime_table
from deployer.contract.site.plan import DISK, MEMORY, MOUNTED, SQUASHFS, StartOption

#: Up to this many nodes, ranks read the image from the shared file system, which needs no memory and no initial copy.
#: With more nodes, the tens of thousands of small reads per node overload the file system.
FEW_NODES = 4

#: From this many nodes on, they send the image file on to each other instead of each reading it.
MANY_NODES = 8

_MEMORY_TYPES = ("tmpfs", "ramfs")
#: Every node has it, but /tmp may be small, or cleared during a job.
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  named, not used here


def stagings(option: StartOption, filesystems: Mapping[str, Filesystem], mounts: bool | None) -> list[StartOption]:
    """Return a start option, and the same option with each possible staging of a partition, best first.

    For a few nodes the installed folder is best. Next is the node's disk, which needs no memory, then its memory:
    unpacked, or compressed if users can mount images. If neither fits, the compressed file is mounted where it is. If
    the file systems of a node are unknown, only the installed folder is possible. A SIF file is only copied to memory.

    Args:
        option: the start option for the installed folder.
        filesystems: the partition's file systems by path.
        mounts: whether a SquashFS file can be mounted; None: unknown.
    """
    possible = (SQUASHFS,) if option.sif else runtime_table.RUNTIMES[option.runtime].stagings
    own = {path: each for path, each in filesystems.items() if each.shared is False and each.type is not None}
    memories = [path for path, each in own.items() if each.type in _MEMORY_TYPES]
    memory = _SHARED_MEMORY if _SHARED_MEMORY in memories else min(memories, default=None)
    disk = max(own.keys() - memories, key=lambda path: (own[path].size_mb or 0, path), default=None)
    mount = memory if mounts else None
    places = [(DISK, disk), (MEMORY, memory), (SQUASHFS, mount), (MOUNTED, mount)]
    staged = [
        option._replace(
            name=f"{option.runtime}-{staging}",
            staging=staging,
            place=path,
            room_mb=own[path].size_mb,
            broadcast=None if staging == MOUNTED else MANY_NODES,
        )
        for staging, path in places
        if path is not None and staging in possible
    ]
    return [option._replace(max_nodes=FEW_NODES if staged else None), *staged]
