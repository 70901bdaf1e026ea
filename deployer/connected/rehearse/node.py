"""The first process of a simulated node: it starts what `ssh` asks for, and limits the node's memory.

``ssh`` is a program of the rehearsal (``far_shell``). It connects to a socket in a folder that no container sees
(``far_shell.SOCKETS``), and hands over its standard input, output and error.
"""

import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from deployer.connected.rehearse import far_shell, kernel, machine, syscalls
from deployer.connected.rehearse.machine import SimulatedMachine

#: Seconds between two looks at the memory.
_PERIOD = 0.25
#: The most seconds between two looks, if a look takes long.
_LONGEST_PERIOD = 5.0
#: Bytes of a command.
_MAX_COMMAND = 8 * 1024 * 1024
#: Seconds for the observer to begin, and to write what it saw.
_PATIENCE = 5.0
_SHELL = "/bin/bash"
READY, OBSERVED, KILLED = "ready", "observed", "memory"
#: In the words of the observer: the folder for what it sees.
OUT = "{out}"


class NodeOrder(NamedTuple):
    """What a node is asked to be.

    Attributes:
        machine: the machine.
        home: the home of the user.
        path: the folders of programs, joined by colons.
        cpus: the CPUs of this machine that the node has; empty: all.
        memory_mb: MiB that the processes of the node may use; None: no limit.
        observer: the words of the observer; empty: there is none.
        seen: the folder for what the observer sees. No path of the machine leads to it.
        tasks: the most processes and threads of the user on all machines.
    """

    machine: SimulatedMachine
    home: str
    path: str
    cpus: Sequence[int]
    memory_mb: int | None
    observer: Sequence[str]
    seen: str
    tasks: int


def serve(order: NodeOrder, awaited: int, say: int) -> NoReturn:
    """Be the node until there is something to read. This process has the namespaces and the interface already.

    Args:
        awaited: a descriptor: what comes there ends the node. A signal could come from the job.
        say: a descriptor: READY is written to it, or why the node could not be made; and at the end, a report.
    """
    try:
        machine.ip(machine.own_interfaces(order.machine))
        listener = _listen(order)
        out = os.open(order.seen, os.O_PATH | os.O_CLOEXEC) if order.observer else -1
        machine.become(order.machine)
        if order.cpus:
            os.sched_setaffinity(0, order.cpus)
        observer = _observe(order.observer, out) if order.observer else None
    except Exception as error:  # noqa: BLE001  the parent prints it
        os.write(say, str(error).encode()[:4000])
        os._exit(1)
    os.write(say, READY.encode())
    os.write(say, json.dumps(_Node(order, listener, observer).serve(awaited)).encode())
    os._exit(0)


def _listen(order: NodeOrder) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.chdir(order.machine.sockets)  # a path is limited to 107 bytes, a name is short
    listener.bind(order.machine.name)
    listener.listen(64)
    os.chdir("/")
    return listener


