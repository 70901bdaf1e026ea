"""The file of facts that capture writes beside a profile: what the dynamic loader reads from the site's libraries.

``login`` and each item of ``partitions`` hold system libraries by absolute path. Each item of ``mpi`` holds the files
of an installation by their path below its prefix. All have ``files`` (path to facts, ``dynamic.Facts``) and ``links``
(path to target).
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional

from deployer.contract.base import json_records
from deployer.contract.base.json_records import Fields, Record

SCHEMA = "site-facts"
KEYS = ("files", "links")
#: Bytes of memory for parsing a profile or its facts (json_records.memory); those of large sites need 20 MB.
MAX_MEMORY = 200_000_000


class SiteFacts(NamedTuple):
    """The trees of a file of facts; their content is not parsed yet.

    Attributes:
        login: facts of the login node, or None.
        partitions: facts of compute nodes, by partition.
        mpi: facts of MPI installations, by name.
    """

    login: Optional[Fields]
    partitions: Dict[str, Fields]
    mpi: Dict[str, Fields]


def record(login: Optional[Record], partitions: Mapping[str, Any], mpi: Mapping[str, Any]) -> Record:
    """Return the record of a file of facts."""
    return json_records.stamped(SCHEMA, {"login": login, "partitions": dict(partitions), "mpi": dict(mpi)})


def read(data: bytes, what: str) -> SiteFacts:
    """Parse a file of facts; ``what`` names it in errors. Raises UsageError."""
    fields = json_records.loads(data, SCHEMA, what, limit=MAX_MEMORY)
    return SiteFacts(fields.maybe_child("login"), fields.children("partitions"), fields.children("mpi"))
