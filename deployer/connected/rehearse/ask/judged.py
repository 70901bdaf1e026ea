"""The results of a rehearsal, wherever its simulated site was made."""

from pathlib import Path
from typing import NamedTuple

from deployer.contract.rehearsal.rehearsal import Rehearsal

#: Where a simulated site is made: in namespaces of this machine, or in a Docker container.
NAMESPACES, DOCKER = "namespaces", "docker"


class Judged(NamedTuple):
    """A rehearsal and its outcome.

    Attributes:
        outcome: the outcome.
        folder: a folder on this machine with the log and result.json.
        way: NAMESPACES or DOCKER.
    """

    outcome: Rehearsal
    folder: Path
    way: str
