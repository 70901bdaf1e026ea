"""Observation of how a payload without MPI communicates: mapped libraries, connections, and NCCL.

``payload_monitor`` imports this module only after such a library is mapped. The kernel lists a process's sockets
in ``/proc/PID/fd``, and all connections in its network namespace in ``/proc/PID/net/tcp``.
"""

import os
import re
import time
from contextlib import suppress
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from deployer.site.rank.observed import mapped_mpi

#: NCCL and RCCL, Gloo, PyTorch (which contains Gloo), JAX, TensorFlow (which contains gRPC).
_LIBRARY = re.compile(
    r"/lib(nccl|rccl|gloo|torch_cpu|torch_cuda|jax_common|tensorflow_framework)[\w.-]*\.so[\d.]*$|/xla_extension\.so$"
)
_ESTABLISHED = "01"
#: Seconds without a connection after which a payload counts as alone: a process group keeps a connection to the other
#: ranks from its start to its end.
_PATIENCE = 5.0
#: Seconds after the first library is mapped in which a process group is expected to start.
_STARTING = 60.0
_MAX_LOG = 4 * 1024 * 1024

#: An end of a connection: address and port, as the kernel writes them.
_End = Tuple[str, str]


class PayloadWatcher:
    """The observations of one rank's payload; ``log`` is its NCCL's log file, with ``%p``, or None."""

    def __init__(self, log: Optional[str]) -> None:
        self._log = log
        self._using: Set[int] = set()
        self._libraries: Dict[mapped_mpi.Mapping, str] = {}
        self._since: Optional[float] = None
        #: Whether a connection to another process was observed.
        self.known = False
        self._itself = False

    def look(self, members: Sequence[int], maps: Sequence[str]) -> None:
        """Examine the payload's processes, given the text of each ``/proc/PID/maps``."""
        for member, text in zip(members, maps):
            for mapping in mapped_mpi.mapped_files(text, ".so"):
                if _LIBRARY.search(mapping[0]):
                    self._using.add(member)
                    if mapping not in self._libraries:
                        self._libraries[mapping] = mapped_mpi.identity(member, mapping)
        if self._libraries and not self.known:
            self._since = self._since or time.monotonic()
            pairs = connections(members)
            own = {local for local, _ in pairs}
            self.known = any(remote not in own for _, remote in pairs)
            self._itself = self._itself or any(remote in own for _, remote in pairs)

    @property
    def only_tensorflow(self) -> bool:
        """Return whether only TensorFlow was observed; if MPI is mapped too, Horovod communicates instead."""
        return all("/libtensorflow" in path for path, _ in self._libraries)

    @property
    def searching(self) -> bool:
        """Return whether a first connection may come soon; a connection within the payload may be short."""
        return self._since is not None and not self.known and time.monotonic() - self._since < _STARTING

    def record(self) -> "Optional[Dict[str, Any]]":
        """Return the fields of ``payload.Communication``; None if no such library was observed."""
        if not self._libraries:
            return None
        watched = self._since is not None and time.monotonic() - self._since > _PATIENCE
        return {
            "libraries": [{"path": path, "identity": own, "says": None} for (path, _), own in self._libraries.items()],
            "connected": True if self.known else False if watched else None,
            "itself": self._itself,
            "nccl": nccl([self._log.replace("%p", str(pid)) for pid in sorted(self._using)]) if self._log else None,
        }


def connections(members: Sequence[int]) -> List[Tuple[_End, _End]]:
    """Return both ends of each TCP connection of these processes, which share a network namespace."""
    sockets: Set[str] = set()
    for member in members:
        folder = "/proc/%d/fd" % member
        with suppress(OSError):  # it has ended, or a descriptor was closed
            for name in os.listdir(folder):
                target = os.readlink(os.path.join(folder, name))
                if target.startswith("socket:["):
                    sockets.add(target[8:-1])
    ends = []
    for table in ("tcp", "tcp6") if sockets else ():
        text = mapped_mpi.kernel_text("/proc/%d/net/%s" % (members[0], table))
        rows = [line.split() for line in text.splitlines()][1:]
        ends += [(_end(row[1]), _end(row[2])) for row in rows if row[3] == _ESTABLISHED and row[9] in sockets]
    return ends


def _end(text: str) -> _End:
    """Return an end of a connection, with an IPv4-mapped IPv6 address as IPv4."""
    address, _, port = text.partition(":")
    return (address[24:] if address.startswith("0" * 16 + "FFFF0000") else address), port


def nccl(paths: Sequence[str]) -> "Optional[Dict[str, Any]]":
    """Return the facts from NCCL's logs of these processes: version, network, and transport of the channels."""
    text = ""
    for path in paths:
        with suppress(OSError), open(path, "rb") as stream:  # this process did not use NCCL, or could not write
            text += stream.read(_MAX_LOG - len(text)).decode("utf-8", "replace")
    if not text:
        return None
    version = re.search(r"NCCL version (\S{1,40})", text)
    network = re.search(r"Using network (\S{1,40})", text)
    return {
        "version": version.group(1) if version else None,
        "network": network.group(1) if network else None,
        "via": sorted(set(re.findall(r"\bvia (NET/\w+|P2P|SHM|COLLNET|NVLS)", text))),
    }
