"""The records of all ranks on a node, in one file in a folder of the job; imports as little as ``rank``.

A rank opens the file once and appends each update of a record with one call; ``site.proof.rank_record`` describes the
lines. All processes that append use the same kernel, so every file system keeps their lines apart. The file stays open
until the last update. A file system that writes when a file is closed (NFS) writes earlier updates within its usual
delay, and immediately if the process is killed.
"""

import errno
import os

from deployer.site.proof import rank_record
from deployer.system import payload

#: The kernel's random number for this boot, and the number of its digits in names: enough to be unique among a job's
#: nodes.
_BOOT, _DIGITS = "/proc/sys/kernel/random/boot_id", 8


def node_name() -> str:
    """Return the name of this node's files: its host name, which may not be unique, and part of the boot id."""
    host = os.uname().nodename
    try:
        with open(_BOOT, "rb") as stream:
            return "{}.{}".format(host, stream.read(_DIGITS).decode("ascii"))
    except OSError:  # missing in a container's /proc: the first step of a job refuses nodes with the same name
        return host


class NodeRecords:
    """This node's file in the folder ``out``, opened at the first record."""

    def __init__(self, out: str) -> None:
        self.path = os.path.join(out, node_name() + rank_record.SUFFIX)
        self._descriptor: "int | None" = None

    def add(self, name: str, text: str, last: bool = False) -> None:
        """Append a record, replacing an earlier one with this name; ``last``: none follows. Raises OSError."""
        line = rank_record.line(name, text)
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            # After a partial write, repeat the whole line: another rank may have appended. An error has the reason.
            if os.write(self._descriptor, line) < len(line) and os.write(self._descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            if last:
                descriptor, self._descriptor = self._descriptor, None
                os.close(descriptor)  # some file systems report a full disk only now

    def try_to_add(self, name: str, text: str, last: bool = False) -> None:
        """Append a record like ``add``, but print a failure, which must not end a running training."""
        try:
            self.add(name, text, last)
        except OSError as error:
            payload.complain(f"deployer: error: cannot write {self.path}: {error.strerror}")
