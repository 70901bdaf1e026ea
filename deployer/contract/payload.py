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


class PayloadRecord(NamedTuple):
    """A rank's payload: the MPI libraries that its processes mapped, in the order seen, and how it ended.

    ``exit_code`` and ``signal`` are both None while it runs; ``ended`` is in milliseconds since the epoch, by the
    node's own clock.
    """

    task: int
    host: str
    libraries: List[MappedLibrary]
    exit_code: Optional[int]
    signal: Optional[int]
    ended: Optional[int]

    def record(self) -> Record:
        fields = dict(self._asdict())
        fields["libraries"] = [dict(library._asdict()) for library in self.libraries]
        return records.stamped(PAYLOAD, fields)


def read_payload(data: bytes, what: str) -> PayloadRecord:
    """Parse a payload record; raises UsageError."""
    fields = records.loads(data, PAYLOAD, what)
    return PayloadRecord(
        task=fields.number("task"),
        host=fields.text("host"),
        libraries=[MappedLibrary.read(item) for item in fields.items("libraries")],
        exit_code=fields.maybe_number("exit_code"),
        signal=fields.maybe_number("signal"),
        ended=fields.maybe_number("ended"),
    )
