"""The few system calls that Python 3.10's ``os`` module lacks, with errors that name what was tried.

As a program, ``python linux.py COMMAND...`` runs a command that cannot make user namespaces.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
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


#: Numbers of system calls of x86_64.
_CLONE, _UNSHARE, _CLONE3 = 56, 272, 435
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF: of a word of the call; compare with a constant
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def forbid_user_namespaces() -> None:
    """Let no process from here on make a user namespace, as where user.max_user_namespaces is 0; for root only.

    That setting is the whole machine's. Programs with setuid keep it: no_new_privs is not needed by root. C libraries
    do without clone3, whose flags a filter cannot read.
    """
    filters = (
        (_LOAD, 0, 0, 0),
        (_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        (_EQUAL, 1, 0, _CLONE), (_EQUAL, 0, 3, _UNSHARE),
        (_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, CLONE_NEWUSER), (_RETURN, 0, 0, _FAIL | errno.ENOSPC),
        (_RETURN, 0, 0, _ALLOW),
    )  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in filters))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(filters), ctypes.addressof(code)))
    pr_set_seccomp, filtered = 22, 2
    _check(_libc.prctl(pr_set_seccomp, filtered, program, 0, 0), "prctl")


if __name__ == "__main__":
    forbid_user_namespaces()
    os.execvp(sys.argv[1], sys.argv[1:])
