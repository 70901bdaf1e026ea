"""What the probe measures in addition to the ranks themselves: records, and what is wrong with them. Pure."""

from typing import Any, Callable, NamedTuple, Optional, Sequence

from deployer.contract.json_records import Record

#: What a job can be required to prove: GPUs that CUDA can use; Intel's extension active in TensorFlow.
GPU, ITEX = "gpu", "itex"

#: libfabric's providers that pin the memory from which they send: Omni-Path, InfiniBand, Slingshot, EFA.
_PINNING = ("psm2", "psm3", "opx", "verbs", "mlx", "ucx", "cxi", "efa")
#: Bytes of Horovod's default send buffer (HOROVOD_FUSION_THRESHOLD: 128 MiB in 0.28, 64 before). With less pinned
#: memory the library fails, or copies through small buffers. The kernel's default is 64 KiB, or 8 MiB since Linux 5.16.
_PINNED = 64 * 1024 * 1024
#: Bytes of /dev/shm per rank of a node; with less free, a crash of MPI at its start may be due to it. Ranks of a node
#: send through it. If it is full, the kernel ends them by SIGBUS without a message.
_SHARED = 8 * 1024 * 1024


class Allreduce(NamedTuple):
    """A short MPI_Allreduce of doubles over all ranks, as this rank measured it.

    Attributes:
        nanoseconds: the median time for 8 bytes.
        bytes: the size of the large message.
        bytes_per_second: that size over its median time; not the traffic that it makes.
        wrong: the wrong sum that resulted, or None.
    """

    nanoseconds: int
    bytes: int
    bytes_per_second: int
    wrong: Optional[str] = None

    def shown(self) -> Record:
        """Return the figures in common units: microseconds, and 10^6 bytes per second."""
        return {
            "latency_us": round(self.nanoseconds / 1e3, 1),
            "bytes": self.bytes,
            "bandwidth_mb_s": round(self.bytes_per_second / 1e6, 1),
        }


class GpuMeasurement(NamedTuple):
    """A node's GPUs as CUDA sees them in the container.

    Attributes:
        driver: the version of the kernel module.
        cuda: the CUDA version that the driver's library offers.
        devices: the number of devices.
        reason: why they cannot be used, or None.
    """

    driver: Optional[str]
    cuda: Optional[str]
    devices: Optional[int]
    reason: Optional[str]


class Measures(NamedTuple):
    """What the probe of one rank measured.

    Attributes:
        memlock: the limit of locked memory in bytes; None: no limit.
        allreduce: the figures of a short MPI_Allreduce; None: not measured.
        gpu: the node's GPUs; None: not measured.
        shm: bytes that were free in /dev/shm before MPI started; None: not measured.
    """

    memlock: Optional[int]
    allreduce: Optional[Allreduce] = None
    gpu: Optional[GpuMeasurement] = None
    shm: Optional[int] = None


def explain(free: Optional[int], ranks_per_node: int, note: Callable[..., Any], sure: bool = False) -> None:
    """Call ``note`` if too little free space in /dev/shm may have ended a rank.

    Args:
        free: bytes that were free; None if unknown.
        note: receives the code and the values of a finding.
        sure: a signal shows that this was the reason; otherwise the rank ended in MPI_Init.
    """
    if (ranks_per_node > 1 or sure) and free is not None and free < ranks_per_node * _SHARED:
        note("limits.shm", folder="/dev/shm", free=free, ranks=ranks_per_node)  # noqa: S108


def judge(found: Measures, expects: Sequence[str], provider: Optional[str], note: Callable[..., Any]) -> None:
    """Call ``note`` with the code and values of each finding about one rank; ``provider`` is libfabric's."""
    if (provider or "").split(";")[0] in _PINNING and found.memlock is not None and found.memlock < _PINNED:
        note("limits.memlock", limit=found.memlock, provider=provider, needed=_PINNED)
    if found.allreduce and found.allreduce.wrong:
        note("mpi.allreduce", wrong=found.allreduce.wrong)
    if GPU in expects and found.gpu and found.gpu.reason:
        note("gpu.unusable", reason=found.gpu.reason)


def shown(found: Optional[Measures]) -> Record:
    """Return the fields of a rank's measurements in result.json; GPUs are shown with the rank that looked for them."""
    return {
        "memlock": found.memlock if found else None,
        "shm": found.shm if found else None,
        "allreduce": found.allreduce.shown() if found and found.allreduce else None,
        "gpu": dict(found.gpu._asdict()) if found and found.gpu else None,
    }
