"""Creation of a bundle's mount points, empty folders, in its unpacked image (see ``contract.site.mount_points``).

Images share their layer, so a rootfs collects the mount points of all images that share it.
"""

import os
import stat
from contextlib import suppress
from typing import Iterable, List, Sequence

from deployer.contract.base.errors import UsageError
from deployer.site.container.targets import has_folder, lacks
from deployer.site.storage import inventory
from deployer.site.storage.store import InstalledImage

#: Attempts to make a folder in a parent that two installs may change at the same time.
_TRIES = 10
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make(rootfs: str, mount_points: Iterable[str]) -> None:
    """Make the mount points that an image lacks, except where a link or file in the image is in the way.

    Everything is made relative to a folder's descriptor, and no link is followed. Folders with read-only modes stay
    read-only, and all folders keep their times.

    Raises:
        OSError: this user cannot write there.
    """
    for path in mount_points:
        if lacks(rootfs, path):
            _make(os.path.realpath(rootfs), path)


def make_if_permitted(rootfs: str, mount_points: Iterable[str]) -> None:
    """Do the same in an installed image, which may belong to another user or be on a read-only file system."""
    with suppress(OSError, UsageError):
        make(rootfs, mount_points)


def others(installed: InstalledImage, own: Iterable[str], targets: Sequence[str]) -> List[str]:
    """Return the ``targets`` that an installed image has only because another image with its layer needs them.

    They are missing if the image is unpacked again from its bundle.

    Args:
        own: the mount points of its bundle.
        targets: absolute paths.
    """
    there = [path for path in targets if has_folder(installed.rootfs, path)]
    names = inventory.rootfs_names(installed) if there else frozenset()
    ours = [path + "/" for path in own]
    return [
        path
        for path in there
        if names
        and os.fsencode(path.strip("/")) not in names
        and not any(own_path.startswith(path.rstrip("/") + "/") for own_path in ours)
    ]


def _make(rootfs: str, path: str) -> None:
    folder = os.open(rootfs, _FOLDER)
    try:
        for part in path.strip("/").split("/"):
            _make_in(folder, part)
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
    finally:
        os.close(folder)


def _make_in(folder: int, name: str) -> None:
    """Make a folder in a folder, unless its name is taken."""
    for left in reversed(range(_TRIES)):
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            return
        try:
            _make_now(folder, name)
            return
        except PermissionError:  # perhaps another install has just made the folder read-only again
            if not left:
                raise


def _make_now(folder: int, name: str) -> None:
    """Make a folder in a folder, even if the mode of the parent is read-only."""
    before = os.fstat(folder)
    mode = stat.S_IMODE(before.st_mode)
    read_only = not mode & stat.S_IWUSR
    if read_only:
        os.chmod(folder, mode | stat.S_IWUSR)
    try:
        with suppress(FileExistsError):  # another process of this user made it first
            os.mkdir(name, 0o555 if read_only else 0o755, dir_fd=folder)
    finally:
        if read_only:
            os.chmod(folder, mode)
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
