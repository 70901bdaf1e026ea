"""The probe's measurements besides the ranks themselves: records, and the findings about them. Pure."""

import re
from typing import Iterable, Iterator, Mapping, NamedTuple, Optional, Pattern, Sequence, Tuple

from deployer.contract.base import records
from deployer.contract.base.json_records import Record

#: What a job can be required to prove: GPUs of NVIDIA, AMD or Intel that it can use; Intel's extension active in
#: TensorFlow.
GPU, AMD_GPU, INTEL_GPU, ITEX = "gpu", "gpu-amd", "gpu-intel", "itex"

#: libfabric's providers that pin the memory that they send from: Omni-Path, InfiniBand, Slingshot, EFA.
_PINNING = ("psm2", "psm3", "opx", "verbs", "mlx", "ucx", "cxi", "efa")
#: Bytes of Horovod's default send buffer (HOROVOD_FUSION_THRESHOLD: 128 MiB in 0.28, 64 before). With less pinned
#: memory the library fails, or copies through small buffers. The kernel's default is 64 KiB, or 8 MiB since Linux 5.16.
_PINNED = 64 * 1024 * 1024
#: Bytes of /dev/shm per rank of a node. Ranks of a node communicate through it. If less is free, this may explain a
#: crash of MPI at its start: the kernel ends ranks with SIGBUS, without a message, when /dev/shm is full.
_SHARED = 8 * 1024 * 1024


#: The code and the values of a finding.
Noted = Tuple[str, Record]


class Limit(NamedTuple):
    """A process limit that batch systems pass on from the shell that submits a job.

    Attributes:
        words: what it limits, and its unit.
        low: a limit below this value may explain a crash of MPI at its start; 0: it never does.
        signals: the numbers of the signals that the kernel sends to a process that exceeds it.
        line: how programs report that they reached it.
    """

    words: str
    low: int
    signals: Tuple[int, ...]
    line: Pattern[str]


#: The limits by `ulimit` option, with values in the units of that option.
LIMITS: Mapping[str, Limit] = {
    "v": Limit("KiB of address space", 4 << 20, (), re.compile("^MemoryError|Cannot allocate memory|bad_alloc")),
    "n": Limit("open files", 64, (), re.compile("Too many open files")),
    "u": Limit("processes of the user", 64, (), re.compile("can't start new thread|fork: .*temporarily unavailable")),
    "f": Limit("KiB per file", 1 << 14, (25,), re.compile("File too large")),
    "t": Limit("seconds of processor time", 0, (24,), re.compile("CPU time limit exceeded")),
}


class Allreduce(NamedTuple):
    """A short MPI_Allreduce of doubles over all ranks, measured on this rank.

    Attributes:
        nanoseconds: the median time for 8 bytes.
        bytes: the size of the large message.
        bytes_per_second: that size divided by its median time; not the resulting traffic.
        wrong: the incorrect sum that resulted, or None.
    """

    nanoseconds: int
    bytes: int
    bytes_per_second: int
    wrong: Optional[str] = None

    def shown(self) -> Record:
        """Return the figures in common units: microseconds and 10^6 bytes per second."""
        return {
            "latency_us": round(self.nanoseconds / 1e3, 1),
            "bytes": self.bytes,
            "bandwidth_mb_s": round(self.bytes_per_second / 1e6, 1),
        }


class NodeLink(NamedTuple):
    """The connection from this rank's node to the next one of the job, measured by the first rank of each node.

    Attributes:
        peer: the rank on the next node.
        nanoseconds: half of the shortest round trip of 8 bytes.
        bytes: the size of the largest message; less than 4 MiB if there was no time for more.
        bytes_per_second: that size divided by its shortest time, to the other node.
        bytes_per_second_back: the same, from it.
    """

    peer: int
    nanoseconds: int
    bytes: int
    bytes_per_second: int
    bytes_per_second_back: int


class GpuMeasurement(NamedTuple):
    """A node's GPUs as the vendor's library, or the kernel, shows them in the container.

    Attributes:
        driver: the version of the kernel module.
        cuda: the CUDA version that NVIDIA's library offers.
        devices: the number of devices.
        reason: why they cannot be used, or None.
    """

    driver: Optional[str]
    cuda: Optional[str]
    devices: Optional[int]
    reason: Optional[str]


class Measures(NamedTuple):
    """The measurements of one rank's probe.

    Attributes:
        memlock: the limit for locked memory in bytes; None: no limit.
        allreduce: the figures of a short MPI_Allreduce; None: not measured.
        gpu: the node's GPUs; None: not measured.
        shm: bytes that were free in /dev/shm before MPI started; None: not measured.
        limits: the limits of its processes by their names in ``LIMITS``; those without a limit are left out.
        link: the connection to the next node; None: this rank measured none.
    """

    memlock: Optional[int]
    allreduce: Optional[Allreduce] = None
    gpu: Optional[GpuMeasurement] = None
    shm: Optional[int] = None
    limits: Mapping[str, int] = {}
    link: Optional[NodeLink] = None


def explain(free: Optional[int], ranks_per_node: int, sure: bool = False) -> Iterator[Noted]:
    """Yield a finding if too little free space in /dev/shm may have ended a rank.

    Args:
        free: bytes that were free; None if unknown.
        sure: a signal shows that this was the reason; otherwise the rank ended in MPI_Init.
    """
    if (ranks_per_node > 1 or sure) and free is not None and free < ranks_per_node * _SHARED:
        yield "limits.shm", {"folder": "/dev/shm", "free": free, "ranks": ranks_per_node}  # noqa: S108


def low(limits: Mapping[str, int]) -> Iterator[Noted]:
    """Yield a finding for each process limit that may have ended MPI at its start."""
    return _noted(limits, (name for name, limit in LIMITS.items() if limits.get(name, limit.low) < limit.low))


def reached(limits: Mapping[str, int], signal: Optional[int], line: str) -> Iterator[Noted]:
    """Yield a finding for each process limit that was reached according to a signal or a line of a program."""
    return _noted(limits, (name for name, each in LIMITS.items() if each.line.search(line) or signal in each.signals))


def _noted(limits: Mapping[str, int], names: Iterable[str]) -> Iterator[Noted]:
    for name in names:
        if name in limits:
            yield "limits.process", {"value": limits[name], "option": name, "limit": LIMITS[name].words}


def judge(measures: Measures, expects: Sequence[str], provider: Optional[str]) -> Iterator[Noted]:
    """Yield the findings about a rank's measurements; ``provider`` is libfabric's provider."""
    memlock, allreduce, gpu = measures.memlock, measures.allreduce, measures.gpu
    if (provider or "").split(";")[0] in _PINNING and memlock is not None and memlock < _PINNED:
        yield "limits.memlock", {"limit": memlock, "provider": provider, "needed": _PINNED}
    if allreduce and allreduce.wrong:
        yield "mpi.allreduce", {"wrong": allreduce.wrong}
    if {GPU, AMD_GPU, INTEL_GPU} & set(expects) and gpu and gpu.reason:
        yield "gpu.unusable", {"reason": gpu.reason}


def shown(measures: Optional[Measures]) -> Record:
    """Return a rank's measurements for result.json; GPUs are shown only for the rank that measured them."""
    memlock, allreduce, gpu, shm, _, _ = measures or Measures(None)
    return {
        "memlock": memlock,
        "shm": shm,
        "allreduce": allreduce.shown() if allreduce else None,
        "gpu": records.plain(gpu),
    }
