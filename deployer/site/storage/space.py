"""Check that there is space for an image, in bytes, inodes and quota, before anything is written."""

import ctypes
import errno
import os
import tempfile
from contextlib import suppress
from typing import Optional

from deployer.contract.base.errors import SpaceError

_HINT = "free some (gc, remove), or choose another folder with --root"
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE, linux/falloc.h
#: File systems in memory, where a reservation works page by page, as slow as writing. statvfs is enough there.
_IN_MEMORY = ("tmpfs", "ramfs")


def check(folder: str, size: int, entries: int) -> None:
    """Raise SpaceError unless the file system of ``folder`` has space for ``size`` bytes in ``entries`` files.

    A quota of bytes is tested with a reservation (fallocate), if the file system supports it, which is released
    immediately. A quota of inodes cannot be tested: the write that exceeds it fails, and its files are removed.
    """
    state = os.statvfs(folder)
    # Each file fills whole blocks, so half a block is lost on average.
    need = size + entries * state.f_frsize // 2
    free = state.f_bavail * state.f_frsize
    if free < need:
        words = (folder, human(free), human(need), human(need - free))
        raise SpaceError("{} has {} free; {} are needed: {} are missing".format(*words), _HINT)
    if state.f_files and state.f_favail < entries:
        raise SpaceError("%s has %d inodes free; %d are needed" % (folder, state.f_favail, entries), _HINT)
    if not in_memory(folder):
        _check_quota(folder, need)


def in_memory(folder: str) -> bool:
    """Return whether the files of ``folder`` are in this host's memory."""
    return _file_system(folder) in _IN_MEMORY


def available_memory() -> Optional[int]:
    """Return the bytes of memory that the kernel can provide without swapping; None if unknown."""
    with suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as stream:
        for line in stream:
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) * 1024
    return None


def human(size: float) -> str:
    """Return a number of bytes as text for people, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000.0
    return "%.*f %s" % (0 if unit == "B" else 1, size, unit)


def _check_quota(folder: str, need: int) -> None:
    with tempfile.TemporaryFile(dir=folder) as stream:
        if reserve(stream.fileno(), need) in (errno.EDQUOT, errno.ENOSPC):
            raise SpaceError(f"your quota or the space on {folder} ends before the {human(need)} needed", _HINT)


def reserve(descriptor: int, size: int) -> int:
    """Reserve ``size`` bytes for an open file; return 0 or the errno. Nothing is ever written.

    os.posix_fallocate would write every block if the file system does not support reservations.
    """
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:
        return errno.ENOSYS
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    return 0 if fallocate(descriptor, _KEEP_SIZE, 0, size) == 0 else ctypes.get_errno()


def _file_system(folder: str) -> str:
    """Return the type of the file system of ``folder``; empty if /proc does not show it."""
    device = os.stat(folder).st_dev
    number = "%d:%d" % (os.major(device), os.minor(device))
    with suppress(OSError), open("/proc/self/mountinfo") as stream:
        for line in stream:
            words, _, rest = line.partition(" - ")
            if words.split()[2] == number:
                return rest.split()[0]
    return ""
