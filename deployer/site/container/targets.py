"""Checks of bind targets in an installed image: what exists at a path, and what prevents a bind there."""

import os
import stat
from functools import partial
from typing import Optional

from deployer.contract.site import mount_points
from deployer.system import files


def objection(rootfs: str, target: str, makes: bool = False) -> Optional[str]:
    """Return why nothing can be bound to the absolute path ``target`` of an image, or None.

    Args:
        rootfs: the unpacked image.
        makes: whether the runtime makes targets that the image lacks.
    """
    part = mount_points.in_the_way(target, partial(_is_folder, rootfs))
    if part is None:
        return f"the image is read-only and has no {target}" if not makes and lacks(rootfs, target) else None
    if files.is_link(rootfs + part):
        return f"{part} is a link in the image, to {os.readlink(rootfs + part)}"
    return None if part == "/" + target.strip("/") else f"{part} is a file in the image"  # a file can cover a file


def lacks(rootfs: str, target: str) -> bool:
    """Return whether an image has nothing at ``target``, and nothing that prevents making the target."""
    look = partial(_is_folder, rootfs)
    return mount_points.in_the_way(target, look) is None and look(target) is None


def has_folder(rootfs: str, target: str) -> bool:
    """Return whether an image has a folder at ``target``, without following links."""
    return mount_points.in_the_way(target, partial(_is_folder, rootfs)) is None and not lacks(rootfs, target)


def _is_folder(rootfs: str, path: str) -> Optional[bool]:
    state = files.status(rootfs + path, follow=False)
    return None if state is None else stat.S_ISDIR(state.st_mode)
