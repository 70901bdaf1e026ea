"""Private folders in places that all users of a node share, such as /tmp and /dev/shm.

A name in such a place is not safe, because another user may have taken it first. Therefore a private folder has an
unpredictable name and must be new when it is made. Later uses check its owner again.
"""

import glob
import os
import stat
import time
from typing import Iterator

from deployer.contract.base.errors import Refused
from deployer.system import files


def make(path: str, hint: str) -> None:
    """Make the new folder ``path`` for this user only."""
    check_place(os.path.dirname(path))
    with files.errors_named("make " + path, hint):
        os.mkdir(path, 0o700)  # fails if anything exists there, including a link
    check(path)


def check_place(place: str) -> None:
    """Raise Refused for a place in which other users can rename this user's folders."""
    state = files.status(place)
    if state and state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX:
        why = f"every user can rename files in {place}: its sticky bit is not set"
        raise Refused(why, f"use another place (--staging folder), and ask the site for: chmod +t {place}")


def check(path: str) -> None:
    """Raise Refused unless ``path`` is a folder (not a link) that this user owns and no other user can access."""
    if not is_own(path):
        hint = "another user made or opened it, or the file system changes owners: ask the site"
        raise Refused(f"{path} is not this user's own folder", hint)


def is_own(path: str) -> bool:
    """Return whether ``path`` is a folder that this user owns and no other user can access."""
    state = files.status(path, follow=False)
    if state is None or not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        return False
    return not stat.S_IMODE(state.st_mode) & 0o077


def own(begin: str) -> Iterator[str]:
    """Return this user's private folders whose paths are ``begin``, the user's number, a hyphen, and any characters."""
    return filter(is_own, glob.glob("%s%d-*" % (glob.escape(begin), os.getuid())))


def age(path: str) -> float:
    """Return the seconds since an entry in the folder was made or removed; 0 if the folder does not exist."""
    state = files.status(path, follow=False)
    return time.time() - state.st_mtime if state else 0.0
