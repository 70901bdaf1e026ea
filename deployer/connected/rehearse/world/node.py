"""The first process of a simulated node: it starts the commands that `ssh` sends, and limits the node's memory.

``ssh`` is a program of the rehearsal (``far_shell``). It connects to a socket in a folder that is invisible to
containers (``far_shell.SOCKETS``), and passes on its standard input, output and error.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from deployer.connected.rehearse.watch import syscalls
from deployer.connected.rehearse.watch.syscalls import PATIENCE
from deployer.connected.rehearse.watch.usage import own_share, resident
from deployer.connected.rehearse.world import doors, far_shell, kernel, machine
from deployer.connected.rehearse.world.file_system import IN_MEMORY, TEMPORARY
from deployer.connected.rehearse.world.machine import SimulatedMachine

#: Seconds between two memory checks.
_PERIOD = 0.25
#: The maximum number of seconds between two memory checks, if a check takes long.
_LONGEST_PERIOD = 5.0
#: The maximum size of a command in bytes.
_MAX_COMMAND = 8 * 1024 * 1024
_SHELL = "/bin/bash"
READY, OBSERVED, KILLED, NEEDED = "ready", "observed", "memory", "needed"
#: In the observer's command line: a placeholder for its output folder.
OUT = "{out}"


class NodeOrder(NamedTuple):
    """The configuration of a node.

    Attributes:
        machine: the machine.
        home: the home of the user.
        path: the folders of programs, separated by colons.
        cpus: the CPUs of this machine that belong to the node; empty: all.
        memory_mb: the memory limit of the node's processes in MiB; None: no limit.
        observer: the command line of the observer; empty: no observer.
        seen: the observer's output folder. No path on the machine leads to it.
        tasks: the maximum number of the user's processes and threads on all machines.
        doors: the socket of the program that answers for the internet; empty: no internet.
    """

    machine: SimulatedMachine
    home: str
    path: str
    cpus: Sequence[int]
    memory_mb: int | None
    observer: Sequence[str]
    seen: str
    tasks: int
    doors: str = ""


def serve(order: NodeOrder, awaited: int, say: int) -> NoReturn:
    """Serve as the node until ``awaited`` is readable. This process already has the namespaces and the interface.

    Args:
        awaited: a descriptor. Any data on it ends the node. A signal is unsafe, because the job could send it.
        say: a descriptor for READY, or for the reason why the node could not be made; then for a report at the end.
    """
    try:
        machine.ip(machine.own_interfaces(order.machine, [doors.interface()] if order.doors else []))
        listener = _listen(order)
        if order.doors:
            doors.open_for(order.doors)
        out = os.open(order.seen, os.O_PATH | os.O_CLOEXEC) if order.observer else -1
        machine.become(order.machine)
        if order.cpus:
            os.sched_setaffinity(0, order.cpus)
        observer = _observe(order.observer, out) if order.observer else None
    except Exception as error:  # noqa: BLE001  the parent prints the error
        os.write(say, str(error).encode()[:4000])
        os._exit(1)
    os.write(say, READY.encode())
    os.write(say, json.dumps(_Node(order, listener, observer).serve(awaited)).encode())
    os._exit(0)


def _listen(order: NodeOrder) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.chdir(order.machine.sockets)  # a socket's path is limited to 107 bytes, so use a short relative one
    listener.bind(order.machine.name)
    listener.listen(64)
    os.chdir("/")
    return listener


def _observe(words: Sequence[str], out: int) -> int | None:
    """Start the observer and wait until it works. Return its pid, or None if it does not work.

    Args:
        out: its open output folder. Programs without its capabilities cannot open its descriptors.
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
    with open(reading, "rb", buffering=0) as stream:
        if select.select([stream], [], [], PATIENCE)[0] and stream.read(64).strip() == READY.encode():
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
        self._killed = self._needed = 0
        self._weigh_again = 0.0
        # A child writes to this pipe if its program runs unobserved. Programs do not inherit it.
        self._unobserved, self._tell_unobserved = os.pipe()
        os.set_blocking(self._unobserved, False)
        os.set_blocking(self._tell_unobserved, False)

    def serve(self, awaited: int) -> dict[str, object]:
        """Start requested commands, reap ended processes and check the memory, until ``awaited`` is readable.

        Returns:
            What happened to the node. It was observed if its observer received each program and ended successfully when
            asked to. This is checked because the job's processes have the same user and can kill the observer.
        """
        while True:
            ready, _, _ = select.select([self._listener.fileno(), awaited], [], [], _PERIOD)
            if awaited in ready:
                break
            if ready:
                self._accept()
            self._reap()
            self._weigh()
        if self._observer is not None:
            self._end_others(self._observer)
        observed = self._observer is not None and self._status is None and self._stop(self._observer)
        with contextlib.suppress(BlockingIOError):  # nothing was written: no program ran unobserved
            observed = observed and not os.read(self._unobserved, 1)
        return {OBSERVED: observed, KILLED: self._killed, NEEDED: self._needed}

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
        """Kill all other processes of the node: system calls of observed processes fail once the observer has ended."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            left = [pid for pid in _processes() if pid not in (1, observer)]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if not left:
                return
            time.sleep(0.01)

    def _stop(self, observer: int) -> bool:
        """Let the observer write its records, and return whether it did."""
        for number in (signal.SIGTERM, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(observer, number)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self._status is None:
            time.sleep(0.02)
            self._reap()
        return self._status == 0

    def _weigh(self) -> None:
        """Kill the largest process if the node uses more memory than it has, as the kernel would.

        Files in /dev/shm count, because they are in memory on every cluster. On many clusters, /tmp is in memory
        as well: the peak that includes it is only recorded.
        """
        if self._order.memory_mb is None:
            return
        begun = time.monotonic()
        if begun < self._weigh_again:
            return
        used = {pid: resident(pid)[0] for pid in _processes() if pid not in (os.getpid(), self._observer)}
        in_memory, temporary = _files(IN_MEMORY), sum(map(_files, TEMPORARY))
        if (sum(used.values()) + in_memory + temporary) // 1024 <= self._order.memory_mb:
            return
        # The first sizes count pages shared by forked processes, and the files that they map, more than once.
        shares = [(size, own_share(pid, size)) for pid, size in used.items()]
        mapped = sum(share.mapped for _, share in shares)
        needed = sum(min(size, share.own) for size, share in shares) + max(in_memory, mapped)
        if (needed + temporary) // 1024 > self._order.memory_mb:
            self._needed = max(self._needed, (needed + temporary) // 1024)
        if needed // 1024 <= self._order.memory_mb:
            took = time.monotonic() - begun  # the kernel reads all page tables: use at most a tenth of a core
            self._weigh_again = begun + min(10 * took, _LONGEST_PERIOD)
            return
        if used:  # files stay in memory after their process has ended
            with contextlib.suppress(ProcessLookupError):
                os.kill(max(used, key=lambda pid: used[pid]), signal.SIGKILL)
            self._killed += 1


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _files(folder: str) -> int:
    """Return the size in KiB of the files in a folder that is a file system in memory."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize // 1024


