"""What a rank tells of its payload: evidence, but apart from ``evidence``, since each rank imports this and no more."""

from typing import List, NamedTuple, Optional

from deployer.contract import records
from deployer.contract.records import Fields, Record

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


class PayloadRecord(NamedTuple):
    """A rank's payload: the MPI libraries that its processes mapped, in the order seen, and how it ended.

    ``exit_code`` and ``signal`` are both None while it runs; ``ended`` is in milliseconds since the epoch, by the
    node's own clock. ``shm`` is what was free in the node's /dev/shm when it had failed, in bytes. ``itex`` is None
    where it was not asked for, or the payload has no TensorFlow.
    """

    task: int
    host: str
    libraries: List[MappedLibrary]
    exit_code: Optional[int]
    signal: Optional[int]
    ended: Optional[int]
    shm: Optional[int] = None
    itex: Optional[Itex] = None

    @property
    def refusal(self) -> Optional[str]:
        """Return why the payload is not what was asked for, so that it must not go on; None where it is."""
        return self.itex.reason if self.itex else None

    def record(self) -> Record:
        fields = dict(self._asdict())
        fields["libraries"] = [dict(library._asdict()) for library in self.libraries]
        fields["itex"] = dict(self.itex._asdict()) if self.itex else None
        return records.stamped(PAYLOAD, fields)


def read_payload(data: bytes, what: str) -> PayloadRecord:
    """Parse a payload record; raises UsageError."""
    fields = records.loads(data, PAYLOAD, what)
    itex = fields.maybe_child("itex")
    return PayloadRecord(
        task=fields.number("task"),
        host=fields.text("host"),
        libraries=[MappedLibrary.read(item) for item in fields.items("libraries")],
        exit_code=fields.maybe_number("exit_code"),
        signal=fields.maybe_number("signal"),
        ended=fields.maybe_number("ended"),
        shm=fields.maybe_number("shm"),
        itex=Itex.read(itex) if itex else None,
    )
