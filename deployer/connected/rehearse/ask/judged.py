"""The results of a rehearsal, wherever its simulated site was made."""

from pathlib import Path
from typing import NamedTuple

from deployer.contract.base.errors import Unknown
from deployer.contract.rehearsal.rehearsal import Rehearsal

#: Where a simulated site is made: in namespaces of this machine, or in a Docker container.
NAMESPACES, DOCKER = "namespaces", "docker"


class Judged(NamedTuple):
    """A rehearsal and its outcome.

    Attributes:
        outcome: the outcome.
        folder: a folder on this machine with the log and result.json.
        way: NAMESPACES or DOCKER.
        opened: the files that the job opened; None: its nodes were not observed, or the list is incomplete.
    """

    outcome: Rehearsal
    folder: Path
    way: str
    opened: list[str] | None

    def opened_files(self) -> list[str]:
        """Return the files of the container that the job opened. Raises Unknown."""
        if self.opened is None:
            hint = "the kernel could not observe its processes, or it opened more files than a rehearsal lists, "
            hint += "or one with a line break in its name"
            raise Unknown("the files that the job opened are not all known", hint)
        return self.opened