def _answer(connection: socket.socket, order: NodeOrder, unobserved: int) -> NoReturn:
    """Run the command that arrives on a connection, and send its exit code."""
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
    """Wait until a process ends. If the connection is closed before, send SIGTERM to its session's group."""
    caller = connection.fileno()
    if select.select([caller, os.pidfd_open(pid)], [], [])[0] == [caller]:
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
    """Become a program of the user, without privileges and with the environment of a login.

    Args:
        unobserved: a descriptor to write to if no observer received the program; None: no descriptor.

    Raises:
        OSError: it cannot be started.
    """
    for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    kernel.drop_capabilities()
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = order.tasks if limit == resource.RLIM_INFINITY else min(limit, order.tasks)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))  # has no effect on root
    with open("/proc/self/oom_score_adj", "w") as stream:
        stream.write("1000")  # if this machine runs out of memory, the kernel kills the job, not the user's programs
    user = machine.user_name()
    known = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TZ") if name in os.environ}
    login = {"HOME": order.home, "USER": user, "LOGNAME": user, "SHELL": _SHELL, "PATH": order.path}
    # Announce the program to the node's observer. Without an observer, it runs unobserved.
    missed = syscalls.confine() or syscalls.announce()
    if missed is not None and unobserved is not None:
        with contextlib.suppress(BlockingIOError):  # many other programs have written already
            os.write(unobserved, b"u")
    os.execve(words[0], list(words), {**known, **login})
