"""The ladder: each rung tests one thing and depends on the rungs below; the first failure ends the climb.

A rung is a function of the ``Ground``. It returns a one-line observation, raises ``Skipped`` if there is nothing to
test here, or raises the DeployerError for the user. The error's exit code becomes doctor's.
"""

from typing import Dict, List, NamedTuple, Optional

from deployer.contract.base.errors import DeployerError
from deployer.contract.base.json_records import Fields, Record, stamped
from deployer.contract.site.plan import Plan
from deployer.site.storage.store import InstalledImage, Store

OK, SKIPPED, BROKEN = "ok", "skipped", "broken"


class Skipped(Exception):
    """There is nothing to test; the text states why."""


class Ground:
    """What to test, and the findings of each rung for the rungs above it.

    Args:
        store: the store.
        image: the image that the user named, or None.
        site: the plan that the user named, or None.
        patience: the maximum number of seconds from a job's submission to its end.
        submits: whether to submit jobs.
    """

    def __init__(self, store: Store, image: Optional[str], site: Optional[str], patience: float, submits: bool) -> None:
        self.store = store
        self.image = image
        self.site = site
        self.patience = patience
        self.submits = submits
        self.installed: Optional[InstalledImage] = None
        self.plan: Optional[Plan] = None
        self.nodes: Optional[int] = None  # of the plan's partition
        self.results: Dict[int, Fields] = {}  # of jobs, by their number of nodes


class Step(NamedTuple):
    """The outcome of a rung.

    Attributes:
        name: the rung.
        state: the outcome in one word.
        saw: the observation, or the reason for the failure.
        seconds: the time that it took.
        hint: what to do after a failure.
    """

    name: str
    state: str
    saw: str
    seconds: float
    hint: str = ""

    def record(self) -> Record:
        return dict(self._asdict(), seconds=round(self.seconds, 2))

    def line(self) -> str:
        """Return the step as one line for a terminal."""
        return "%-8s %-10s %s  (%.1f s)" % (self.state, self.name, " ".join(self.saw.split()), self.seconds)


class Climb(NamedTuple):
    """The outcomes of the rungs, and the error of the failed one, if any."""

    steps: List[Step]
    error: Optional[DeployerError]

    def record(self) -> Record:
        """Return the climb as a JSON object."""
        record = {
            "healthy": self.error is None,
            "broken": self.steps[-1].name if self.error else None,
            "exit_code": self.error.exit_code if self.error else 0,
            "rungs": [step.record() for step in self.steps],
        }
        return stamped("doctor", record)
