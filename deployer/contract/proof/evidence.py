"""The evidence of a job: records that the job's steps write into its folder and that ``result`` reads.

::

    job.json                what was requested (Launch), written when the job is submitted
    hosts/HOST.network      the network between the nodes, for a job without MPI (NetworkRecord)
    hosts/HOST.BOOT.json    facts of a node before any container starts (HostRecord)
    ranks/HOST.BOOT.records the records of all ranks of a node, one per line (``rank_record``):
      probe-TASK.json       a rank in the container before the payload (ProbeRecord)
      probe-TASK.log        the end of the probe's output, if it failed
      payload-TASK.json     what the payload's processes had mapped, and how they ended (PayloadRecord)
    ranks/node-HOST.json    the same records, if the ranks wrote them to the node first (NodeRecord)
    result.json             all of this with findings (see ``result``)

An *identity* identifies a file independently of its path: ``build-id:HEX`` from its GNU build-id note, or
``sha256:HEX`` of its content if it has no such note. A *task* is the launcher's number for a rank; it exists even
without MPI.
"""

import functools
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Type, TypeVar

from deployer.contract.base import json_records, records
from deployer.contract.proof.measurements import Measures
from deployer.contract.proof.payload import MappedLibrary, PayloadRecord
from deployer.contract.rules.verdict import Checked
from deployer.contract.site import links as linked
from deployer.contract.site.network import NodeAddress
from deployer.contract.site.plan import HostMpi
from deployer.contract.site.speed import ExpectedNetwork

_T = TypeVar("_T")
_LAUNCH = "job"
#: The suffix of files with a NetworkRecord.
NETWORK_SUFFIX = ".network"
#: The key of the start option in job.json and result.json. It is older than the term, and users' programs read it.
OPTION_KEY = "variant"


class Launch(NamedTuple):
    """A job as it was submitted.

    Attributes:
        job: the job's name.
        bundle: the bundle's name.
        version: the bundle's version.
        digest: the bundle's digest.
        site: the plan's site.
        start_option: the start option's name.
        reason: why this start option was chosen.
        runtime: the start option's runtime.
        nodes: number of nodes.
        ranks_per_node: ranks per node.
        threads: threads per rank.
        time: the time limit.
        command: the payload's command.
        mpi: the site's MPI; None if the image's own MPI is used.
        provider: libfabric's provider, if the plan specifies one.
        created: seconds since the epoch.
        data: digests of the bundles whose data the job reads.
        expects: what the probe must prove besides MPI (``measurements.GPU``).
        checked: the plan's verdict.
        forced: whether the verdict was REFUSE and the user started the job regardless.
        bound: host paths that are bound and must exist on every node.
        straddling: why some ranks must run across NUMA domains; None if none must.
        scheduler: the scheduler's name.
        warn: how many seconds before the time limit the ranks are warned, to save their state; None: never.
        again: how many jobs may continue this one, one after the other.
        previous: the job that this one continues.
        interface: the network interfaces that the plan or the user selects for a rendezvous without MPI, separated by
            commas; None: any.
        without_mpi: whether the ranks find each other without MPI.
        fast: the fast network between nodes that NCCL should use, in words; None: unknown.
        links: the links in the private HOME: their targets in the container, by their paths in HOME.
        folder_links: the links in the job's folder, in the same form.
        workdir: the folder below the job's folder in which the command starts; empty: somewhere else.
        workers: training processes per rank, because torchrun starts several.
        network: the expected speed of the network between the nodes; None: unknown.
        accept: codes of findings to treat as warnings.
        task: the number of the task of a group; None: the job is not one.
        parameters: the parameters of that task.
    """

    job: str
    bundle: str
    version: str
    digest: str
    site: str
    start_option: str
    reason: str
    runtime: str
    nodes: int
    ranks_per_node: int
    threads: int
    time: str
    command: List[str]
    mpi: Optional[HostMpi]
    provider: Optional[str]
    created: int
    data: Sequence[str] = ()
    expects: Sequence[str] = ()
    checked: Optional[Checked] = None
    forced: bool = False
    bound: Sequence[str] = ()
    straddling: Optional[str] = None
    scheduler: str = "slurm"
    warn: Optional[int] = None
    again: int = 0
    previous: Optional[str] = None
    interface: Optional[str] = None
    without_mpi: bool = False
    fast: Optional[str] = None
    links: Mapping[str, str] = {}
    folder_links: Mapping[str, str] = {}
    workdir: str = ""
    workers: int = 1
    network: Optional[ExpectedNetwork] = None
    accept: Sequence[str] = ()
    task: Optional[int] = None
    parameters: Mapping[str, Any] = {}

    @property
    def ranks(self) -> int:
        """The requested number of ranks."""
        return self.nodes * self.ranks_per_node

    def record(self) -> json_records.Record:
        fields = records.plain(self)
        fields[OPTION_KEY] = fields.pop("start_option")
        return json_records.stamped(_LAUNCH, fields)


