"""Folders under construction or being removed: each has a unique name that identifies its owner.

A name is ``.installing-HOST-PID-START-RANDOM``. The process and the time of its start (in clock ticks since the host's
boot, /proc/PID/stat) distinguish a living owner from a later process with the same number. They are in the name because
mkdir and rename are atomic, and a separate file would not be. A killed process's folder is removed by the next process
that looks: at once on the same host, on another host after a day, because the owner cannot be checked there.
"""

import binascii
import errno
import os
import socket
import time
from contextlib import contextmanager
from typing import Callable, Iterator, List, Optional

from deployer.contract.errors import UsageError
from deployer.system import afterwards, files

INSTALLING, REMOVING = ".installing-", ".removing-"
_PREFIXES = (INSTALLING, REMOVING)
#: Seconds after which an unchanged folder of another host is removed.
STALE = 24 * 3600
#: errno of a rename to the name of a folder that is not empty.
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


@contextmanager
def folder(parent: str) -> Iterator[str]:
    """Yield a new folder in ``parent``; if its name still exists at the end of the block, it is removed.

    Its mode depends on the umask; in a setgid parent it has the parent's group.
    """
    path = _name(parent, INSTALLING)
    os.mkdir(path)
    try:
        yield path
    finally:
        files.remove_tree(path)


def publish(new: str, path: str, good: Callable[[], bool]) -> None:
    """Rename the finished folder ``new`` to ``path``, in place of what is there; a good one is kept instead."""
    while True:
        try:
            os.rename(new, path)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            if good():
                return
            discard(path)
        else:
            return


def discard(path: str, needed: Optional[Callable[[], bool]] = None) -> None:
    """Remove the folder ``path``: first its name, in one step, then its content.

    Args:
        needed: called when the name is gone; if it returns True, the folder gets its name back.
    """
    doomed = _name(os.path.dirname(path), REMOVING)
    try:
        os.rename(path, doomed)
    except FileNotFoundError:
        return  # another process was first
    if needed and needed():
        try:
            os.rename(doomed, path)
            return
        except OSError as error:  # another process has made it anew
            if error.errno not in _TAKEN:
                raise
    files.remove_tree(doomed)


def stale(parent: str) -> List[str]:
    """Return the temporary folders in ``parent`` without an owner."""
    names = files.names(parent)
    paths = [os.path.join(parent, name) for name in names if name.startswith(_PREFIXES)]
    return [path for path in paths if not _is_alive(path)]


def reap(parent: str) -> None:
    """Remove abandoned folders in ``parent``, if permitted: those of other users stay."""
    for path in stale(parent):
        try:
            files.remove_tree(path)
        except (OSError, UsageError):
            continue


def _name(parent: str, prefix: str) -> str:
    pid = os.getpid()
    random = binascii.hexlify(os.urandom(4)).decode()
    return os.path.join(
        parent, "%s%s-%d-%s-%s" % (prefix, socket.gethostname(), pid, afterwards.began(pid) or "0", random)
    )


def _is_alive(path: str) -> bool:
    """Return whether the owner of a temporary folder lives, or may live because it cannot be checked."""
    parts = os.path.basename(path).split("-", 1)[1].rsplit("-", 3)
    if len(parts) == 4 and parts[0] == socket.gethostname() and parts[1].isdigit():
        return afterwards.began(int(parts[1])) == parts[2]
    inner = (path, os.path.join(path, "rootfs"))
    return time.time() - max([os.stat(where).st_mtime for where in inner if files.exists(where)] or [0]) < STALE
