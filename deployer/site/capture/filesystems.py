"""File systems for a user of the site: type, sharing, free space and inodes, and the user's quota."""

import os
import re
from typing import Dict, List, NamedTuple, Optional

from deployer.contract.base.json_records import Record
from deployer.site.capture.tools import Tools, determined, read_text

#: Types with the same files on all nodes. Other types are unknown: a node may export one that looks local.
_SHARED = (
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "fhgfs", "panfs", "ceph", "fuse.ceph", "wekafs", "orangefs", "pvfs2",
    "afs", "cifs", "9p", "glusterfs", "fuse.glusterfs", "dvs",
)  # fmt: skip
_MEMORY = ("tmpfs", "ramfs")
#: Variables that sites set to a user's folders.
_VARIABLES = re.compile(r"^(HOME|SCRATCH\w*|WORK\w*|PROJECT\w*|DATA\w*|TMPDIR|LOCAL_?SCRATCH\w*|FASTDIR|FLASH\w*)$")
_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/scratch", "/local", "/localscratch")  # noqa: S108  only examined
_MAX = 25
_MIB = 1024 * 1024
#: After this many seconds without an answer, a file system counts as dead.
_PATIENCE = 2.0


class MountedFilesystem(NamedTuple):
    """A mounted file system."""

    path: str
    type: str


def find(tools: Tools, mounts: str = "/proc/self/mounts") -> Record:
    """Return the ``filesystems`` part of a profile, by mount point."""
    mounted = _mounted(mounts)
    folders = [value for name, value in sorted(os.environ.items()) if _VARIABLES.match(name)] + list(_FOLDERS)
    wanted = [mount for mount in (_of(folder, mounted) for folder in folders if folder.startswith("/")) if mount]
    wanted += [mount for mount in mounted if mount.type in _SHARED]
    chosen = [each for each in list(dict.fromkeys(wanted))[:_MAX] if each.path != "/" or each.type in _SHARED]
    found = {mount.path: _filesystem(tools, mount) for mount in chosen}
    return {path: found[path] for path in sorted(found)}


def _mounted(path: str) -> List[MountedFilesystem]:
    rows = [line.split(" ") for line in read_text(path).splitlines()]
    return [MountedFilesystem(_unescaped(row[1]), row[2]) for row in rows if len(row) > 2 and ":" not in row[1]]


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _of(folder: str, mounted: List[MountedFilesystem]) -> Optional[MountedFilesystem]:
    """Return the file system mounted at a folder or above it. Links are not followed, because that could hang."""
    path = os.path.normpath(folder)
    above = [mount for mount in mounted if mount.path in ("/", path) or path.startswith(mount.path + "/")]
    best = max(reversed(above), key=lambda mount: len(mount.path), default=None)  # a later mount covers an earlier one
    return best if best and best.type != "autofs" else None


def _filesystem(tools: Tools, mount: MountedFilesystem) -> Record:
    shared = mount.type in _SHARED
    answer = tools.ask(["stat", "--file-system", "--format=%S %b %c", mount.path], _PATIENCE)
    numbers = re.match(r"^(\d{1,12}) (\d{1,18}) (\d{1,18})$", answer.out.strip()) if answer else None
    block, blocks, inodes = map(int, numbers.groups()) if numbers else (0, 0, 0)
    found = {
        "type": mount.type,
        "shared": shared if shared or mount.type in _MEMORY else None,
        "size_mb": block * blocks // _MIB if numbers else None,
        "inodes": inodes or None,
    }
    return {**determined(found), **(_quota(tools, mount) if shared else {})}


def _quota(tools: Tools, mount: MountedFilesystem) -> Dict[str, int]:
    """Return the user's hard limits, or else the soft ones, if the file system's own tool prints them."""
    user = str(os.getuid())
    if mount.type == "lustre":
        answer = tools.ask(["lfs", "quota", "-q", "-u", user, mount.path], seconds=3.0)
    elif mount.type.startswith("nfs"):
        answer = tools.ask(["quota", "-w", "-p", "-f", mount.path], seconds=3.0, any_status=True)
    else:
        return {}
    return parse_quota(answer.out) if answer else {}


def parse_quota(text: str) -> Dict[str, int]:
    """Return the limits from a line of numbers: kbytes, soft, hard, grace, files, soft, hard; 0 means no limit."""
    for line in text.splitlines():
        words = [word.rstrip("*") for word in line.split()]
        numbers = [word for word in words[1:] if word.isdigit() or word == "-"]
        if len(numbers) >= 7 and numbers[0].isdigit():
            values = [0 if word == "-" else int(word) for word in numbers]
            size, inodes = values[2] or values[1], values[6] or values[5]
            return determined({"quota_mb": size // 1024 if size else None, "quota_inodes": inodes or None})
    return {}
