"""The MPI library that a running process has mapped, the only evidence that paths and environments cannot fake.

For a bind mount, ``/proc/PID/maps`` shows a file's path in the container. Therefore a path is used only to open the
file again, and is trusted only if the opened file has the mapped inode.
"""

import os

MYPY = False
if MYPY:  # see ``rank``
    from typing import List, Optional, Sequence, Tuple

    #: A mapped file: its path in the process's view, and its inode.
    Mapping = Tuple[str, int]

#: The beginning of each MPI library's name.
_BEGIN = "libmpi"
#: Maximum number of bytes to read from a kernel file.
_MAX = 64 * 1024 * 1024
#: libmpi.so.12, libmpich.so.12, libmpi_cray.so.12, libmpi_gnu_123.so.12, libmpi_abi.so.1, libmpi-1a2b3c4d.so.40 (the
#: names in wheels); not the Fortran and C++ wrappers around it (libmpifort, libmpi_mpifh, libmpicxx).
_MPI_LIBRARY = _BEGIN + r"(ch)?(_cray|_gnu_\d+|_intel|_nvidia|_abi|_dbg|_mt|_dbg_mt)?(-[0-9a-f]{8})?\.so(\.\d+)*$"


def mpi_libraries(text: str) -> "List[Mapping]":
    """Return the MPI libraries in the text of a ``/proc/PID/maps``, without duplicates, in order of address."""
    mappings = mapped_files(text, _BEGIN)
    if not mappings:
        return []
    import re  # slower than everything else here, and most processes map no such file

    return [mapping for mapping in mappings if re.match(_MPI_LIBRARY, os.path.basename(mapping[0]))]


def mapped_files(text: str, mark: str) -> "List[Mapping]":
    """Return the files in the lines of a ``/proc/PID/maps`` that contain ``mark``, unique and in order of address."""
    # address perms offset device inode path; a path may contain spaces, or end with " (deleted)"
    lines = [line.split(None, 5) for line in text.splitlines() if mark in line]
    return [*dict.fromkeys((line[5], int(line[4])) for line in lines if len(line) == 6 and line[4].isdigit())]


def maps(pid: int) -> str:
    """Return the text of the maps of process ``pid``; empty if it has ended or is not readable."""
    return kernel_text("/proc/%d/maps" % pid)


def kernel_text(path: str) -> str:
    """Return the text of a kernel file; empty if this process cannot read it."""
    return (kernel_data(path) or b"").decode("utf-8", "replace")


def kernel_data(path: str) -> "Optional[bytes]":
    """Return the content of a kernel file; None if this process cannot read it, or the file's process has ended."""
    try:
        with open(path, "rb") as stream:
            return stream.read(_MAX)
    except OSError:
        return None


def identity(pid: int, mapping: "Mapping") -> str:
    """Return the identity of a file that process ``pid`` has mapped.

    It is ``unknown:inode:N`` if its path now leads to another file.
    """
    from deployer.system import file_identity

    place = reopened(pid, mapping)
    try:
        return file_identity.identity(place or "")
    except OSError:
        return "unknown:inode:%d" % mapping[1]


def reopened(pid: int, mapping: "Mapping") -> "Optional[str]":
    """Return a path at which this process can open the exact file that process ``pid`` has mapped, or None."""
    path, inode = mapping
    # Under proot, the kernel's paths are host paths, so they must not be resolved in the process's root.
    for place in (path, "/proc/%d/root%s" % (pid, path), *_single_files()):
        try:
            if os.stat(place).st_ino == inode:
                return place
        except OSError:
            continue
    return None


def _single_files() -> "List[str]":
    """Return the MPI libraries among the single host files in this container.

    Under proot, maps has the host path of such a file, and an image may have a different file at this path.
    """
    from deployer.contract.rules.hostfiles import LIBRARIES

    try:
        return [LIBRARIES + "/" + name for name in os.listdir(LIBRARIES) if name.startswith(_BEGIN)]
    except OSError:
        return []


def family(pid: int) -> "List[int]":
    """Return ``pid`` and its descendants, or only ``pid`` if the kernel does not list them (CONFIG_PROC_CHILDREN)."""
    members = [pid]
    for parent in members:  # the list grows during the loop
        try:
            for task in os.listdir("/proc/%d/task" % parent):
                members.extend(map(int, kernel_text("/proc/%d/task/%s/children" % (parent, task)).split()))
        except OSError:
            continue
    return members


def send(members: "Sequence[int]", number: int) -> None:
    """Send a signal to those processes that still run and belong to this user."""
    for member in members:
        try:
            os.kill(member, number)
        except OSError:
            continue
