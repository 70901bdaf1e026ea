"""Folders that are being made or removed, each with a unique name that identifies its owner.

The form of a name is ``.installing-HOST-PID-START-RANDOM``. The process and its start time (in clock ticks since the
host's boot, /proc/PID/stat) distinguish a living owner from a later process with the same number. They are in the name
because mkdir and rename are atomic, while a separate file would not be. The next process that checks removes the folder
of a killed process. On the same host, this is immediate; on another host, where the owner cannot be checked, it happens
after a day.
"""

import errno
import os
import socket
import time
from contextlib import contextmanager, suppress
from typing import Callable, Iterator, List, Optional

from deployer.contract.base.errors import UsageError
from deployer.system import afterwards, files

INSTALLING, REMOVING = ".installing-", ".removing-"
_PREFIXES = (INSTALLING, REMOVING)
#: Seconds after which an unchanged folder from another host is removed.
STALE = 24 * 3600
#: errno values of a rename to the name of a non-empty folder.
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


@contextmanager
def folder(parent: str) -> Iterator[str]:
    """Yield a new folder in ``parent``, and remove it if its name still exists at the end of the block.

    Its mode depends on the umask. In a setgid parent, it gets the parent's group.
    """
    path = _name(parent, INSTALLING)
    os.mkdir(path)
    try:
        yield path
    finally:
        files.remove_tree(path)


def publish(new: str, path: str, good: Callable[[], bool]) -> None:
    """Rename the finished folder ``new`` to ``path``, and replace an existing folder there unless it is ``good``."""
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
        needed: called after the name is removed; if it returns True, the name is restored.
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
        except OSError as error:  # another process has made it again
            if error.errno not in _TAKEN:
                raise
    files.remove_tree(doomed)


def stale(parent: str) -> List[str]:
    """Return the temporary folders in ``parent`` without an owner."""
    names = files.names(parent)
    paths = [os.path.join(parent, name) for name in names if name.startswith(_PREFIXES)]
    return [path for path in paths if not _is_alive(path)]


def reap(parent: str) -> None:
    """Remove abandoned folders in ``parent``, except those of other users that cannot be removed."""
    for path in stale(parent):
        with suppress(OSError, UsageError):
            files.remove_tree(path)


def _name(parent: str, prefix: str) -> str:
    pid = os.getpid()
    random = os.urandom(4).hex()
    return os.path.join(
        parent, "%s%s-%d-%s-%s" % (prefix, socket.gethostname(), pid, afterwards.began(pid) or "0", random)
    )


def _is_alive(path: str) -> bool:
    """Return whether the owner of a temporary folder is alive, or may be alive because it cannot be checked."""
    parts = os.path.basename(path).split("-", 1)[1].rsplit("-", 3)
    if len(parts) == 4 and parts[0] == socket.gethostname() and parts[1].isdigit():
        return afterwards.began(int(parts[1])) == parts[2]
    inner = (path, os.path.join(path, "rootfs"))
    return time.time() - max([os.stat(where).st_mtime for where in inner if files.exists(where)] or [0]) < STALE
