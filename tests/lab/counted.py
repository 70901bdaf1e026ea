"""counted OUT COMMAND...: run a command and write down what it and all that it starts ask of files, call by call.

As strace would, but by seccomp's notifications: what is traced already (proot does that) cannot be traced again. A
line of OUT is ``CALL INSIDE PATH``: INSIDE is 1 for a process with another root than this one's, whose path is then one
of its container. Under proot (with PROOT_NO_SECCOMP=1, else its filter and this one get in each other's way) calls are
seen as proot has changed them, by the host's names, and so are proot's own.

A program of its own, on a node of the lab, for Linux 5.19 and x86-64: see seccomp_unotify(2).
"""

from __future__ import annotations

import array  # noqa: F401  send_fds wants it; after install() its reading would count
import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import warnings  # noqa: F401
from collections.abc import Iterator

#: Calls by number, with the places of their arguments: P is a path, D a descriptor that the next path stands below,
#: F a descriptor that is worked on.
CALLS = {
    0: ("read", "F"), 1: ("write", "F"), 2: ("open", "P"), 3: ("close", "F"), 4: ("stat", "P"), 6: ("lstat", "P"),
    17: ("pread64", "F"), 18: ("pwrite64", "F"), 19: ("readv", "F"), 20: ("writev", "F"), 21: ("access", "P"),
    40: ("sendfile", "FF"), 59: ("execve", "P"), 74: ("fsync", "F"), 75: ("fdatasync", "F"), 76: ("truncate", "P"),
    77: ("ftruncate", "F"), 80: ("chdir", "P"), 82: ("rename", "PP"), 83: ("mkdir", "P"), 84: ("rmdir", "P"),
    85: ("creat", "P"), 86: ("link", "PP"), 87: ("unlink", "P"), 88: ("symlink", "-P"), 89: ("readlink", "P"),
    90: ("chmod", "P"), 91: ("fchmod", "F"), 92: ("chown", "P"), 94: ("lchown", "P"), 132: ("utime", "P"),
    133: ("mknod", "P"), 137: ("statfs", "P"), 161: ("chroot", "P"), 165: ("mount", "PP"), 188: ("setxattr", "P"),
    189: ("lsetxattr", "P"), 191: ("getxattr", "P"), 192: ("lgetxattr", "P"), 194: ("listxattr", "P"),
    195: ("llistxattr", "P"), 217: ("getdents64", "F"), 235: ("utimes", "P"), 254: ("inotify_add_watch", "-P"),
    257: ("openat", "DP"), 258: ("mkdirat", "DP"), 259: ("mknodat", "DP"), 260: ("fchownat", "DP"),
    261: ("futimesat", "DP"), 262: ("newfstatat", "DP"), 263: ("unlinkat", "DP"), 264: ("renameat", "DPDP"),
    265: ("linkat", "DPDP"), 266: ("symlinkat", "-DP"), 267: ("readlinkat", "DP"), 268: ("fchmodat", "DP"),
    269: ("faccessat", "DP"), 280: ("utimensat", "DP"), 285: ("fallocate", "F"), 316: ("renameat2", "DPDP"),
    322: ("execveat", "DP"), 326: ("copy_file_range", "F-F"), 332: ("statx", "DP"), 437: ("openat2", "DP"),
    439: ("faccessat2", "DP"), 452: ("fchmodat2", "DP"),
}  # fmt: skip

_AT_FDCWD = -100
_SECCOMP = 317
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_PR_SET_NO_NEW_PRIVS = 38
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
#: struct seccomp_notif: id, pid, flags; and what was called: number, architecture, place, six arguments.
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")
_CONTINUE = 1


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install() -> int:
    """Let this process and all that come of it be asked about; return the descriptor of those questions."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = struct.pack("=HBBI", 0x20, 0, 0, 0)  # load the call's number
    for number in CALLS:
        code += struct.pack("=HBBI", 0x15, 0, 1, number) + struct.pack("=HBBI", 0x06, 0, 0, _NOTIFY)
    code += struct.pack("=HBBI", 0x06, 0, 0, _ALLOW)
    program = _Program(len(code) // 8, code)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    flags = _NEW_LISTENER | _WAIT_KILLABLE
    listener: int = libc.syscall(_SECCOMP, _SET_MODE_FILTER, flags, ctypes.byref(program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


def questions(listener: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield pid, number and arguments of each call until nobody is left; it goes on when the next one is asked for."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        [(_, event)] = poll.poll()
        if not event & select.POLLIN:
            return
        asked = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, asked)
        except FileNotFoundError:  # it was killed in the meantime
            continue
        identity, pid, _, number, _, _, *arguments = _NOTIFICATION.unpack(asked)
        yield pid, number, tuple(arguments)
        try:
            fcntl.ioctl(listener, _SEND, bytearray(_RESPONSE.pack(identity, 0, 0, _CONTINUE)))
        except FileNotFoundError:
            continue


def paths(pid: int, kinds: str, arguments: tuple[int, ...]) -> Iterator[str]:
    """Yield the paths that a call names, as the process would say them in full."""
    base = "cwd"
    for kind, value in zip(kinds, arguments, strict=False):
        if kind == "F":
            yield link(pid, f"fd/{value & 0xFFFFFFFF}")
        elif kind == "D":
            descriptor = ctypes.c_int(value & 0xFFFFFFFF).value
            base = "cwd" if descriptor == _AT_FDCWD else f"fd/{descriptor}"
        elif kind == "P":
            text = word(pid, value)
            if text.startswith("/"):
                yield text
            elif text or base != "cwd":
                yield f"{link(pid, base)}/{text}".rstrip("/")


def link(pid: int, name: str) -> str:
    """Return where a link of a process leads, empty where it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""


def word(pid: int, place: int) -> str:
    """Return the text that stands at ``place`` in the memory of a process."""
    found = b""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(place)
            while b"\0" not in found and len(found) < 4096:  # up to the next page, which may not be there
                found += memory.read(4096 - (place + len(found)) % 4096)
    except (OSError, ValueError, OverflowError):
        pass
    return found.split(b"\0")[0].decode(errors="replace")


def inside(pid: int, own: os.stat_result) -> bool:
    """Return whether a process has another root than this one."""
    try:
        return not os.path.samestat(os.stat(f"/proc/{pid}/root"), own)
    except OSError:
        return False


def main(out: str, command: list[str]) -> int:
    """Run ``command``; return its exit code."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        listener = install()
        socket.send_fds(there, [b"x"], [listener])
        os.close(listener)
        there.close()
        os.execvp(command[0], command)
    there.close()
    _, [listener], _, _ = socket.recv_fds(here, 1, 1)
    own = os.stat("/")
    with open(out, "w", errors="replace") as stream:
        for pid, number, arguments in questions(listener):
            name, kinds = CALLS[number]
            for path in dict.fromkeys(paths(pid, kinds, arguments)):
                if path.startswith("/"):
                    stream.write(f"{name} {inside(pid, own):d} {path!r}\n")
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