def _observe(words: Sequence[str], out: int) -> int | None:
    """Start the observer and wait until it works; return its pid, or None if it does not.

    Args:
        out: the open folder for what it sees. Programs without its capabilities cannot open its descriptors.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writing, 1)
        os.set_inheritable(out, True)
        with contextlib.suppress(OSError):
            os.execv(words[0], [f"/proc/self/fd/{out}" if word == OUT else word for word in words])
        os._exit(127)
    os.close(writing)
    with selectors.DefaultSelector() as selector, open(reading, "rb", buffering=0) as stream:
        selector.register(stream, selectors.EVENT_READ)
        if selector.select(_PATIENCE) and stream.read(64).strip() == READY.encode():
            return pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return None


class _Node:
    def __init__(self, order: NodeOrder, listener: socket.socket, observer: int | None) -> None:
        self._order = order
        self._listener = listener
        self._observer = observer
        self._status: int | None = None
        self._killed = 0
        self._weigh_again = 0.0
        # A child writes to it if its program runs unobserved. Programs do not inherit it.
        self._unobserved, self._tell_unobserved = os.pipe()
        os.set_blocking(self._unobserved, False)
        os.set_blocking(self._tell_unobserved, False)

    def serve(self, awaited: int) -> dict[str, object]:
        """Start what is asked for, reap what has ended, and look at the memory, until there is something to read.

        Returns:
            What happened to the node. It was observed if its observer received each program, and ended when it was
            told to, and well: the job's processes have the same user, and can kill it.
        """
        selector = selectors.DefaultSelector()
        for each in (self._listener, awaited):
            selector.register(each, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select(_PERIOD)]
            if awaited in ready:
                break
            if ready:
                self._accept()
            self._reap()
            self._weigh()
        if self._observer is not None:
            self._end_others(self._observer)
        observed = self._observer is not None and self._status is None and self._stop(self._observer)
        return {OBSERVED: observed and not self._was_missed(), KILLED: self._killed}

    def _was_missed(self) -> bool:
        """Return whether a program of the node ran unobserved."""
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self._unobserved, 1))
        return False

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if os.fork() == 0:
            self._listener.close()
            _answer(connection, self._order, self._tell_unobserved)
        connection.close()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._observer:
                    self._status = ended[1]

    def _end_others(self, observer: int) -> None:
        """Kill what is left on the node: system calls of observed processes fail once the observer has ended."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            left = [pid for name in os.listdir("/proc") if name.isdigit() and (pid := int(name)) not in (1, observer)]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if not left:
                return
            time.sleep(0.01)

    def _stop(self, observer: int) -> bool:
        """Let the observer write what it saw; return whether it did."""
        for number in (signal.SIGTERM, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(observer, number)
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and self._status is None:
            time.sleep(0.02)
            self._reap()
        return self._status == 0

    def _weigh(self) -> None:
        """Kill the largest process if all of the node need more than it has, as the kernel would."""
        if self._order.memory_mb is None:
            return
        begun = time.monotonic()
        if begun < self._weigh_again:
            return
        used = {pid: _memory(pid) for pid in _processes() if pid not in (os.getpid(), self._observer)}
        if sum(used.values()) // 1024 <= self._order.memory_mb:
            return
        # Pages that forked processes share were counted once for each of them.
        if sum(min(size, _own_share(pid, size)) for pid, size in used.items()) // 1024 <= self._order.memory_mb:
            took = time.monotonic() - begun  # the kernel goes through all pages: at most a tenth of a core
            self._weigh_again = begun + min(10 * took, _LONGEST_PERIOD)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(max(used, key=lambda pid: used[pid]), signal.SIGKILL)
        self._killed += 1


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _memory(pid: int) -> int:
    """Return the KiB of a process that no file has; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as stream:
            lines = stream.read().split(b"\n")
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"RssAnon:", b"RssShmem:")))


def _own_share(pid: int, unknown: int) -> int:
    """Return the KiB of a process, a page that n processes share counted as an n-th; 0 if it has ended.

    Args:
        unknown: what to return if the kernel does not tell.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
            lines = stream.read().split(b"\n")
    except ProcessLookupError:
        return 0
    except OSError:
        return 0 if not _memory(pid) else unknown
    known = {name: int(value.split()[0]) for name, _, value in (line.partition(b":") for line in lines[1:]) if value}
    # Without files, as in ``_memory``; kernels before 5.3 tell only the sum.
    parts = [known[name] for name in (b"Pss_Anon", b"Pss_Shmem") if name in known]
    return sum(parts) if parts else known.get(b"Pss", unknown)


def _answer(connection: socket.socket, order: NodeOrder, unobserved: int) -> NoReturn:
    """Run the command that a connection brings, and send its exit code."""
    code = 255
    with contextlib.suppress(OSError, ValueError):
        data, descriptors, _, _ = socket.recv_fds(connection, 65536, 3)
        while not data.endswith(far_shell.END):
            chunk = connection.recv(65536)
            data += chunk
            if not chunk or len(data) > _MAX_COMMAND:
                raise ValueError
        pid = os.fork()
        if pid == 0:
            _become(data[1:-1].decode("utf-8", "surrogateescape"), descriptors, order, unobserved)
        for descriptor in descriptors:
            os.close(descriptor)
        if data[:1] == far_shell.TIED:
            _follow(pid, connection)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        code = 128 - code if code < 0 else code
    with contextlib.suppress(OSError):
        connection.sendall(b"%d" % code)
    os._exit(0)


def _follow(pid: int, connection: socket.socket) -> None:
    """Wait for the end of a process; send SIGTERM to its session's group if the connection is closed before."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(os.pidfd_open(pid), selectors.EVENT_READ)
        if all(key.fileobj is connection for key, _ in selector.select()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM)


def _become(text: str, descriptors: Sequence[int], order: NodeOrder, unobserved: int) -> NoReturn:
    try:
        os.setsid()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.chdir(order.home)
        start([_SHELL, "-c", text], order, unobserved)
    except OSError as error:
        sys.stderr.write(f"{order.machine.name}: {error}\n")
    finally:
        os._exit(255)


def start(words: Sequence[str], order: NodeOrder, unobserved: int | None = None) -> NoReturn:
    """Become a program of the user, without privileges and with the environment after a login.

    Args:
        unobserved: a descriptor: something is written to it if no observer received the program; None: there is none.

    Raises:
        OSError: it cannot be started.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    kernel.drop_capabilities()
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = order.tasks if limit == resource.RLIM_INFINITY else min(limit, order.tasks)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))  # without effect on root
    with open("/proc/self/oom_score_adj", "w") as stream:
        stream.write("1000")  # if this machine has no memory left, the kernel ends the job, not the user's programs
    user = machine.user_name()
    known = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TZ") if name in os.environ}
    login = {"HOME": order.home, "USER": user, "LOGNAME": user, "SHELL": _SHELL, "PATH": order.path}
    # To the observer of the node; without one, the program runs unobserved.
    missed = syscalls.confine() or syscalls.announce()
    if missed is not None and unobserved is not None:
        with contextlib.suppress(BlockingIOError):  # many others have written
            os.write(unobserved, b"u")
    os.execve(words[0], list(words), {**known, **login})
