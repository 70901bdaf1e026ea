"""Room for a job's result.json, taken when the job is made: it comes out of a disk that has filled up since.

The file holds noise: zeros would take no room where the file system compresses or leaves holes.
"""

import os
from contextlib import suppress

from deployer.contract.errors import DeployerError
from deployer.system import files

NAME = ".spare"
#: Bytes: the record of a rank in result.json is about 1 KiB, the findings are few.
_JOB, _RANK = 64 * 1024, 2 * 1024


def keep(folder: str, ranks: int) -> None:
    """Take the room in a job's folder, unless it is taken; raises SpaceError where there is none."""
    path = os.path.join(folder, NAME)
    if not files.exists(path):
        with files.published(path) as stream:
            stream.write(os.urandom(_JOB + ranks * _RANK))


def keep_on(folder: str, ranks: int) -> None:
    """Take the room where that is possible; a job that is under way goes on without."""
    with suppress(DeployerError):
        keep(folder, ranks)


def release(folder: str) -> None:
    """Give the room back."""
    with suppress(OSError):
        os.unlink(os.path.join(folder, NAME))
