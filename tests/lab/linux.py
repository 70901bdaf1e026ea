"""The few system calls that Python 3.10's ``os`` module lacks, with errors that name what was tried."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p,
)  # fmt: skip


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    """Move this process (for CLONE_NEWPID: its next children) into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def set_network_namespace(pid: int) -> None:
    """Move the calling *thread* into the network namespace of process ``pid``."""
    with open(f"/proc/{pid}/ns/net", "rb") as namespace:
        _check(_libc.setns(namespace.fileno(), CLONE_NEWNET), f"setns to the network of process {pid}")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, options: str = "") -> None:
    """Call mount(2)."""
    status = _libc.mount(source.encode(), target.encode(), fstype.encode() or None, flags, options.encode() or None)
    _check(status, f"mount {fstype or 'bind'} {source} on {target}")


def name_this_process(name: str) -> None:
    """Set the name that ``ps -o comm`` shows (15 characters at most)."""
    pr_set_name = 15
    _check(_libc.prctl(pr_set_name, name.encode()[:15], 0, 0, 0), "prctl")
