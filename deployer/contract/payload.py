"""What a rank tells of its payload: evidence, but apart from ``evidence``, since each rank imports this and no more."""

from typing import List, NamedTuple, Optional

from deployer.contract import json_records
from deployer.contract.json_records import Fields, Record

PAYLOAD = "payload"


class MappedLibrary(NamedTuple):
    """An MPI library that a process has mapped. ``path`` is as the container sees it and proves nothing; ``says`` is
    the first line of MPI_Get_library_version, None where it was not asked."""

    path: str
    identity: str
    says: Optional[str]

    @staticmethod
    def read(fields: Fields) -> "MappedLibrary":
        return MappedLibrary(fields.text("path"), fields.text("identity"), fields.maybe_text("says"))


class Itex(NamedTuple):
    """Intel's extension in a TensorFlow that is imported: the library that it mapped, which names the instruction set;
    ``reason`` is why there is none."""

    library: Optional[str]
    reason: Optional[str]

    @staticmethod
    def read(fields: Fields) -> "Itex":
        return Itex(fields.maybe_text("library"), fields.maybe_text("reason"))


class Outside(NamedTuple):
    """A rank of an image without Python, seen from outside the container. ``rank`` and ``size`` are the launcher's
    words in the payload's environment; ``alone`` is why its MPI cannot find the other ranks; ``static`` is a program
    that has MPI linked into it; ``has_mpi``: a process was seen that has an MPI library mapped."""

    rank: Optional[int]
    size: Optional[int]
    alone: Optional[str]
    static: Optional[str]
    threads: Optional[int]
    cpus: str
    has_mpi: bool

    @staticmethod
    def read(fields: Fields) -> "Outside":
        return Outside(
            fields.maybe_number("rank"),
            fields.maybe_number("size"),
            fields.maybe_text("alone"),
            fields.maybe_text("static"),
            fields.maybe_number("threads"),
            fields.text("cpus"),
            fields.flag("has_mpi"),
        )


class PayloadRecord(NamedTuple):
    """A rank's payload: the MPI libraries that its processes mapped, in the order seen, and how it ended.

    ``exit_code`` and ``signal`` are both None while it runs; ``ended`` is in milliseconds since the epoch, by the
    node's own clock. ``shm`` is what was free in the node's /dev/shm when it had failed, in bytes. ``itex`` is None
    where it was not asked for, or the payload has no TensorFlow. ``outside`` is what was seen from outside the
    container, None if the rank was watched from inside. ``oom_group`` and ``oom_node`` are, of a rank that failed, how
    many processes the kernel ended for want of memory while it ran: in its control group, and on its node.
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

    @property
    def refusal(self) -> Optional[str]:
        """Return why the payload is not what was asked for, so that it must not go on; None where it is."""
        return self.itex.reason if self.itex else None

    def record(self) -> Record:
        fields = dict(self._asdict())
        fields["libraries"] = [dict(library._asdict()) for library in self.libraries]
        fields["itex"] = dict(self.itex._asdict()) if self.itex else None
        if self.outside:
            fields["outside"] = dict(self.outside._asdict())
        else:
            del fields["outside"]
        return json_records.stamped(PAYLOAD, fields)


def read_payload(data: bytes, what: str) -> PayloadRecord:
    """Parse a payload record; raises UsageError."""
    fields = json_records.loads(data, PAYLOAD, what, own=True)
    itex, outside = fields.maybe_child("itex"), fields.maybe_child("outside")
    return PayloadRecord(
        task=fields.number("task"),
        host=fields.text("host"),
        libraries=[MappedLibrary.read(item) for item in fields.items("libraries")],
        exit_code=fields.maybe_number("exit_code"),
        signal=fields.maybe_number("signal"),
        ended=fields.maybe_number("ended"),
        shm=fields.maybe_number("shm"),
        itex=Itex.read(itex) if itex else None,
        outside=Outside.read(outside) if outside else None,
        oom_group=fields.maybe_number("oom_group"),
        oom_node=fields.maybe_number("oom_node"),
    )
