"""What a scheduler has to offer: pure argv builders and parsers of (exit code, output), and no process of its own."""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set


class JobState(NamedTuple):
    """What the scheduler says of a job: its own word for the state (``PENDING``, ``TIMEOUT``, ...), why, how long it
    has run, and where; empty text where it does not say."""

    word: str
    reason: str
    elapsed: str
    nodes: str
    active: bool
    """Whether the state can still change."""


class Queue(NamedTuple):
    """A partition: whether it takes jobs, its nodes, how many of them can run one now or later, and the scheduler's own
    words for their states."""

    open: bool
    nodes: int
    usable: int
    says: str


class Scheduler(object):
    """One scheduler. Implementations stand in the plain dict ``SCHEDULERS`` under the names that plans use."""

    def owns(self, job_id: str) -> bool:
        """Return whether an id is one of this scheduler's."""
        raise NotImplementedError

    def submit(self, script: str, seconds: int) -> List[str]:
        """Return argv that submits the batch script at the path ``script``, which may run for ``seconds``."""
        raise NotImplementedError

    def parse_submit(self, code: int, out: str, err: str) -> str:
        """Return the new job's id; raises Refused, or TransferError where the scheduler does not answer."""
        raise NotImplementedError

    def queue(self, partition: str) -> List[str]:
        """Return argv that asks for a partition; empty text: the one that jobs get which name none."""
        raise NotImplementedError

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        """Return the partition, None where there is none such; raises TransferError."""
        raise NotImplementedError

    def state(self, job_id: str) -> List[str]:
        """Return argv that asks for a job's state."""
        raise NotImplementedError

    def parse_state(self, code: int, out: str, err: str) -> Optional[JobState]:
        """Return the state, None where the scheduler has forgotten the job; raises TransferError."""
        raise NotImplementedError

    def states(self, job_ids: Sequence[str]) -> List[str]:
        """Return argv that asks for the states of several jobs at once."""
        raise NotImplementedError

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        """Return the states by id, without jobs that the scheduler has forgotten; raises TransferError."""
        raise NotImplementedError

    def elsewhere(self, job_id: str, here: str) -> Optional[str]:
        """Return the host that alone knows the job, None if the host ``here`` can ask for it."""
        raise NotImplementedError

    def outputs(self) -> List[str]:
        """Return argv that asks for the output files of all jobs that wait or run, also of those submitted by hand."""
        raise NotImplementedError

    def parse_outputs(self, code: int, out: str, err: str) -> Set[str]:
        """Return the paths of these files; raises TransferError."""
        raise NotImplementedError

    def cancel(self, job_id: str) -> List[str]:
        """Return argv that ends a job."""
        raise NotImplementedError

    def parse_cancel(self, code: int, out: str, err: str) -> None:
        """Raise Refused or TransferError where the job could not be cancelled."""
        raise NotImplementedError
