"""The probe's few MPI calls, through ctypes, in the library that the container's loader finds.

No packages of the image are needed. An MPI library may end or hang the process in any of these calls, so callers record
each step before they call it. Each rank imports this before its payload, so it imports as little as ``rank``.
"""

import ctypes
import os

MYPY = False
if MYPY:
    from typing import Any, List, Optional, Sequence, Tuple

    #: The handles of an ABI for MPI_COMM_WORLD, MPI_DOUBLE and MPI_SUM.
    _Handles = Tuple[Any, Any, Any]

#: Sonames to try if the plan lists no library: MPICH's ABI, Open MPI, Debian's MPICH, the ABI of MPI 5.
USUAL_SONAMES = ("libmpi.so.12", "libmpi.so.40", "libmpich.so.12", "libmpi_abi.so.1")
#: Folders in images with an MPI library that the loader does not find by default.
USUAL_FOLDERS = (
    "", "/usr/local/lib", "/opt/mpich/lib", "/opt/openmpi/lib", "/usr/lib64/mpich/lib", "/usr/lib64/openmpi/lib",
)  # fmt: skip

_THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")


# MPI_COMM_WORLD, MPI_DOUBLE and MPI_SUM.
# Source: mpi.h of MPICH 4.2.3 and 5.0.2 and of Open MPI 5.0.11, mpi_abi.h of MPICH 5.0.2.
_MPICH = (ctypes.c_int(0x44000000), ctypes.c_int(0x4C00080B), ctypes.c_int(0x58000003))
_STANDARD = (ctypes.c_void_p(0x101), ctypes.c_void_p(0x214), ctypes.c_void_p(0x21))  # the ABI of MPI 5
_OPENMPI = ("ompi_mpi_comm_world", "ompi_mpi_double", "ompi_mpi_op_sum")


class MpiError(Exception):
    """Error: no MPI library could be loaded, or an MPI call failed, with the reason."""


class Library:
    """A loaded MPI library.

    Attributes:
        rank: this process's number in MPI_COMM_WORLD, after ``start``.
        size: the number of ranks.
        thread_level: the level that was granted when ``multiple`` was requested.
    """

    def __init__(self, handle: "Any") -> None:
        self._handle = handle
        self._handles = _handles(handle)
        self.rank = self.size = 0
        self.thread_level = ""

    def version(self) -> str:
        """Return the first line of MPI_Get_library_version, which may be called before MPI_Init."""
        text = ctypes.create_string_buffer(8192 + 1)
        length = ctypes.c_int()
        self._call("MPI_Get_library_version", text, ctypes.byref(length))
        lines = text.value.decode("utf-8", "replace").splitlines()
        return " ".join(lines[0].split()) if lines else ""

    def start(self) -> None:
        """Call MPI_Init_thread, and set rank and size."""
        granted, rank, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("MPI_Init_thread", None, None, len(_THREAD_LEVELS) - 1, ctypes.byref(granted))
        all_ranks, _, _ = self._handles
        self._call("MPI_Comm_rank", all_ranks, ctypes.byref(rank))
        self._call("MPI_Comm_size", all_ranks, ctypes.byref(size))
        level = granted.value
        self.rank, self.size = rank.value, size.value
        self.thread_level = _THREAD_LEVELS[level] if 0 <= level < 4 else str(level)

    def meet(self) -> None:
        """Wait for all other ranks (MPI_Barrier), to show that the network works."""
        self._call("MPI_Barrier", self._handles[0])

    def sum(self, given: "Any", taken: "Any", count: int) -> None:
        """Sum ``count`` doubles in ``given`` over all ranks into ``taken`` (MPI_Allreduce)."""
        all_ranks, double, addition = self._handles
        self._call("MPI_Allreduce", given, taken, count, double, addition, all_ranks)

    def gather(self, value: float) -> "List[float]":
        """Return ``value`` of each rank, in their order (MPI_Allgather)."""
        all_ranks, double, _ = self._handles
        values = (ctypes.c_double * self.size)()
        self._call("MPI_Allgather", (ctypes.c_double * 1)(value), 1, double, values, 1, double, all_ranks)
        return list(values)

    def send(self, given: "Any", count: int, to: int) -> None:
        """Send ``count`` doubles to a rank (MPI_Send)."""
        all_ranks, double, _ = self._handles
        self._call("MPI_Send", given, count, double, to, 0, all_ranks)

    def receive(self, taken: "Any", count: int, sender: int) -> None:
        """Receive ``count`` doubles from a rank (MPI_Recv); the status has room for every ABI's MPI_Status."""
        all_ranks, double, _ = self._handles
        status = ctypes.create_string_buffer(64)
        self._call("MPI_Recv", taken, count, double, sender, 0, all_ranks, status)

    def end(self) -> None:
        """Call MPI_Finalize."""
        self._call("MPI_Finalize")

    def _call(self, name: str, *arguments: "Any") -> None:
        code = getattr(self._handle, name)(*arguments)
        if code != 0:
            raise MpiError("%s failed with error %d" % (name, code))


def load(names: "Sequence[str]") -> Library:
    """Load the first of ``names`` (sonames or paths) that the loader finds. Raises MpiError with the reasons."""
    reasons = []
    for folder in USUAL_FOLDERS:
        for name in names:
            path = os.path.join(folder, name)
            if folder and not os.path.exists(path):  # noqa: TID251 (the loader's own test)
                continue
            try:
                # RTLD_GLOBAL, because Open MPI's components need its symbols.
                return Library(ctypes.CDLL(path, ctypes.RTLD_GLOBAL))
            except (OSError, AttributeError) as error:
                reasons.append(str(error))
    raise MpiError("; ".join(reasons[: len(names)]))


def _handles(handle: "Any") -> "_Handles":
    """Return the handles in the library's ABI: addresses for Open MPI, numbers for the others."""
    try:
        addresses = [ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(handle, name))) for name in _OPENMPI]
        return addresses[0], addresses[1], addresses[2]
    except ValueError:
        return _STANDARD if "libmpi_abi" in getattr(handle, "_name", "") else _MPICH


def flush() -> None:
    """Flush the C streams, so that the library's output is in the file."""
    ctypes.CDLL(None).fflush(None)


def provider(text: str) -> "Optional[str]":
    """Return libfabric's provider from the start-up text of Intel MPI (I_MPI_DEBUG) or MPICH (DEBUG_SUMMARY)."""
    for line in text.splitlines():
        _, mark, rest = line.partition("libfabric provider: ")
        if mark and rest.strip():
            return rest.split()[0]
    return None
