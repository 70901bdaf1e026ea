"""Observation of a rank from outside its container, for an image without Python.

The kernel shows the mapped files, environment, descriptors and CPUs of a user's own processes, even in a user namespace
of that user. No code from the image runs outside.
"""

import os
import re
from typing import Dict, Mapping, Optional, Sequence

from deployer.contract.base.errors import DeployerError
from deployer.contract.elf import dynamic
from deployer.contract.proof.payload import Outside
from deployer.site.proof import rank_record
from deployer.site.rank.launched import SIZE, TASK, number, parsed_environment
from deployer.site.rank.observed import mapped_mpi
from deployer.system import elf, file_identity

#: Libraries with which MPICH's family may communicate with a launcher; Open MPI has such libraries too.
_PMI_LIBRARY = re.compile(r"/libpmi2?(-[0-9a-f]{8})?\.so|/libpmix[^/]*\.so")
_PMI2_LIBRARY = re.compile(r"/libpmi2?(-[0-9a-f]{8})?\.so")
_OPENMPI = re.compile(r"^libmpi(-[0-9a-f]{8})?\.so\.(20|40)")
_MPICH = re.compile(r"^libmpi(ch\w*|_\w+)?(-[0-9a-f]{8})?\.so\.12|^libmpi_abi")


class Watcher:
    """An observer of one rank's processes; ``library`` is the plan's MPI on this host, or None."""

    def __init__(self, library: Optional[str]) -> None:
        self._library = library
        self._static: Dict[int, Optional[str]] = {}
        self.seen: Optional[Outside] = None

    def host_copy(self, identity: str) -> Optional[str]:
        """Return the host's own file for a mapped library, which may be loaded here; None if there is none."""
        if self._library is None:
            return None
        try:
            return self._library if elf.identity(self._library) == identity else None
        except DeployerError:
            return None

    def look(self, member: int, maps: str) -> None:
        """Record the facts of the process ``member``; a process with MPI is preferred."""
        libraries = mapped_mpi.mpi_libraries(maps)
        if not libraries and self.seen is not None and self.seen.has_mpi:
            return
        try:
            variables = parsed_environment(mapped_mpi.kernel_data("/proc/%d/environ" % member) or b"")
            descriptors = os.listdir("/proc/%d/fd" % member)
            cpus = rank_record.render_numbers(os.sched_getaffinity(member))
        except OSError:  # it has ended
            return
        static = None if libraries else self._search(member)
        self.seen = Outside(
            rank=number(variables, TASK),
            size=number(variables, SIZE),
            alone=alone(variables, maps, descriptors, os.path.basename(libraries[0][0])) if libraries else None,
            static=static or (self.seen.static if self.seen and not libraries else None),
            threads=number(variables, ("OMP_NUM_THREADS",)),
            cpus=cpus,
            has_mpi=bool(libraries),
        )

    def _search(self, member: int) -> Optional[str]:
        """Return the path of the member's program if MPI is statically linked into it."""
        path = "/proc/%d/exe" % member
        try:
            inode = os.stat(path).st_ino
            if inode not in self._static:
                self._static[inode] = os.readlink(path) if has_mpi(path) else None
            return self._static[inode]
        except (OSError, ValueError, DeployerError):
            return None


def alone(names: Mapping[str, str], maps: str, descriptors: Sequence[str], library: str) -> Optional[str]:
    """Return why the MPI ``library`` cannot find the other ranks; None if there is no sign of that.

    Without a connection to the launcher, it forms a world of one rank, and the program ends without an error.

    Args:
        names: the environment of its process.
        maps: the text of the process's ``/proc/PID/maps``.
        descriptors: the numbers of its open descriptors.
    """
    if _OPENMPI.match(library):
        if "PMIX_RANK" in names or ("PMI_RANK" in names and _PMI2_LIBRARY.search(maps)):
            return None
        return "Open MPI finds its launcher by PMIx, and PMIX_RANK is not in its environment"
    if not _MPICH.match(library) or "PMI_PORT" in names:
        return None
    descriptor = names.get("PMI_FD")
    if descriptor is None:
        if _PMI_LIBRARY.search(maps) and any(name in names for name in ("PMI_RANK", "PMIX_RANK", "SLURM_PROCID")):
            return None
        return f"{library} finds its launcher by PMI, and PMI_FD is not in its environment"
    return None if descriptor in descriptors else f"PMI_FD names descriptor {descriptor}, which is not open"


def has_mpi(path: str) -> bool:
    """Return whether an MPI library is statically linked into the program at ``path``, so that none is mapped."""
    with open(path, "rb") as stream:
        facts = dynamic.facts(file_identity.reader(stream.fileno()))
        return facts is not None and facts.linked is not None
