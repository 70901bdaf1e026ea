"""System calls of other processes, intercepted with seccomp user notification (seccomp_unotify(2)).

A process that is about to become an observed program installs a filter and passes its listener to the observer
(``announce``). All programs that it starts inherit the filter. A call on the filter's list waits until the observer has
read its arguments, then it continues normally: it is never refused or changed. This needs Linux 5.5 but no privileges:
the filter sets "no new privileges", as container runtimes do.

Another filter (``confine``) refuses access that no namespace prevents, with or without an observer: sockets to the host
of a virtual machine (AF_VSOCK), the kernel's keys, and io_uring. It also ends a program that makes calls of another
architecture, because those have other numbers and would escape both filters.

Not observed: ``stat`` and ``access`` (Python makes too many), ``sendmsg`` and ``sendmmsg`` to an address (a filter
cannot read it, and MPI sends its messages this way), and calls that a program makes before the filter is installed.
"""

import array
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

#: The observer's socket. It is not a file: it belongs to the network namespace.
SOCKET = "\0deployer-rehearsal"
#: The observer's answer once it has the listener.
READY = b"ready\n"
#: Seconds for that answer, for an observer to start, and for it to write its records. A busy machine may need many.
PATIENCE = 60.0

_PR_SET_NO_NEW_PRIVS = 38
_SET_FILTER = 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_NOTIF_RECV, _NOTIF_SEND, _NOTIF_SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
_SYNC_WAKE_UP, _CONTINUE = 1, 1
_ALLOW, _NOTIFY, _ERRNO, _KILL = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000
_X32 = 0x40000000  # x86-64 only: programs with 32-bit pointers, whose calls have different numbers
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
        refused: each refused call.
    """

    arch: int
    seccomp: int
    socket: int
    calls: dict[str, int]
    refused: dict[str, int]


#: The observed calls, with their numbers on x86-64 and on aarch64, which lacks the older ones.
_OBSERVED = {
    "open": (2, None), "openat": (257, 56), "openat2": (437, 437), "creat": (85, None), "execve": (59, 221),
    "execveat": (322, 281), "connect": (42, 203), "sendto": (44, 206), "mkdir": (83, None), "mkdirat": (258, 34),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None),
    "truncate": (76, 45), "write": (1, 64), "exit_group": (231, 94),
}  # fmt: skip
#: Calls that a simulated site does not have. No namespace separates the keys of the laptop's user. Calls through
#: io_uring would not be observed.
_REFUSED = {"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "io_uring_setup": (425, 425)}


def _numbers(table: Mapping[str, tuple[int, int | None]], column: int) -> dict[str, int]:
    return {name: number for name, numbers in table.items() if (number := numbers[column]) is not None}


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 317, 41, _numbers(_OBSERVED, 0), _numbers(_REFUSED, 0)),
    "aarch64": _Machine(0xC00000B7, 277, 198, _numbers(_OBSERVED, 1), _numbers(_REFUSED, 1)),
}


class Trapped(NamedTuple):
    """A call that waits for the observer.

    Attributes:
        number: its cookie, for the answer.
        task: the calling thread, in the observer's process namespace; 0 if it is not in that namespace.
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
    """The observer's end of a filter.

    This object owns ``descriptor``. For poll, it is readable if a call waits, and hung up if all observed processes
    have ended.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        machine = _MACHINES[os.uname().machine]
        self._names = {number: name for name, number in machine.calls.items()}
        with suppress(OSError):  # run the observer on the caller's core, which is five times as fast (Linux 6.6)
            fcntl.ioctl(descriptor, _NOTIF_SET_FLAGS, _SYNC_WAKE_UP)

    def receive(self) -> Trapped | None:
        """Return the next call, or None if its thread has been killed."""
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
        """Close the descriptor. Further calls of running processes fail with ENOSYS."""
        os.close(self._descriptor)


def confine() -> str | None:
    """Install the filter that refuses calls in this process. Return None, or the reason if that is impossible."""
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        return f"the system calls of {os.uname().machine} are not known"
    done = _install(machine, refusals(machine), 0)
    return done if isinstance(done, str) else None


def announce(name: str = SOCKET) -> str | None:
    """Install the filter of observed calls in this process, and pass its listener to the observer.

    Call this after ``confine``, just before the process becomes another program, because the process's own calls are
    also observed from then on.

    Returns:
        None, or the reason why the process is not observed. In that case, no filter is installed.
    """
    machine = _MACHINES[os.uname().machine]
    # In Python's default mode, sockets raise errors. None of them may affect the program that is about to start.
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(name)
            # Connect before the filter is installed, because ``connect`` is an observed call. sendmsg and recv are not.
            listener = _install(machine, program(machine), _NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER)
            if isinstance(listener, str):
                connection.sendall(listener.encode())
                return listener
            fds = array.array("i", [listener])
            try:
                connection.sendmsg([b"listener"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
                # Either the observer has opened the listener now, or the connection is broken and all calls will fail.
                return None if connection.recv(len(READY)) == READY else "the observer has ended"
            finally:
                os.close(listener)
    except OSError as error:
        return f"there is no observer: {error.strerror}"


def _install(machine: _Machine, code: bytes, *flags: int) -> int | str:
    """Install a filter with the first flags that the kernel supports. Return the result, or the reason for failure."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return "no new privileges: " + os.strerror(ctypes.get_errno())
    text = ctypes.create_string_buffer(code, len(code))
    handed = _Program(len(code) // _INSTRUCTION.size, ctypes.addressof(text))
    for each in flags:  # _WAIT_KILLABLE from Linux 5.19
        answer: int = libc.syscall(machine.seccomp, _SET_FILTER, each, ctypes.byref(handed))
        if answer >= 0:
            return answer
    number = ctypes.get_errno()
    return "another program observes it already" if number == errno.EBUSY else "seccomp: " + os.strerror(number)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


_INSTRUCTION = struct.Struct("=HBBI")


#: An instruction: code, target if true, target if false, value. Targets name one of the last instructions; empty: next.
_Step = tuple[int, str, str, int]


def refusals(machine: _Machine) -> bytes:
    """Return the filter that refuses calls, classic BPF over seccomp_data."""
    steps: list[_Step] = [
        (_LOAD, "", "", _ARCH),
        (_EQUAL, "", "kill", machine.arch),
        (_LOAD, "", "", _NR),
        (_AT_LEAST, "absent", "", _X32),
        *((_EQUAL, "absent", "", number) for number in machine.refused.values()),
        (_EQUAL, "", "allow", machine.socket),
        (_LOAD, "", "", _ARGS),
        (_EQUAL, "no family", "allow", socket.AF_VSOCK),
    ]
    absent, no_family = _ERRNO | errno.ENOSYS, _ERRNO | errno.EAFNOSUPPORT
    return _assembled(steps, {"kill": _KILL, "absent": absent, "no family": no_family, "allow": _ALLOW})


def program(machine: _Machine) -> bytes:
    """Return the filter that announces calls, classic BPF over seccomp_data."""
    calls = machine.calls
    always = [number for name, number in sorted(calls.items()) if name not in ("write", "sendto")]
    # Error messages of a shell that did not find a program.
    write: list[_Step] = [
        (_EQUAL, "", "allow", calls["write"]),
        (_LOAD, "", "", _ARGS),
        (_EQUAL, "notify", "allow", _STANDARD_ERROR),
    ]
    steps: list[_Step] = [(_LOAD, "", "", _NR), *((_EQUAL, "notify", "", number) for number in always)]
    # Datagrams to an address, but not data sent on a connection.
    low, high = _ARGS + 8 * 4, _ARGS + 8 * 4 + 4  # the halves of the address, a pointer
    steps += [(_EQUAL, "", "write", calls["sendto"]), (_LOAD, "", "", low), (_EQUAL, "", "notify", 0)]
    steps += [(_LOAD, "", "", high), (_EQUAL, "allow", "notify", 0)]
    return _assembled([*steps, *write], {"allow": _ALLOW, "notify": _NOTIFY}, {"write": len(steps)})


def _assembled(steps: Sequence[_Step], answers: Mapping[str, int], others: Mapping[str, int] = {}) -> bytes:
    """Return a filter whose steps jump to an answer or to one of the other targets."""
    places = {**others, **{name: len(steps) + number for number, name in enumerate(answers)}}
    done = b""
    for at, (step, true, false, value) in enumerate(steps):
        jumps = [places[to] - at - 1 if to else 0 for to in (true, false)]
        done += _INSTRUCTION.pack(step, jumps[0], jumps[1], value)
    return done + b"".join(_INSTRUCTION.pack(_RETURN, 0, 0, answer) for answer in answers.values())
