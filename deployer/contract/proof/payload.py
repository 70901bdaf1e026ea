"""A rank's record about its payload, which ``evidence`` reads; the rank writes it with ``rank_record``."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import records
from deployer.contract.base.json_records import Record


class MappedLibrary(NamedTuple):
    """An MPI library that a process has mapped.

    Attributes:
        path: its path in the container, which proves nothing.
        identity: see ``evidence``.
        says: the first line from MPI_Get_library_version, or None if it was not called.
    """

    path: str
    identity: str
    says: Optional[str]


class Itex(NamedTuple):
    """Intel's extension for the TensorFlow that the payload imported.

    Attributes:
        library: the mapped library, whose name contains the instruction set, or None.
        reason: why there is no such library, or None.
    """

    library: Optional[str]
    reason: Optional[str]


class Outside(NamedTuple):
    """A rank of an image without Python, observed from outside the container.

    Attributes:
        rank: its number, from the launcher's variables in the payload's environment.
        size: the number of ranks, from the same variables.
        alone: why its MPI cannot find the other ranks, or None.
        static: a program with statically linked MPI, or None.
        threads: OMP_NUM_THREADS.
        cpus: the CPUs that it may use, as the kernel lists them: ``0-3,8``.
        has_mpi: whether an observed process had an MPI library mapped.
    """

    rank: Optional[int]
    size: Optional[int]
    alone: Optional[str]
    static: Optional[str]
    threads: Optional[int]
    cpus: str
    has_mpi: bool


class NcclReport(NamedTuple):
    """What NCCL or RCCL reported about itself in its log.

    Attributes:
        version: its version.
        network: the network between nodes that it chose, for instance IB or Socket.
        via: how its channels pass data, for instance NET/IB, P2P, SHM.
    """

    version: Optional[str]
    network: Optional[str]
    via: Tuple[str, ...]


class Communication(NamedTuple):
    """How a payload without MPI communicates.

    Attributes:
        libraries: path and identity of each mapped communication library: NCCL, Gloo, or PyTorch and JAX, which contain
            Gloo.
        connected: whether a connection to a process outside the payload was observed; None: observed too briefly.
        itself: whether a connection within the payload was observed, so that it formed its own world.
        nccl: the report of NCCL; None: it was not used, or another rank of the node has the report.
    """

    libraries: Tuple[MappedLibrary, ...]
    connected: Optional[bool]
    itself: bool
    nccl: Optional[NcclReport]

    def shown(self) -> Record:
        """Return the fields for a rank in result.json."""
        return {
            "libraries": [{"path": item.path, "identity": item.identity} for item in self.libraries],
            "connected": self.connected,
            "nccl": records.plain(self.nccl),
        }


class PayloadRecord(NamedTuple):
    """A rank's payload: the MPI libraries of its processes, and how it ended.

    Attributes:
        task: the launcher's number of the rank.
        host: its node.
        libraries: the MPI libraries that were mapped, in the order in which they were observed.
        exit_code: None while it runs, or if a signal ended it.
        signal: the signal that ended it, or None.
        ended: milliseconds since the epoch, by the node's clock.
        shm: bytes that were free in the node's /dev/shm after it failed.
        itex: None if this was not required, or if the payload has no TensorFlow.
        outside: what was observed from outside the container; None if the rank was observed from inside.
        oom_group: for a failed rank, how many processes of its control group the kernel killed for lack of memory.
        oom_node: the same for all processes of its node.
        communication: None if no library for communication without MPI was mapped.
        unset: variables that the launcher gave to the rank but that its programs with MPI lack.
        together: the paths of several MPI libraries that one process had mapped at once.
    """

    task: int
    host: str
    libraries: List[MappedLibrary]
    exit_code: Optional[int]
    signal: Optional[int]
    ended: Optional[int]
    shm: Optional[int] = None
    itex: Optional[Itex] = None
    outside: Optional[Outside] = None
    oom_group: Optional[int] = None
    oom_node: Optional[int] = None
    communication: Optional[Communication] = None
    unset: Sequence[str] = ()
    together: Sequence[str] = ()

    @property
    def refusal(self) -> Optional[str]:
        """Return why the payload must not continue, or None if it may."""
        return self.itex.reason if self.itex else None
