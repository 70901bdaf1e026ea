"""The record of who did what under a root folder: ROOT/events.jsonl, one JSON object per line.

Each line is one write to a file that is only ever appended to, so lines of several processes do not mix on a local file
system. It is a record, not a protection: its owner can change it, unless root forbids that (``chattr +a``).
"""

import os
import socket
import time
from contextlib import suppress
from typing import List, NamedTuple, Optional

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import DeployerError
from deployer.contract.base.text import counted
from deployer.site.storage import group
from deployer.site.storage.store import InstalledImage
from deployer.system import files, terminal

FILE = "events.jsonl"
#: What the kernel shows as the user who logged in, which `su` and `sudo` do not change, if nobody did.
_NO_LOGIN = 2**32 - 1


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


def note(root: str, action: str, image: Optional[InstalledImage] = None, **more: str) -> None:
    """Append an event, perhaps about an image. On a full disk, a warning is printed: `gc` must still work."""
    uid, login, path = os.getuid(), _NO_LOGIN, os.path.join(root, FILE)
    with suppress(OSError, ValueError), open("/proc/self/loginuid") as stream:
        login = int(stream.read())
    if image:
        place = "" if image.store.root == root else image.store.root
        more.update(bundle=image.receipt.label, digest=image.receipt.digest, store=place)
    who = "" if login in (uid, _NO_LOGIN) else group.user(login)
    event = Event(int(time.time()), action, group.user(uid), uid, socket.gethostname(), who, **more)
    try:
        files.append(path, json_records.dumps(json_records.stamped("event", records.short(event))))
    except OSError as error:
        terminal.warn(f"cannot write to {path}: {error.strerror}")


def is_first() -> bool:
    """Return whether this process is the first of a launcher's step, or in none: thousands need not be noted."""
    return all(os.environ.get(name, "0") == "0" for name in ("SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"))


def read(root: str) -> List[Event]:
    """Return the events, the oldest first; invalid lines are left out with a warning."""
    path, noted, others = os.path.join(root, FILE), [], 0
    with files.errors_named("read " + path), suppress(FileNotFoundError), files.open_regular(path, follow=False) as log:
        for line in log:
            try:
                noted.append(records.read(Event, json_records.loads(line, "event", path)))
            except DeployerError:
                others += 1
    if others:
        terminal.warn(f"{path}: left out {counted(others, 'line')} that are not events")
    return noted
