"""System calls of other processes, as the kernel announces them: seccomp user notification (seccomp_unotify(2)).

A process that is about to become an observed program installs a filter and passes its listener to the observer
(``announce``). Everything that it starts inherits the filter. A call that the filter names waits until the observer has
read its arguments, and then goes on as if nothing had happened: it is never refused or changed. This needs Linux 5.5
and no rights: the filter sets "no new privileges", as container runtimes do.

The filter itself refuses one thing, sockets to the host of a virtual machine (AF_VSOCK): no network namespace holds
them back.

Not seen: calls through io_uring, 32-bit programs, ``stat`` and ``access`` (Python makes too many), ``sendmsg`` and
``sendmmsg`` to an address (a filter cannot read it, and MPI sends messages in this way), and what a program does before
it is started in this way.
"""

import array
import ctypes
import errno
import fcntl
import os
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

#: The observer's socket. It has no file: it belongs to the network namespace.
SOCKET = "\0deployer-rehearsal"
#: What the observer answers when it has the listener.
READY = b"ready\n"
#: Seconds for that answer; for an observer to begin, and to write what it saw. A machine under load may need many.
PATIENCE = 60.0

_PR_SET_NO_NEW_PRIVS = 38
_SET_FILTER = 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_NOTIF_RECV, _NOTIF_SEND, _NOTIF_SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
_SYNC_WAKE_UP, _CONTINUE = 1, 1
_ALLOW, _NOTIFY, _ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
_VSOCK = 40  # socket.AF_VSOCK, from Python 3.7
_X32 = 0x40000000  # x86-64 only: programs with 32-bit pointers, whose calls have other numbers
# Classic BPF: load a word, compare, return.
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16

_STANDARD_ERROR = 2


class _Machine(NamedTuple):
    """The numbers of a processor's system calls.

    Attributes:
        arch: AUDIT_ARCH of the kernel.
        seccomp: the number of the call that installs a filter.
        socket: the number of the call that makes a socket.
        calls: each observed call.
    """

    arch: int
    seccomp: int
    socket: int
    calls: dict[str, int]


#: The calls whose numbers are the same everywhere.
_COMMON = {"openat2": 437}
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        317,
        41,
        dict(
            _COMMON,
            open=2,
            openat=257,
            creat=85,
            execve=59,
            execveat=322,
            connect=42,
            sendto=44,
            mkdir=83,
            mkdirat=258,
            rename=82,
            renameat=264,
            renameat2=316,
            link=86,
            linkat=265,
            symlink=88,
            symlinkat=266,
            unlink=87,
            unlinkat=263,
            rmdir=84,
            truncate=76,
            write=1,
            exit_group=231,
        ),
    ),
    "aarch64": _Machine(
        0xC00000B7,
        277,
        198,
        dict(
            _COMMON,
            openat=56,
            execve=221,
            execveat=281,
            connect=203,
            sendto=206,
            mkdirat=34,
            renameat=38,
            renameat2=276,
            linkat=37,
            symlinkat=36,
            unlinkat=35,
            truncate=45,
            write=64,
            exit_group=94,
        ),
    ),
}


class Trapped(NamedTuple):
    """A call that waits for the observer.

    Attributes:
        number: its cookie, for the answer.
        task: the thread that makes it, in the observer's process namespace; 0 if it is not in there.
        name: the name of the call.
        args: its six arguments.
    """

    number: int
    task: int
    name: str
    args: tuple[int, ...]


_REQUEST = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")


