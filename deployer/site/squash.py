"""squash: an installed image as one SquashFS file, which nodes hold compressed in memory and mount once.

It is made by the site's own mksquashfs, from the installed folder, with all that a rank reads inside: so it needs no
bind but the site's. mksquashfs takes each of its sources into the root of the image, so what stands in ``/deployer``
is put together beside, by hard links.
"""

import os
import shutil
from typing import List

from deployer.contract import plan as plans
from deployer.contract.errors import MissingTool
from deployer.site import temporary
from deployer.site.store import VARIANTS, Installed
from deployer.system import files, process

IMAGE = "image.sqfs"
PROGRAM = "mksquashfs"

#: Seconds; a root of 2 GB takes 6 on two cores with zstd, a minute and more with gzip.
_PATIENCE = 3600
_INNER = os.path.dirname(plans.APP)


def path(folder: str) -> str:
    """Return where the SquashFS file of the image in ``folder`` is, if it was made."""
    return os.path.join(folder, IMAGE)


def variant(abi: str) -> str:
    """Return where a SquashFS image has the variant of Horovod for an ABI: it has them all."""
    return "%s/%s/%s" % (_INNER, VARIANTS, abi)


def make(image: Installed, jobs: int) -> str:
    """Make the SquashFS file of an installed image, whole or not at all, and return its path.

    Raises MissingTool where the site has no mksquashfs, SpaceError, JobFailed.
    """
    target = path(image.folder)
    if shutil.which(PROGRAM) is None:
        raise MissingTool("no %s in PATH" % PROGRAM, "squashfs-tools of the site; or leave out --squashfs")
    with files.errors_named("write " + target), temporary.folder(os.path.dirname(image.folder)) as work:
        inner = os.path.join(work, _INNER.strip("/"))
        _inner(image, inner)
        made = os.path.join(work, IMAGE)
        names = [name for name in sorted(os.listdir(image.rootfs)) if "/" + name != _INNER]
        sources = [os.path.join(image.rootfs, name) for name in names] + [inner]
        options = ["-all-root", "-no-progress", "-quiet", "-processors", str(jobs), *_compression()]
        process.run([PROGRAM, *sources, made, *options], _PATIENCE)
        os.replace(made, target)
    return target


def _inner(image: Installed, inner: str) -> None:
    """Put together what ranks find below /deployer."""
    os.makedirs(inner)
    inside = [(image.app, plans.APP), (image.wheels, plans.WHEELS)]
    inside.append((os.path.join(image.folder, VARIANTS), _INNER + "/" + VARIANTS))
    for source, target in inside:
        place = os.path.join(inner, os.path.relpath(target, _INNER))
        if os.path.isdir(source):
            shutil.copytree(source, place, symlinks=True, copy_function=_link)
    for folder in (*plans.MOUNT_FOLDERS, plans.NODE):
        if folder.startswith(_INNER + "/"):
            os.makedirs(os.path.join(inner, os.path.relpath(folder, _INNER)), exist_ok=True)
    if os.path.isfile(image.rootfs + plans.CANARY):
        _link(image.rootfs + plans.CANARY, os.path.join(inner, os.path.relpath(plans.CANARY, _INNER)))
    with open(os.path.join(inner, os.path.relpath(plans.TOOL, _INNER)), "w"):
        pass


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links, or one that counts too many of them
        shutil.copy2(source, target)


def _compression() -> List[str]:
    """Return options for zstd where mksquashfs knows it: gzip takes ten times as long to make, and to read."""
    said = process.run([PROGRAM, "-help"], 60, check=False)
    return ["-comp", "zstd", "-Xcompression-level", "3"] if "zstd" in said.stdout + said.stderr else []
