"""The targets of binds in an installed image: what is at a path, and what prevents a bind there."""

import os
import stat
from typing import Optional

from deployer.system import files


def objection(rootfs: str, target: str, made: bool = False) -> Optional[str]:
    """Return why nothing can be bound to the absolute path ``target`` of an image, or None.

    Args:
        rootfs: the unpacked image.
        made: the runtime makes targets that the image lacks.
    """
    path = ""
    parts = [part for part in target.split("/") if part]
    for number, part in enumerate(parts):
        path += "/" + part
        found = files.status(rootfs + path, follow=False)
        if found is None:
            return None if made else "the image is read-only and has no %s" % target
        if stat.S_ISLNK(found.st_mode):
            return "%s is a link in the image, to %s" % (path, os.readlink(rootfs + path))
        if number + 1 < len(parts) and not stat.S_ISDIR(found.st_mode):
            return "%s is a file in the image" % path
    return None


def lacks(rootfs: str, target: str) -> bool:
    """Return whether an image has nothing at ``target``, and nothing that prevents making it."""
    return objection(rootfs, target) is not None and objection(rootfs, target, made=True) is None
