"""Detection of Intel's extension in a payload's TensorFlow, from the files that the payload's processes have mapped.

If the extension is incompatible, TensorFlow continues without a message. Its API proves nothing (``get_backend()``
returns GPU on a CPU). The extension has a library of kernels for each instruction set, which only ``import tensorflow``
maps. Three events show that the import has ended: Horovod's library for TensorFlow is mapped; more CPU time was used
than an import takes; or the payload has ended. A slow disk or a busy node does not increase the CPU time.
"""

import os
import re
from typing import Dict, Optional, Set

from deployer.contract.proof.payload import Itex
from deployer.site.rank.observed.mapped_mpi import kernel_text

_KERNELS = re.compile(r"/(libitex_[cg]pu_internal\w*\.so)$", re.MULTILINE)
_TENSORFLOW = re.compile(r"/_pywrap_tensorflow_internal\.so$", re.MULTILINE)
_HOROVOD = re.compile(r"/horovod/tensorflow/mpi_lib[\w.-]*\.so$", re.MULTILINE)
#: Seconds of CPU time after TensorFlow is mapped; its import took 3 to 6 s, and its kernels soon use more.
_PATIENCE = 20.0


class Sight:
    """The observations of the extension in a payload; ``verdict`` is None until the result is known."""

    def __init__(self) -> None:
        self.verdict: Optional[Itex] = None
        self._since: Dict[int, float] = {}
        self._joined: Set[int] = set()

    def look(self, pid: int, maps: str) -> None:
        """Examine a process of the payload, given the text of its ``/proc/PID/maps``."""
        if self.verdict or not _TENSORFLOW.search(maps):
            return
        kernels = _KERNELS.search(maps)
        used = cpu_seconds(pid)
        since = self._since.setdefault(pid, used)
        if kernels:
            self.verdict = Itex(kernels.group(1), None)
        elif pid in self._joined:
            self.verdict = _inactive("Horovod has joined it")
        elif _HOROVOD.search(maps):
            self._joined.add(pid)  # the text is not a snapshot: only the next one is sure to have all earlier mappings
        elif used - since > _PATIENCE:
            self.verdict = _inactive("it has computed for %d s" % _PATIENCE)

    def end(self) -> None:
        """Record that the payload has ended without an error and without a signal from deployer."""
        if self._since and not self.verdict:
            self.verdict = _inactive("the payload has ended")


def _inactive(when: str) -> Itex:
    return Itex(None, f"TensorFlow maps no libitex_*_internal*.so, and {when}")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process; 0 if it has ended."""
    # The second field is the program's name in brackets; the 14th and 15th are its CPU time (proc(5)).
    fields = kernel_text("/proc/%d/stat" % pid).rpartition(")")[2].split()[11:13]
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")
