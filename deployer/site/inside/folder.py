"""The private folder of a job that starts inside-out: its key, and the program that the launcher calls instead of ssh.

It is inside the job's folder, which every node and container of the job can read. Files in it never change, because
shared file systems cache them for a while.
"""

import os
import shlex

from deployer.contract.site import plan as plans
from deployer.system import files
from deployer.system.channel import ChannelError

#: Its name in the job's folder, and the names of its files.
NAME = "inside"
KEY, START = "key", "start"
#: The paths in the container of the program that launchers call instead of ssh, and of the key.
PROGRAM = f"{plans.JOB}/{NAME}/{START}"
KEY_INSIDE = f"{plans.JOB}/{NAME}/{KEY}"
#: The variable with the hub's addresses, for the launcher and this program.
HUB = "DEPLOYER_HUB"
_SIZE = 32

_START = """\
#!/bin/sh
# Takes the place of ssh for a launcher in a container: start [OPTIONS] NODE WORDS...
exec %s inside --ask --key %s --hub "$%s" -- "$@"
"""


def make(path: str, python: str) -> bytes:
    """Make the folder if it does not exist, and return its key.

    Args:
        python: the image's Python.

    Raises:
        DeployerError: it cannot be made.
        ChannelError: it is not private.
    """
    with files.errors_named("make " + path):
        os.makedirs(path, 0o700, exist_ok=True)
        os.chmod(path, 0o700)
        key = os.path.join(path, KEY)
        if not files.lexists(key):
            files.write_text(key, os.urandom(_SIZE).hex() + "\n", 0o600)
        words = " ".join(map(shlex.quote, [python, "-I", "-S", plans.TOOL]))
        files.write_text(os.path.join(path, START), _START % (words, KEY_INSIDE, HUB), 0o700)
    return read_key(key)


def read_key(path: str) -> bytes:
    """Return the key in a file that only this user can read. Raises ChannelError."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
            if os.fstat(stream.fileno()).st_mode & 0o077:
                raise ChannelError(f"others can read {path}")
            key = stream.read(1024).strip()
    except OSError as error:
        raise ChannelError(f"cannot read {path}: {error.strerror}") from error
    if len(key) < 2 * _SIZE:
        raise ChannelError(f"{path} has no key")
    return key
