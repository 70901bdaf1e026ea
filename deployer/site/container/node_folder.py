"""Private folders in places that all users of a node share, such as /tmp and /dev/shm.

A name there proves nothing: another user may have taken it before. So a private folder has a name that nobody can know
beforehand, and it is made anew or not at all. Whoever uses it later looks again whose it is.
"""

import glob
import os
import stat
import time
from typing import Iterator

from deployer.contract.errors import Refused
from deployer.system import files


def make(path: str, hint: str) -> None:
    """Make the folder ``path``, which must not be there, for this user alone."""
    check_place(os.path.dirname(path))
    with files.errors_named("make " + path, hint):
        os.mkdir(path, 0o700)  # fails for whatever is there, a link as well
    check(path)


def check_place(place: str) -> None:
    """Raise Refused for a place where other users can rename what is ours."""
    found = files.status(place)
    if found and found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        why = "every user can rename what is in %s: its sticky bit is not set" % place
        raise Refused(why, "use another place (--staging folder), and ask the site for: chmod +t %s" % place)


def check(path: str) -> None:
    """Raise Refused unless ``path`` is a folder, not a link to one, that this user owns and nobody else can enter."""
    if not is_own(path):
        hint = "somebody else made or opened it, or the file system changes owners: ask the site"
        raise Refused("%s is not this user's own folder" % path, hint)


def is_own(path: str) -> bool:
    """Return whether ``path`` is a folder of this user that nobody else can enter."""
    found = files.status(path, follow=False)
    if found is None or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    return not stat.S_IMODE(found.st_mode) & 0o077


def own(begin: str) -> Iterator[str]:
    """Yield the private folders of this user whose paths are ``begin``, the user's number, a hyphen, and anything."""
    for path in glob.glob("%s%d-*" % (glob.escape(begin), os.getuid())):
        if is_own(path):
            yield path


def age(path: str) -> float:
    """Return the seconds since something in the folder itself was made or removed; 0 for what is gone."""
    found = files.status(path, follow=False)
    return time.time() - found.st_mtime if found else 0.0