def read_launch(data: bytes, what: str) -> Launch:
    """Parse job.json. Raises UsageError."""
    fields = json_records.loads(data, _LAUNCH, what, own=True)
    own = {name: linked.check_made(fields.mapping(name)) for name in ("links", "folder_links")}
    return records.read(Launch, fields, start_option=fields.text(OPTION_KEY), **own)


class HostRecord(NamedTuple):
    """A node of the job.

    Attributes:
        host: its name.
        identity: the identity of the plan's MPI library on the node; None if the file does not exist.
        missing: paths that should be bound into the container but do not exist.
        numa: the CPUs of each NUMA domain, as the kernel lists them.
        addresses: its IPv4 addresses.
        port: a TCP port that was free there; None: none was found.
        changed: the identity, or MISSING, of every other library that has changed since the capture, by path.
    """

    host: str
    identity: Optional[str]
    missing: Tuple[str, ...] = ()
    numa: Tuple[str, ...] = ()
    addresses: Tuple[NodeAddress, ...] = ()
    port: Optional[int] = None
    changed: Mapping[str, str] = {}


class NetworkRecord(NamedTuple):
    """A node's measurements of the network between the nodes, for a job without MPI.

    Attributes:
        host: its name.
        reason: why it could not connect to the first node, or None.
        peers: the nodes that connected to the first node; None in the records of other nodes.
        nanoseconds: half of the shortest round trip of a byte to the first node; None in the first node's record.
        bytes_per_second: the bandwidth to the first node; None likewise.
        bytes_per_second_back: the bandwidth from it; None likewise.
    """

    host: str
    reason: Optional[str] = None
    peers: Optional[Tuple[str, ...]] = None
    nanoseconds: Optional[int] = None
    bytes_per_second: Optional[int] = None
    bytes_per_second_back: Optional[int] = None


class ProbeRecord(NamedTuple):
    """A rank in the container before the payload; rank, size, provider and thread_level are None until MPI_Init ends.

    Attributes:
        task: the launcher's number of the rank.
        host: its node.
        stage: what the probe was doing (LOADING ... DONE).
        library: the MPI library that was mapped, or None.
        reason: why no library was found.
        rank: its rank in MPI_COMM_WORLD.
        size: the size of MPI_COMM_WORLD.
        provider: libfabric's provider.
        thread_level: the level of thread support that MPI provides.
        threads: OMP_NUM_THREADS.
        cpus: the CPUs that it may use, as the kernel lists them: ``0-3,8``.
        measures: what the probe measured.
        shared_memory: whether MPI has mapped memory that it shares with other ranks of the node; None: unknown.
    """

    task: int
    host: str
    stage: str
    library: Optional[MappedLibrary]
    reason: Optional[str]
    rank: Optional[int]
    size: Optional[int]
    provider: Optional[str]
    thread_level: Optional[str]
    threads: Optional[int]
    cpus: str
    measures: Optional[Measures] = None
    shared_memory: Optional[bool] = None


class ReceivedImage(NamedTuple):
    """How a node got the staged image, if the nodes of the job send it on to each other.

    Attributes:
        node: the node that should send it; None: this node reads it, and is the first one of several.
        from_node: bytes that came from there.
        from_file: bytes that were read from the shared file system.
        reason: why bytes were read although a node should send them, or None.
    """

    node: Optional[str]
    from_node: int
    from_file: int
    reason: Optional[str] = None


class NodeRecord(NamedTuple):
    """The evidence of a node's ranks, if the image is staged on the node.

    Attributes:
        host: the node.
        files: the text of each evidence file, by file name.
        image: how the node got the image; None: it read all of it from the shared file system, as each node does.
    """

    host: str
    files: Dict[str, str]
    image: Optional[ReceivedImage] = None


#: The schema of each kind of evidence.
_SCHEMAS: Mapping[type, str] = {
    HostRecord: "host",
    NetworkRecord: "network",
    ProbeRecord: "probe",
    PayloadRecord: "payload",
    NodeRecord: "node-evidence",
}


def record(evidence: Any) -> json_records.Record:
    """Return a record of a class in ``_SCHEMAS`` as a JSON object."""
    return json_records.stamped(_SCHEMAS[type(evidence)], records.plain(evidence))


def read(kind: Type[_T], data: bytes, what: str) -> _T:
    """Parse a record of a class in ``_SCHEMAS``. Raises UsageError."""
    return records.read(kind, json_records.loads(data, _SCHEMAS[kind], what, own=True))


@functools.lru_cache(maxsize=4096)  # ranks on different nodes have the same lists
def parse_cpus(text: str) -> FrozenSet[int]:
    """Return the CPUs of a kernel list such as ``0-3,8``; an unreadable part counts as no CPU."""
    cpus: Set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash):  # isdigit() is true for digits that int() refuses
            cpus.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(cpus)