class CallListener:
    """The observer's end of a filter; ``descriptor`` is then owned by this object."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        machine = _MACHINES[os.uname().machine]
        self._names = {number: name for name, number in machine.calls.items()}
        with suppress(OSError):  # the observer runs on the caller's core: five times as fast (Linux 6.6)
            fcntl.ioctl(descriptor, _NOTIF_SET_FLAGS, _SYNC_WAKE_UP)

    def fileno(self) -> int:
        """Return the descriptor, for poll: readable if a call waits, and hung up if no observed process is left."""
        return self._descriptor

    def receive(self) -> Trapped | None:
        """Return the next call, or None if its thread was killed meanwhile."""
        request = bytearray(_REQUEST.size)
        try:
            fcntl.ioctl(self._descriptor, _NOTIF_RECV, request, True)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None
            raise
        number, task, _, call, _, _, *args = _REQUEST.unpack(request)
        return Trapped(number, task, self._names.get(call, str(call)), tuple(args))

    def let_go_on(self, call: Trapped) -> None:
        """Let the kernel carry out the call."""
        try:
            fcntl.ioctl(self._descriptor, _NOTIF_SEND, _ANSWER.pack(call.number, 0, 0, _CONTINUE))
        except OSError as error:
            if error.errno != errno.ENOENT:  # a signal has killed its thread
                raise

    def close(self) -> None:
        """Close the descriptor. A call of a process that still runs then fails with ENOSYS."""
        os.close(self._descriptor)


def announce(name: str = SOCKET) -> str | None:
    """Install the filter in this process and pass its listener to the observer.

    This is done just before the process becomes another program: what it does itself is observed from then on, too.

    Returns:
        None, or why it is not observed. Then no filter is installed.
    """
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        return f"the system calls of {os.uname().machine} are not known"
    # In Python's default mode errors of socket raise; none of them may hurt the program that is to be started.
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(name)
            # ``connect`` is observed itself, so it comes before; sendmsg and recv are not.
            listener = _install(machine)
            if isinstance(listener, str):
                connection.sendall(listener.encode())
                return listener
            fds = array.array("i", [listener])
            try:
                connection.sendmsg([b"listener"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
                # The listener is open in the observer now, or the connection is broken and all calls fail.
                return None if connection.recv(len(READY)) == READY else "the observer has ended"
            finally:
                os.close(listener)
    except OSError as error:
        return f"there is no observer: {error.strerror}"


def _install(machine: _Machine) -> int | str:
    """Install the filter; return its listener, or why there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return "no new privileges: " + os.strerror(ctypes.get_errno())
    code = program(machine)
    text = ctypes.create_string_buffer(code, len(code))
    handed = _Program(len(code) // _INSTRUCTION.size, ctypes.addressof(text))
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):  # the second before Linux 5.19
        listener: int = libc.syscall(machine.seccomp, _SET_FILTER, flags, ctypes.byref(handed))
        if listener >= 0:
            return listener
    number = ctypes.get_errno()
    if number == errno.EBUSY:
        return "another program observes it already"
    return "seccomp: " + os.strerror(number)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


_INSTRUCTION = struct.Struct("=HBBI")


def program(machine: _Machine) -> bytes:
    """Return the filter, classic BPF over seccomp_data: it announces calls, refuses AF_VSOCK, and allows the others."""
    calls = machine.calls
    always = [number for name, number in sorted(calls.items()) if name not in ("write", "sendto")]
    # Each instruction: code, where to go if true, if false, value. "allow", "notify" and "refuse" are the last.
    steps: list[tuple[int, str, str, int]] = [
        (_LOAD, "", "", _ARCH),
        (_EQUAL, "", "allow", machine.arch),
        (_LOAD, "", "", _NR),
        (_AT_LEAST, "allow", "", _X32),
    ]
    steps += [(_EQUAL, "notify", "", number) for number in always]
    steps += [
        (_EQUAL, "", "sendto", machine.socket),
        (_LOAD, "", "", _ARGS),
        (_EQUAL, "refuse", "allow", _VSOCK),
    ]
    sendto = len(steps)
    # Datagrams to an address; not what is sent on a connection.
    steps += [(_EQUAL, "", "write", calls["sendto"]), *_nonzero(4)]
    # The last words of a shell that did not find a program.
    steps += [
        (_EQUAL, "", "allow", calls["write"]),
        (_LOAD, "", "", _ARGS),
        (_EQUAL, "notify", "allow", _STANDARD_ERROR),
    ]
    last = len(steps)
    places = {"allow": last, "notify": last + 1, "refuse": last + 2, "sendto": sendto, "write": last - 3}
    done = b""
    for at, (step, true, false, value) in enumerate(steps):
        jumps = [places[to] - at - 1 if to else 0 for to in (true, false)]
        done += _INSTRUCTION.pack(step, jumps[0], jumps[1], value)
    answers = (_ALLOW, _NOTIFY, _ERRNO | errno.EAFNOSUPPORT)
    return done + b"".join(_INSTRUCTION.pack(_RETURN, 0, 0, answer) for answer in answers)


def _nonzero(place: int) -> list[tuple[int, str, str, int]]:
    """Return the steps that announce a call if an argument, a pointer, is not null, and allow it otherwise."""
    low, high = _ARGS + 8 * place, _ARGS + 8 * place + 4
    return [
        (_LOAD, "", "", low),
        (_EQUAL, "", "notify", 0),
        (_LOAD, "", "", high),
        (_EQUAL, "allow", "notify", 0),
    ]
