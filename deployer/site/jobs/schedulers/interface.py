"""The interface of a scheduler: pure argv builders, and parsers of (exit code, output). It starts no processes."""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set


class JobState(NamedTuple):
    """The scheduler's state of a job; a text is empty if the scheduler does not report it.

    Attributes:
        word: the scheduler's word (``PENDING``, ``TIMEOUT``, ...).
        reason: why the job has this state.
        elapsed: the time since its start.
        nodes: its nodes.
        active: whether the state can still change.
    """

    word: str
    reason: str
    elapsed: str
    nodes: str
    active: bool


class Queue(NamedTuple):
    """A partition.

    Attributes:
        open: whether it accepts jobs.
        nodes: number of nodes.
        usable: number of nodes that can run a job now or later.
        says: the scheduler's own words for the nodes' states.
    """

    open: bool
    nodes: int
    usable: int
    says: str


class Scheduler(object):
    """A scheduler. The implementations are in the plain dict ``SCHEDULERS`` under the names that plans use."""

    def owns(self, job_id: str) -> bool:
        """Return whether this scheduler gave the id."""
        raise NotImplementedError

    def submit(self, script: str, seconds: int) -> List[str]:
        """Return argv that submits the batch script at the path ``script``, which may run for ``seconds``."""
        raise NotImplementedError

    def parse_submit(self, code: int, out: str, err: str) -> str:
        """Return the new job's id. Raises Refused, or TransferError if the scheduler does not answer."""
        raise NotImplementedError

    def queue(self, partition: str) -> List[str]:
        """Return argv that queries a partition; an empty text means the default partition."""
        raise NotImplementedError

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        """Return the partition, or None if it does not exist. Raises TransferError."""
        raise NotImplementedError

    def state(self, job_id: str) -> List[str]:
        """Return argv that queries a job's state."""
        raise NotImplementedError

    def parse_state(self, code: int, out: str, err: str) -> Optional[JobState]:
        """Return the state, or None if the scheduler has forgotten the job. Raises TransferError."""
        raise NotImplementedError

    def states(self, job_ids: Sequence[str]) -> List[str]:
        """Return argv that queries the states of several jobs at once."""
        raise NotImplementedError

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        """Return the states by id, without jobs that the scheduler has forgotten. Raises TransferError."""
        raise NotImplementedError

    def elsewhere(self, job_id: str, here: str) -> Optional[str]:
        """Return the only host that knows the job; None if the host ``here`` can query it."""
        raise NotImplementedError

    def outputs(self) -> List[str]:
        """Return argv that queries the output files of all active jobs, also of those submitted by hand."""
        raise NotImplementedError

    def parse_outputs(self, code: int, out: str, err: str) -> Set[str]:
        """Return the paths of these files. Raises TransferError."""
        raise NotImplementedError

    def cancel(self, job_id: str) -> List[str]:
        """Return argv that cancels a job."""
        raise NotImplementedError

    def parse_cancel(self, code: int, out: str, err: str) -> None:
        """Raise Refused or TransferError if the job could not be cancelled."""
        raise NotImplementedError
