"""The record of who did what under a root folder: ROOT/events.jsonl, one JSON object per line.

Each line is one write to a file that is only ever appended to, so lines of several processes do not mix on a local file
system. It is a record, not a protection: its owner can change it, unless root forbids that (``chattr +a``).
"""

import os
import socket
import time
from typing import Iterator, NamedTuple, Optional

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import DeployerError
from deployer.site.storage import group
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files, terminal

FILE = "events.jsonl"
#: The user who logged in, which `su` and `sudo` do not change, and its value if nobody did.
_LOGIN, _NO_LOGIN = "/proc/self/loginuid", 2**32 - 1
#: Variables with a process's number among those of a launcher's step.
_RANKS = ("SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


class Event(NamedTuple):
    """Something that a user did.

    Attributes:
        time: seconds since the epoch.
        action: the command.
        user: who did it.
        uid: the same, as a number.
        host: where.
        login: who had logged in, if that is another user.
        bundle: NAME:VERSION.
        digest: the bundle's digest.
        store: the root folder with the image, if it is a group's.
        job: the name of the job.
        job_id: its number in the batch system.
    """

    time: int
    action: str
    user: str
    uid: int
    host: str
    login: str = ""
    bundle: str = ""
    digest: str = ""
    store: str = ""
    job: str = ""
    job_id: str = ""


def note(root: str, action: str, bundle: str = "", digest: str = "", **more: str) -> None:
    """Append an event. If that fails, a warning is printed: on a full disk, `gc` must still work."""
    uid = os.getuid()
    event = Event(int(time.time()), action, group.user(uid), uid, socket.gethostname(), _login(uid), bundle, digest)
    line = json_records.dumps(json_records.stamped("event", records.short(event._replace(**more))))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(os.path.join(root, FILE), flags, 0o666)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as error:
        terminal.warn(f"cannot write to {os.path.join(root, FILE)}: {error.strerror}")


def note_image(store: Store, action: str, image: InstalledImage, **more: str) -> None:
    """Append an event about an installed image, which may be a group's."""
    receipt, place = image.receipt, image.store.root
    note(store.root, action, receipt.label, receipt.digest, store="" if place == store.root else place, **more)


def is_first() -> bool:
    """Return whether this process is the first of a launcher's step, or in none: thousands need not be noted."""
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


def _login(uid: int) -> str:
    try:
        login = int(files.read_text(_LOGIN))
    except (DeployerError, ValueError):
        return ""
    return "" if login in (uid, _NO_LOGIN) else group.user(login)


def read(root: str) -> Iterator[Optional[Event]]:
    """Yield the events, the oldest first; None for a line that is not one."""
    path = os.path.join(root, FILE)
    if not files.lexists(path):
        return
    with files.errors_named("read " + path), files.open_regular(path, follow=False) as stream:
        for line in stream:
            try:
                yield records.read(Event, json_records.loads(line, "event", path))
            except DeployerError:
                yield None
