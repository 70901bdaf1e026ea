"""A job's command and standard input, checked in the installed image before anything is submitted."""

import errno
import os
import stat
from typing import Optional, Sequence, Set

from deployer.contract.base.errors import Refused
from deployer.contract.bundle import command
from deployer.contract.bundle.command import CommandProblem, CommandSearch, PathInfo
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import BIN, Image
from deployer.contract.rules import hostfiles
from deployer.contract.rules.findings import finding
from deployer.contract.site.plan import APP, JOB, Plan
from deployer.site.container.runtimes.interface import Mount
from deployer.site.storage.store import InstalledImage
from deployer.system import files

_LINE = 256  # the part of a script's first line that the kernel reads, in bytes
_HOST_PROGRAMS = os.path.basename(hostfiles.PROGRAMS) + "/"


def refuse(installed: InstalledImage, image: Image, plan: Plan, job: Job, binds: Sequence[Mount]) -> None:
    """Raise Refused if the command of ``job`` cannot start in the image, or if its standard input is missing.

    Only certain problems count. The content of the targets of ``binds`` is not part of the image.
    """
    where = place(installed, image, plan, [bind.target for bind in binds if bind.target != APP])
    where = where._replace(workdir=command.workdir(job.workdir, image.workdir))
    problem = command.missing_of(job, where)
    if job.stdin:
        problem = problem or _missing_in_binds(job.stdin, binds) or command.missing_input(job.stdin, where)
    if problem:
        item = finding("command.missing", f"job {job.name}", reason=problem.reason, remedy=problem.remedy)
        raise Refused(f"{item.subject}: {item.code}: {item.message}", item.remedy)


def place(installed: InstalledImage, image: Image, plan: Plan, outside: Sequence[str]) -> CommandSearch:
    """Return where to search for commands; ``outside`` are the targets of binds."""

    def look(path: str) -> Optional[PathInfo]:
        if path == APP or path.startswith(APP + "/"):
            return _seen(installed.app + path[len(APP) :], own=True)
        return _seen(installed.rootfs + path)

    environment = command.variables(image.env)
    path = ":".join(filter(None, (environment.get("PATH", command.DEFAULT_PATH), plan.environment.get("PATH"))))
    return CommandSearch(look, path, _programs(installed, plan), None, outside)


def _missing_in_binds(stdin: str, binds: Sequence[Mount]) -> Optional[CommandProblem]:
    """Return a problem if ``stdin`` is in a bound folder that exists on this host, but the file does not."""
    over = [bind for bind in binds if stdin.startswith(bind.target + "/") and bind.target not in (APP, JOB)]
    if not over:
        return None
    bind = max(over, key=lambda mount: len(mount.target))
    path = bind.source
    if not isinstance(path, str):
        return None  # a folder that only nodes have
    seen = _seen(path)
    for name in stdin[len(bind.target) :].strip("/").split("/"):
        if seen is None or seen.kind != command.FOLDER:
            return None  # a link may lead elsewhere in the container
        path = os.path.join(path, name)
        seen = _seen(path)
        if seen is None:
            hint = "correct `stdin` of the job, or bind another folder; --force, if only the nodes have the file"
            return CommandProblem(f"this host has no {path}, which is the job's stdin, {stdin}", hint)
    return None


def _programs(installed: InstalledImage, plan: Plan) -> Set[str]:
    """Return the programs that the bundle's wheels and the host provide."""
    programs = {item.name[len(_HOST_PROGRAMS) :] for item in plan.host if item.name.startswith(_HOST_PROGRAMS)}
    for folder in (installed.wheels, installed.variant(plan.abi) if plan.abi else None):
        if folder and files.is_folder(os.path.join(folder, BIN)):
            programs.update(os.listdir(os.path.join(folder, BIN)))
    return programs


def _seen(path: str, own: bool = False) -> Optional[PathInfo]:
    """Return what a host path contains; a path without permission counts as unknown."""
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
