"""A check that the payload's MPI programs have the variables that the launcher set for their rank.

Without these variables, each rank forms a world of one, and the program ends without an error. The kernel shows the
initial environment of a program (``/proc/PID/environ``), not its own later changes. ``payload_monitor`` imports this
module only after an MPI library is mapped.
"""

import os

from deployer.site.rank.launched import parsed_environment
from deployer.site.rank.observed.mapped_mpi import kernel_data

#: Variables with which a library finds its launcher, tested with MPICH, Intel MPI and Open MPI. Other libraries in
#: MPICH's family also use the first group.
_PMI, _PMIX = ("PMI_FD", "PMI_PORT", "PMI_CONTROL_PORT"), ("PMIX_NAMESPACE", "PMIX_RANK")
_OPENMPI = (".so.40", ".so.20")


class LauncherVariables:
    """The launcher's variables in this process, the payload's parent, compared with those in the payload's programs."""

    def __init__(self) -> None:
        self._own = _environment(os.getpid()) or {}
        self._found = False
        self._missing: "set[str]" = set()

    def look(self, member: int, libraries: "list[tuple[str, int]]") -> None:
        """Compare them with those of the process ``member``, which has these libraries mapped."""
        if self._found:
            return
        seen = _environment(member)
        if seen is None:
            return
        files = [os.path.basename(path) for path, _ in libraries]
        names = _PMIX if any(mark in file for file in files for mark in _OPENMPI) else _PMI
        given = [name for name in names if name in self._own]
        missing = [name for name in given if name not in seen]
        self._missing.update(missing)
        self._found = bool(given) and not missing

    @property
    def missing(self) -> "list[str]":
        """Return the variables that the programs lack; empty if one of them, which starts the others, has all."""
        return [] if self._found else sorted(self._missing)


def _environment(pid: int) -> "dict[str, str] | None":
    """Return the environment of a process; None if it has ended or has overwritten the text (setproctitle)."""
    data = kernel_data("/proc/%d/environ" % pid)
    if data is None or data.startswith(b"\0") or b"\0\0" in data or (data and not data.endswith(b"\0")):
        return None
    return parsed_environment(data)
