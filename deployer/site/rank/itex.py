"""Is Intel's extension active in a payload's TensorFlow: seen in what the payload's own processes have mapped.

TensorFlow goes on without the extension when it does not fit, and nobody notices; its API says nothing that proves
anything (``get_backend()`` says GPU on a CPU). Its library of kernels, one for each instruction set, is mapped by
``import tensorflow`` or never. That the import is over is known by what comes after it: Horovod's own library for
TensorFlow, more CPU time than an import takes (of that, a slow disk or a loaded node makes no more), or the end.
"""

import os
import re
from typing import Dict, List, Optional, Set

from deployer.contract.payload import Itex

_KERNELS = re.compile(r"/(libitex_[cg]pu_internal\w*\.so)$", re.MULTILINE)
_TENSORFLOW = re.compile(r"/_pywrap_tensorflow_internal\.so$", re.MULTILINE)
_HOROVOD = re.compile(r"/horovod/tensorflow/mpi_lib[\w.-]*\.so$", re.MULTILINE)
#: Seconds of CPU time from when TensorFlow is mapped; its import took 3 to 6, its kernels burn them in a moment.
_PATIENCE = 20.0


class Sight(object):
    """What was seen of the extension in a payload so far: ``verdict`` is None while nothing is known."""

    def __init__(self) -> None:
        self.verdict: Optional[Itex] = None
        self._since: Dict[int, float] = {}
        self._joined: Set[int] = set()

    def look(self, pid: int, maps: str) -> None:
        """Look at a process of the payload by the text of its ``/proc/PID/maps``."""
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
            self._joined.add(pid)  # the text is no snapshot: what came before it is sure to stand in the next one
        elif used - since > _PATIENCE:
            self.verdict = _inactive("it has computed for %d s" % _PATIENCE)

    def end(self) -> None:
        """The payload has ended well, and by itself."""
        if self._since and not self.verdict:
            self.verdict = _inactive("the payload has ended")


def _inactive(when: str) -> Itex:
    return Itex(None, "TensorFlow maps no libitex_*_internal*.so, and %s" % when)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that all threads of a process have used; 0 where it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            # The second field is the program's name in brackets; the 14th and 15th are its time (proc(5)).
            fields: List[bytes] = stream.read().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
