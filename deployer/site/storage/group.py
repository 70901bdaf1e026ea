"""A group's store: another root folder, whose images this user's jobs run and whose owner alone can change them.

::

    ROOT/group-store.json       the store that a root folder uses, and its owner, as they were at `join`
    STORE/uses/DIGEST-UID       empty; its time is that of a user's last job. Only if the owner made STORE/uses

Nothing in the store is trusted for its content: its paths must belong to root or the owner, and nobody else may be able
to write to them. The kernel keeps that so. A POSIX ACL that lets others write shows in the bits of the group.
"""

import os
import pwd
import stat
import time
from contextlib import suppress
from typing import Dict, Iterable, NamedTuple, Optional, Set

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import Refused, UsageError
from deployer.system import files

RECORD, SCHEMA, USES = "group-store.json", "group-store", "uses"
#: What jobs use of a store. Others of its folders are its owner's alone.
_USED = ("images", "layers", "bundles")
#: The owner of all files on servers that hide who owns them, so that ownership proves nothing.
_NOBODY = 65534
#: Seconds for which an image counts as used after a job was submitted.
_IN_USE = 14 * 86400


class GroupStore(NamedTuple):
    """The store that a root folder uses.

    Attributes:
        folder: its path, without links.
        owner: the uid of the user who may change it, besides root.
    """

    folder: str
    owner: int


def user(uid: int) -> str:
    """Return a user's name, or the uid of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "uid %d" % uid


def read(root: str) -> Optional[GroupStore]:
    """Return the store that a root folder uses; None: none. Raises UsageError for a damaged record."""
    path = os.path.join(root, RECORD)
    if not files.lexists(path):
        return None
    return records.read(GroupStore, json_records.loads(files.read_bytes(path), SCHEMA, path))


def join(root: str, folder: str) -> GroupStore:
    """Let a root folder use the store ``folder``, after a look at all its files, and return it.

    Raises:
        UsageError: it is not a root folder with images, or ``root`` itself.
        Refused: others than its owner can change it, or ``root`` knows another store or owner.
    """
    real = os.path.realpath(folder)
    state = files.status(os.path.join(real, _USED[0]))
    if state is None or real == os.path.realpath(root):
        raise UsageError(f"{folder} is not the root folder of somebody's images", "join STORE --root YOUR_OWN_ROOT")
    store, before = GroupStore(real, state.st_uid), read(root)
    if before not in (None, store):
        text = f"{root} uses {before.folder} of {user(before.owner)}, not {real} of {user(store.owner)}"
        raise Refused(text, f"if the new one is right, remove {os.path.join(root, RECORD)} first")
    inside = (each for name in _USED for each in os.walk(os.path.join(real, name)))
    check(store, [os.path.join(top, name) for top, folders, names in inside for name in folders + names])
    files.write_text(os.path.join(root, RECORD), json_records.pretty(json_records.stamped(SCHEMA, store._asdict())))
    return store


def check(store: GroupStore, paths: Iterable[str]) -> None:
    """Raise Refused unless only root and the owner can change what ``paths`` in the store lead to.

    The last part of a path may be a link: in a folder that only the owner can change, it is the owner's.
    """
    ends = {*paths, *(os.path.join(store.folder, name) for name in _USED[:2])}
    above: Set[str] = set()
    for path in ends:
        while os.path.dirname(path) not in above:
            path = os.path.dirname(path)
            above.add(path)
    for path in sorted(above | ends):
        state = files.status(path, follow=False)
        fault = _fault(state, store, path, path not in above) if state else "it is gone"
        if fault:
            raise Refused(
                f"the group's store cannot be trusted: {path}: {fault}",
                f"ask {user(store.owner)}: chmod -R go-w, chmod +t above it; or remove {RECORD} from your root folder",
            )


def _fault(state: os.stat_result, store: GroupStore, path: str, is_end: bool) -> str:
    """Return why others than root and the owner can change a path; empty: they cannot."""
    if state.st_uid not in (0, store.owner) or state.st_uid == _NOBODY:
        return f"it belongs to {user(state.st_uid)}, not to {user(store.owner)} or root"
    if stat.S_ISLNK(state.st_mode):
        return "" if is_end else "it has become a link"
    is_above = store.folder.startswith(path.rstrip("/") + "/")  # where a sticky bit, as that of /tmp, is enough
    if state.st_mode & 0o022 and not (is_above and state.st_mode & stat.S_ISVTX):
        return "its group or others can write to it (mode %o)" % stat.S_IMODE(state.st_mode)
    return ""


def mark(folders: Iterable[str]) -> None:
    """Note in the store that this user uses the images in ``folders``, if its owner made a folder for that."""
    for folder in folders:
        with suppress(OSError):  # without the folder, or if another user has the name: `uses` shows that
            files.append("%s-%d" % (_mark(folder), os.getuid()), b"")


def uses(folder: str) -> Dict[str, int]:
    """Return who used the image in ``folder`` from other root folders, and when, in seconds since the epoch.

    Members can write any names, but only as themselves. A mark with another user's name counts as a use now.
    """
    found: Dict[str, int] = {}
    (place, begin), now = os.path.split(_mark(folder)), time.time()
    for name in (name for name in files.names(place) if name.startswith(begin + "-")):
        state = files.status(os.path.join(place, name), follow=False)
        if state:
            who, is_own = user(state.st_uid), name == "%s-%d" % (begin, state.st_uid)
            found[who] = max(found.get(who, 0), int(min(state.st_mtime, now) if is_own else now))
    return found


def _mark(folder: str) -> str:
    images, name = os.path.split(folder)
    return os.path.join(os.path.dirname(images), USES, name)


def check_unused(folder: str, label: str) -> None:
    """Raise Refused if members used an image lately: their jobs are in root folders that are not known here."""
    lately = [name for name, last in sorted(uses(folder).items()) if last > time.time() - _IN_USE]
    if lately:
        raise Refused(f"{label} was used in the last 14 days by {', '.join(lately)}", "ask them, or --force")
