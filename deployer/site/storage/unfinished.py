"""Folders under construction or on their way out: each has a unique name that says whose it is.

A name is ``.installing-HOST-PID-START-RANDOM``: the process and the time of its start (in clock ticks since the host's
boot, /proc/PID/stat) tell a living owner from a later process with the same number. They stand in the name because
mkdir and rename are atomic, and a file beside would not be. What a killed process left is removed by the next that
looks: at once where its host is this one, after a day where only its own host could tell.
"""

import binascii
import os
import socket
import time
from contextlib import contextmanager
from typing import Iterator, List

from deployer.contract.errors import UsageError
from deployer.system import afterwards, files

INSTALLING, REMOVING = ".installing-", ".removing-"
_PREFIXES = (INSTALLING, REMOVING)
#: A folder of another host is removed when nobody wrote to it for this long, in seconds.
STALE = 24 * 3600


@contextmanager
def folder(parent: str) -> Iterator[str]:
    """Yield a new folder in ``parent``; what is still there under its name at the end of the block is removed.

    It has the rights that the umask leaves and, in a setgid parent, the parent's group.
    """
    path = _name(parent, INSTALLING)
    os.mkdir(path)
    try:
        yield path
    finally:
        files.remove_tree(path)


def discard(path: str) -> None:
    """Remove the folder ``path``: first its name, at once and for all, then what is in it."""
    doomed = _name(os.path.dirname(path), REMOVING)
    try:
        os.rename(path, doomed)
    except FileNotFoundError:
        return  # another was first
    files.remove_tree(doomed)


def stale(parent: str) -> List[str]:
    """Return the temporary folders in ``parent`` that belong to nobody any more."""
    names = files.names(parent)
    paths = [os.path.join(parent, name) for name in names if name.startswith(_PREFIXES)]
    return [path for path in paths if not _is_alive(path)]


def reap(parent: str) -> None:
    """Remove what is stale in ``parent``, as far as it may be removed: another user's is for them to remove."""
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
    """Return whether the owner of a temporary folder lives, or cannot be asked and may live."""
    parts = os.path.basename(path).split("-", 1)[1].rsplit("-", 3)
    if len(parts) == 4 and parts[0] == socket.gethostname() and parts[1].isdigit():
        return afterwards.began(int(parts[1])) == parts[2]
    inner = (path, os.path.join(path, "rootfs"))
    return time.time() - max([os.stat(where).st_mtime for where in inner if files.exists(where)] or [0]) < STALE
