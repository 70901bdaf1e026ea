"""Homes: private folders for each job on each of its nodes, and for each process of ``exec`` and ``shell``.

A home is HOME and TMPDIR in the container. /tmp itself cannot be used: the container shares it with the host, and all
users can write to it. Another user's ``/tmp/.bashrc``, or a ``.pth`` file below ``/tmp/.local``, would run as this
user. ``node_folder`` explains how a folder in /tmp can be private.

The homes of killed jobs are removed when the user's next home is made on the node.
"""

import os
import stat
from contextlib import contextmanager, suppress
from typing import Callable, Iterator

from deployer.contract.base.errors import DeployerError, UsageError
from deployer.site.capture.tools import read_text
from deployer.site.container import node_folder
from deployer.system import afterwards, files

#: The path of a home consists of this, the user's number, a hyphen, and random characters. /tmp exists in every image,
#: is writable, and is local to the node.
BEGIN = "/tmp/deployer-home-"  # noqa: S108
#: The name of the link from a job's home to the job's folder.
_JOB = ".deployer-job"
#: Seconds for which a home without a process counts as in use: a job has no process between two steps.
_STALE = 3600.0


def make(path: str, job: str = "", has_ended: Callable[[str], bool] = lambda _: False) -> None:
    """Make the new folder ``path`` for this user only, and remove the homes of dead jobs beside it.

    Args:
        job: the folder of its job; empty for the home of a process.
        has_ended: returns whether the job in a folder has ended.
    """
    reap(has_ended)
    node_folder.make(path, "programs need a folder of their own there on each node: is it full, or closed to users?")
    if job:
        os.symlink(job, os.path.join(path, _JOB))


def for_process() -> str:
    """Make and return a home for this process and the program that it becomes; it is removed after their end."""
    # The name contains the owner, because Slurm kills the process that waits for the end of a step's process.
    path = "%s-%d.%s" % (_new(), os.getpid(), afterwards.began(os.getpid()))
    make(path)
    afterwards.run(lambda: files.remove_tree(path))
    return path


@contextmanager
def temporary() -> Iterator[str]:
    """Yield a home for the duration of the block."""
    path = _new()
    make(path)
    try:
        yield path
    finally:
        files.remove_tree(path)


def check_chosen(folder: str) -> str:
    """Return the path of a home that the user chose. Raises UsageError unless only this user can write to it."""
    path = os.path.abspath(os.path.expanduser(folder))
    state = files.status(path)
    if state is None or not stat.S_ISDIR(state.st_mode):
        raise UsageError(f"--home {folder}: there is no folder {path}", "make it first: mkdir -m 700 DIR")
    if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o022:
        raise UsageError(
            f"--home {folder}: others can write to {path}, and files that they put there would run as you",
            "choose a folder of your own, and close it: chmod go-w DIR",
        )
    return path


def reap(has_ended: Callable[[str], bool] = lambda _: False) -> None:
    """Remove this user's homes that no process uses any more."""
    for path in node_folder.own(BEGIN):
        # No process of this user may have the path in its environment or arguments.
        texts = (_text(name, what) for name in os.listdir("/proc") for what in ("environ", "cmdline"))
        if not any(path in text for text in texts) and _is_abandoned(path, has_ended):
            with suppress(OSError, DeployerError):  # another process of this user may be removing it too
                files.remove_tree(path)


def _is_abandoned(path: str, has_ended: Callable[[str], bool]) -> bool:
    """Return whether the home's process or job has ended, or a job's home was unchanged for a long time."""
    pid, _, start = path.rpartition("-")[2].partition(".")
    if start and pid.isdigit():
        return afterwards.began(int(pid)) != start
    if node_folder.age(path) > _STALE:
        return True
    try:
        return has_ended(os.readlink(os.path.join(path, _JOB)))
    except OSError:
        return False


def _text(process: str, what: str) -> str:
    """Return the kernel's data on a process; empty for this one, other users' processes and ended ones."""
    is_other = process.isdigit() and int(process) != os.getpid()
    return read_text(f"/proc/{process}/{what}") if is_other else ""


def _new() -> str:
    return "%s%d-%s" % (BEGIN, os.getuid(), os.urandom(16).hex())
