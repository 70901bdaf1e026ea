"""Space for a job's result.json, reserved when the job is created, in case the disk is full later.

The reserve is a file of random bytes; a file system that compresses or leaves holes would not store zeros.
"""

import os
from contextlib import suppress

from deployer.system import files

NAME = ".spare"
#: Bytes: a rank's record in result.json is about 1 KiB, and findings are few.
_JOB, _RANK = 64 * 1024, 2 * 1024


def keep(folder: str, ranks: int) -> None:
    """Reserve the space in a job's folder, unless it already is. Raises SpaceError if the disk is full."""
    path = os.path.join(folder, NAME)
    if not files.exists(path):
        files.write_bytes(path, os.urandom(_JOB + ranks * _RANK))


def release(folder: str) -> None:
    """Release the space."""
    with suppress(OSError):
        os.unlink(os.path.join(folder, NAME))
