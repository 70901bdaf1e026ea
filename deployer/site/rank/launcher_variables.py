"""Whether the payload's programs that have an MPI library mapped see what the launcher gave to their rank.

Without it each rank is a world of one, and the program ends well. The kernel shows the environment with which a program
was started (``/proc/PID/environ``), not what it changes itself later. Imported by ``payload_monitor`` only once such a
library is mapped.
"""

import os

from deployer.site.rank.mapped_mpi import kernel_data
from deployer.site.rank.rank import parsed_environment

MYPY = False
if MYPY:
    from typing import Dict, List, Optional, Set

    from deployer.site.rank.mapped_mpi import Mapping

#: By these a library finds its launcher, as tried with MPICH, Intel MPI and Open MPI. Other libraries of MPICH's family
#: use the first group as well.
_PMI, _PMIX = ("PMI_FD", "PMI_PORT", "PMI_CONTROL_PORT"), ("PMIX_NAMESPACE", "PMIX_RANK")
_OPENMPI = (".so.40", ".so.20")


class LauncherVariables(object):
    """The launcher's variables of this process, its payload's parent, compared with those of the payload's programs."""

    def __init__(self) -> None:
        self._own = _environment(os.getpid()) or {}
        self._found = False
        self._missing: "Set[str]" = set()

    def look(self, member: int, libraries: "List[Mapping]") -> None:
        """Compare with the process ``member``, which has these libraries mapped."""
        if self._found:
            return
        seen = _environment(member)
        if seen is None:
            return
        given = [name for name in _names(libraries) if name in self._own]
        missing = [name for name in given if name not in seen]
        self._missing.update(missing)
        self._found = bool(given) and not missing

    @property
    def missing(self) -> "List[str]":
        """Return the variables that the programs lack; empty if one of them has all, which starts the others."""
        return [] if self._found else sorted(self._missing)


def _names(libraries: "List[Mapping]") -> "List[str]":
    """Return the variables by which a library may find its launcher."""
    names = [os.path.basename(path) for path, _ in libraries]
    return [*(_PMIX if any(mark in name for name in names for mark in _OPENMPI) else _PMI)]


def _environment(pid: int) -> "Optional[Dict[str, str]]":
    """Return the environment of a process; None if it has ended, or has written another text over it (setproctitle)."""
    data = kernel_data("/proc/%d/environ" % pid)
    if data is None or data.startswith(b"\0") or b"\0\0" in data or (data and not data.endswith(b"\0")):
        return None
    return parsed_environment(data)
