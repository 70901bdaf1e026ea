"""Homes: each job has a folder of its own on each of its nodes, and so has each process of ``exec`` and ``shell``.

It is HOME and TMPDIR in the container. /tmp itself, which the container shares with the host, is everybody's: another
user's ``/tmp/.bashrc``, or a ``.pth`` file below ``/tmp/.local``, would run as this user. How a folder there can be
private: see ``private``.

What a killed job left is removed when this user's next home is made on the node.
"""

import os
import stat
import uuid
from contextlib import contextmanager
from typing import Iterator

from deployer.contract.errors import DeployerError, UsageError
from deployer.site.container import node_folder
from deployer.system import afterwards, files

#: A home's path is this, the user's number, a hyphen, and what nobody can guess. /tmp exists in every image, is
#: writable, and is the node's own.
BEGIN = "/tmp/deployer-home-"  # noqa: S108
#: Seconds for which a home that no process names may still be in use: between two steps of a job there is none.
_STALE = 3600.0


def make(path: str) -> None:
    """Make the folder ``path``, which must not be there, for this user alone; reap what dead jobs left beside it."""
    reap()
    node_folder.make(path, "programs need a folder of their own there on each node: is it full, or closed to users?")


def for_process() -> str:
    """Make and return a home for this process and the program that it becomes; it is removed after their end."""
    # Slurm ends what waits for the end of a step's process: then the name tells the next start whose it was.
    path = "%s-%d.%s" % (_new(), os.getpid(), afterwards.began(os.getpid()))
    make(path)
    afterwards.run(lambda: files.remove_tree(path))
    return path


@contextmanager
def temporary() -> Iterator[str]:
    """Yield a home for the time of the block."""
    path = _new()
    make(path)
    try:
        yield path
    finally:
        files.remove_tree(path)


def check_chosen(folder: str) -> str:
    """Return the path of a home that the user names; raises UsageError unless it is a folder of this user's alone."""
    path = os.path.abspath(os.path.expanduser(folder))
    found = files.status(path)
    if found is None or not stat.S_ISDIR(found.st_mode):
        raise UsageError("--home %s: there is no folder %s" % (folder, path), "make it first: mkdir -m 700 DIR")
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise UsageError(
            "--home %s: others can write to %s, and what they put there would run as you" % (folder, path),
            "choose a folder of your own, and close it: chmod go-w DIR",
        )
    return path


def reap() -> None:
    """Remove the homes of this user that no process has any more."""
    for path in node_folder.own(BEGIN):
        if _is_abandoned(path) and not _is_named(path):
            try:
                files.remove_tree(path)
            except (OSError, DeployerError):
                continue  # another start of ours may be at it too


def _is_abandoned(path: str) -> bool:
    """Return whether the process whose home it is has ended, or nothing happened in a job's home for long."""
    pid, _, start = path.rpartition("-")[2].partition(".")
    if start and pid.isdigit():
        return afterwards.began(int(pid)) != start
    return node_folder.age(path) > _STALE


def _is_named(path: str) -> bool:
    """Return whether a process of this user has ``path`` in its environment or its words."""
    wanted = os.fsencode(path)
    return any(wanted in _text(name, what) for name in os.listdir("/proc") for what in ("environ", "cmdline"))


def _text(process: str, what: str) -> bytes:
    """Return what the kernel knows of a process of this user; nothing for others, and for what is gone."""
    if not process.isdigit() or int(process) == os.getpid():
        return b""
    try:
        with open("/proc/%s/%s" % (process, what), "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def _new() -> str:
    return "%s%d-%s" % (BEGIN, os.getuid(), uuid.uuid4())
