"""A job's command, looked up in the installed image before anything is submitted."""

import errno
import os
import stat
from typing import Optional, Sequence, Set

from deployer.contract import command, hostfiles, wheel
from deployer.contract.command import PathInfo, Place
from deployer.contract.errors import Refused
from deployer.contract.findings import finding
from deployer.contract.job import Job
from deployer.contract.manifest import Image
from deployer.contract.plan import APP, Plan
from deployer.site.storage.store import InstalledImage
from deployer.system import files

_LINE = 256  # what the kernel reads of a script's first line
_HOST_PROGRAMS = os.path.basename(hostfiles.PROGRAMS) + "/"


def refuse(installed: InstalledImage, image: Image, plan: Plan, job: Job, bound: Sequence[str]) -> None:
    """Raise Refused where the command of ``job`` cannot start in the image, as far as that is certain; ``bound`` are
    folders that are not the image's own."""

    def look(path: str) -> Optional[PathInfo]:
        if path == APP or path.startswith(APP + "/"):
            return _seen(installed.app + path[len(APP) :], own=True)
        return _seen(installed.rootfs + path)

    environment = dict(entry.partition("=")[::2] for entry in image.env)
    path = ":".join(filter(None, (environment.get("PATH", command.DEFAULT_PATH), plan.environment.get("PATH"))))
    outside = [target for target in bound if target != APP]
    here = command.workdir(job.workdir, image.workdir)
    found = command.missing(job.command, Place(look, path, _programs(installed, plan), here, outside))
    if found:
        item = finding("command.missing", "job %s" % job.name, reason=found.reason, remedy=found.remedy)
        raise Refused("%s: %s: %s" % (item.subject, item.code, item.message), item.remedy)


def _programs(installed: InstalledImage, plan: Plan) -> Set[str]:
    """Return the programs that the bundle's wheels and the host bring."""
    found = {item.name[len(_HOST_PROGRAMS) :] for item in plan.host if item.name.startswith(_HOST_PROGRAMS)}
    for folder in (installed.wheels, installed.variant(plan.abi) if plan.abi else None):
        if folder and files.is_folder(os.path.join(folder, wheel.BIN)):
            found.update(os.listdir(os.path.join(folder, wheel.BIN)))
    return found


def _seen(path: str, own: bool = False) -> Optional[PathInfo]:
    """Return what is at a path of the host; what cannot be looked at is not known."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return PathInfo(command.LINK, os.readlink(path))
        if stat.S_ISDIR(mode):
            return PathInfo(command.FOLDER)
        if not stat.S_ISREG(mode):
            return PathInfo(command.UNKNOWN)
        line = None
        if mode & 0o111:
            with open(path, "rb") as stream:
                line = command.first_line(stream.read(_LINE), own)
        return PathInfo(command.FILE, "", bool(mode & 0o111), line)
    except OSError as error:
        return None if error.errno in (errno.ENOENT, errno.ENOTDIR) else PathInfo(command.UNKNOWN)
