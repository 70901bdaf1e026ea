"""What a job leaves behind as evidence: records that one step writes in the job's folder and ``result`` reads.

::

    job.json                what was asked (Launch), written when the job is submitted
    hosts/HOST.json         what a node shows before any container starts (HostRecord)
    ranks/probe-TASK.json   what a rank is in the container, before the payload (ProbeRecord); its log beside it
    ranks/payload-TASK.json what the payload's own processes had mapped, and how they ended (payload.PayloadRecord)
    ranks/node-HOST.json    these of a node's ranks, where they wrote to the node first (NodeRecord)
    result.json             all of it, judged (see ``result``)

An *identity* tells a file whatever path it is seen under: ``build-id:HEX`` from its GNU build-id note, or
``sha256:HEX`` of its content where it has none. A *task* is the launcher's number for a rank, which is there even
where MPI is not.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from deployer.contract import json_records
from deployer.contract.json_records import Record
from deployer.contract.measurements import Measures
from deployer.contract.payload import MappedLibrary
from deployer.contract.plan import HostMpi
from deployer.contract.verdict import Checked

LAUNCH = "job"
HOST = "host"
PROBE = "probe"
NODE = "node-evidence"

#: What a probe was doing when it wrote its record; one that is not DONE did not get further.
LOADING = "loading the MPI library"
STARTING = "in MPI_Init or the first MPI_Barrier"
SUMMING = "in the first MPI_Allreduce"
DONE = "done"


class Launch(NamedTuple):
    """A job as it was submitted. ``provider`` is libfabric's, where the plan names one; ``reason`` is why the variant
    was chosen; ``created`` is in seconds since the epoch; ``data`` are the digests of the bundles whose data are read;
    ``expects`` is what the probe has to prove beside MPI (``measures.EXPECTABLE``);
    ``bound`` are the host's paths that every node must have, to be bound;
    ``checked`` is the plan's verdict; ``forced``: it was REFUSE, and the user ran it all the same; ``straddling`` says
    why ranks must run across NUMA domains, None: none must.
    """

    job: str
    bundle: str
    version: str
    digest: str
    site: str
    variant: str
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

    @property
    def ranks(self) -> int:
        """The size of the world that was asked for."""
        return self.nodes * self.ranks_per_node

    def record(self) -> Record:
        fields = dict(self._asdict())
        fields["mpi"] = dict(self.mpi._asdict()) if self.mpi else None
        fields["checked"] = self.checked.record() if self.checked else None
        return json_records.stamped(LAUNCH, fields)


def read_launch(data: bytes, what: str) -> Launch:
    """Parse job.json; raises UsageError."""
    fields = json_records.loads(data, LAUNCH, what, own=True)
    mpi, checked = fields.maybe_child("mpi"), fields.maybe_child("checked")
    return Launch(
        job=fields.text("job"),
        bundle=fields.text("bundle"),
        version=fields.text("version"),
        digest=fields.text("digest"),
        site=fields.text("site"),
        variant=fields.text("variant"),
        reason=fields.text("reason"),
        runtime=fields.text("runtime"),
        nodes=fields.number("nodes"),
        ranks_per_node=fields.number("ranks_per_node"),
        threads=fields.number("threads"),
        time=fields.text("time"),
        command=fields.texts("command"),
        mpi=HostMpi.read(mpi) if mpi else None,
        provider=fields.maybe_text("provider"),
        created=fields.number("created"),
        data=tuple(fields.texts("data")) if "data" in fields.record else (),
        expects=tuple(fields.texts("expects")) if "expects" in fields.record else (),
        checked=Checked.read(checked) if checked else None,
        forced=fields.record.get("forced") is True,
        bound=tuple(fields.texts("bound")) if "bound" in fields.record else (),
        straddling=fields.maybe_text("straddling"),
        scheduler=fields.maybe_text("scheduler") or "slurm",
    )


class HostRecord(NamedTuple):
    """A node that took part. ``identity`` is that of the plan's MPI library there; None: no such file.

    ``missing`` are paths that are to be bound into the container and are not there. ``numa`` are the CPUs of each NUMA
    domain, as the kernel lists them.
    """

    host: str
    identity: Optional[str]
    missing: Tuple[str, ...] = ()
    numa: Tuple[str, ...] = ()

    def record(self) -> Record:
        return json_records.stamped(HOST, dict(self._asdict()))


def read_host(data: bytes, what: str) -> HostRecord:
    """Parse a host record; raises UsageError."""
    fields = json_records.loads(data, HOST, what, own=True)
    missing, numa = (tuple(fields.texts(name)) if name in fields.record else () for name in ("missing", "numa"))
    return HostRecord(fields.text("host"), fields.maybe_text("identity"), missing, numa)


class ProbeRecord(NamedTuple):
    """A rank in the container. ``threads`` is OMP_NUM_THREADS; ``cpus`` is the kernel's list, e.g. ``0-3,8``;
    ``reason`` says why no library was found; rank, size, provider and thread_level are None before MPI_Init is done."""

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

    def record(self) -> Record:
        fields = dict(self._asdict())
        fields["library"] = dict(self.library._asdict()) if self.library else None
        fields["measures"] = self.measures.record() if self.measures else None
        return json_records.stamped(PROBE, fields)


def read_probe(data: bytes, what: str) -> ProbeRecord:
    """Parse a probe record; raises UsageError."""
    fields = json_records.loads(data, PROBE, what, own=True)
    library, measures = fields.maybe_child("library"), fields.maybe_child("measures")
    return ProbeRecord(
        task=fields.number("task"),
        host=fields.text("host"),
        stage=fields.text("stage"),
        library=MappedLibrary.read(library) if library else None,
        reason=fields.maybe_text("reason"),
        rank=fields.maybe_number("rank"),
        size=fields.maybe_number("size"),
        provider=fields.maybe_text("provider"),
        thread_level=fields.maybe_text("thread_level"),
        threads=fields.maybe_number("threads"),
        cpus=fields.text("cpus"),
        measures=Measures.read(measures) if measures else None,
    )


class NodeRecord(NamedTuple):
    """All that the ranks of a node, where the image is staged, said of themselves: their files by name."""

    host: str
    files: Dict[str, str]

    def record(self) -> Record:
        return json_records.stamped(NODE, dict(self._asdict()))


def read_node(data: bytes, what: str) -> NodeRecord:
    """Parse a node's collected evidence; raises UsageError."""
    fields = json_records.loads(data, NODE, what, own=True)
    return NodeRecord(fields.text("host"), fields.mapping("files"))


def parse_cpus(text: str) -> Set[int]:
    """Return the CPUs of a kernel list such as ``0-3,8``; what cannot be read counts as none."""
    cpus: Set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (last.isdigit() or not dash):
            cpus.update(range(int(first), int(last if dash else first) + 1))
    return cpus


def render_numbers(numbers: Set[int]) -> str:
    """Return numbers as the kernel writes lists: ``0-3,8``."""
    parts = []
    ordered = sorted(numbers)
    at = 0
    while at < len(ordered):
        end = at
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        parts.append(str(ordered[at]) if at == end else "%d-%d" % (ordered[at], ordered[end]))
        at = end + 1
    return ",".join(parts)
