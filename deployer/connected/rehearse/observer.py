"""The observer of a node: a program beside its processes that writes what they reach for and what they use.

``python -m deployer.connected.rehearse.observer --out FOLDER --node NAME`` runs in the node's namespaces until SIGTERM.
It writes observations to ``NAME.network.jsonl`` when they are made, and at its end ``NAME.used.json`` and
``NAME.files``: each file of the container that was opened, one per line. Observed processes must end before it does.
"""

import argparse
import array
import contextlib
import json
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable

from deployer.connected.rehearse import name_server
from deployer.connected.rehearse.name_server import NameServer
from deployer.connected.rehearse.step_times import StepTimes
from deployer.contract import observation
from deployer.contract.observation import Observation
from deployer.system import files, syscalls
from deployer.system.reach import Reach
from deployer.system.syscalls import CallListener
from deployer.system.tracee import Tracee
from deployer.system.usage import RankUsage

#: Seconds between two ticks; seconds at the end for observed processes to end.
_TICK, _END = 0.5, 2.0
#: Observations that are kept; a program that reaches for new things without end does not fill the disk.
_MOST = 5_000
#: Bytes of output that are read at once; of more, the last.
_MAX_OUTPUT = 1024 * 1024
_SECCOMP_LINK = "anon_inode:seccomp notify"


class ObservationFile:
    """The file of observations; each thing once."""

    def __init__(self, path: str, node: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._node = node
        self._seen: set[tuple[str, str]] = set()

    def add(self, kind: str, what: str, about: dict[str, str]) -> None:
        """Write an observation, unless the same was written already."""
        if (kind, what) in self._seen or len(self._seen) > _MOST:
            return
        self._seen.add((kind, what))
        if len(self._seen) > _MOST:
            kind, what, about = observation.MORE, f"more than {_MOST} observations", {}
        made = Observation(kind, what, round(time.time(), 3), (), {**about, "node": self._node})
        with contextlib.suppress(OSError):  # the disk is full: the job must go on
            os.write(self._file, json.dumps(made.record()).encode("ascii") + b"\n")


class NodeObserver:
    """The loop of the observer."""

    def __init__(
        self, out: str, node: str, peers: list[str], measured: list[str], names: bool = True, log: str = ""
    ) -> None:
        """Begin to listen.

        Args:
            peers: addresses of the rehearsal's nodes.
            measured: folders whose files are temporary.
            names: serve names, too.
            log: the file of the job's output; it need not exist yet.

        Raises:
            OSError: there is an observer already, or the name server's port cannot be used.
        """
        self._out, self._node = out, node
        self._notes = ObservationFile(os.path.join(out, node + ".network" + observation.SUFFIX), node)
        self.usage = RankUsage(measured)
        self.reach = Reach(self._notes.add, peers, last=self.usage.look_at_last)
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._listeners: dict[int, CallListener] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(syscalls.SOCKET)
        self._socket.listen(128)
        self._register(self._socket.fileno(), self._accept)
        self._names = NameServer(self._asked) if names else None
        if self._names is not None:
            self._handlers.update(self._names.register(self._poll))
        self._log = _GrowingLog(log)
        self._steps = StepTimes()
        self._ends = False
        self._waits: dict[int, socket.socket] = {}

    def _register(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._poll.register(descriptor, select.POLLIN)
        self._handlers[descriptor] = handler

    def _unregister(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._handlers[descriptor]

    def end(self, *_: object) -> None:
        """Let ``serve`` return soon."""
        self._ends = True

    def serve(self) -> None:
        """Observe until ``end`` is called, then write what was used."""
        until = float("inf")
        ticked = 0.0
        while not self._ends or (self._listeners and time.monotonic() < until):
            if self._ends and until == float("inf"):
                until = time.monotonic() + _END
            for descriptor, events in self._poll.poll(_TICK * 1000):
                self._serve(descriptor, events)
            if time.monotonic() - ticked > _TICK:
                ticked = time.monotonic()
                with contextlib.suppress(OSError):
                    self.reach.tick()
                self.usage.look()
                self._progress()
        self.reach.end()
        self._write()

    def _serve(self, descriptor: int, events: int) -> None:
        try:
            if descriptor in self._handlers:
                self._handlers[descriptor]()
            elif descriptor in self._listeners:
                self._listen(descriptor, events)
            elif self._names is not None:
                self._names.ready(descriptor, self._poll)
        except Exception as error:  # noqa: BLE001  the observed programs wait for this process: it must go on
            self._notes.add(observation.BLIND, f"the observer failed: {error!r}", {})

    def _listen(self, descriptor: int, events: int) -> None:
        listener = self._listeners[descriptor]
        if events & select.POLLIN:
            self.reach.handle(listener)
        elif events & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            self._poll.unregister(descriptor)
            del self._listeners[descriptor]
            listener.close()

    def _accept(self) -> None:
        connection, _ = self._socket.accept()
        connection.setblocking(False)
        self._waits[connection.fileno()] = connection
        self._register(connection.fileno(), lambda: self._greet(connection))

    def _greet(self, connection: socket.socket) -> None:
        """Receive the listener of a process that is about to become an observed program."""
        descriptor = connection.fileno()
        self._unregister(descriptor)
        del self._waits[descriptor]
        with connection:
            message, extra, _, _ = connection.recvmsg(200, socket.CMSG_SPACE(4))
            received = array.array("i")
            for level, kind, data in extra:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    received.frombytes(data[: len(data) - len(data) % received.itemsize])
            if len(received) == 1 and os.readlink(f"/proc/self/fd/{received[0]}") == _SECCOMP_LINK:
                self._listeners[received[0]] = CallListener(received[0])
                self._poll.register(received[0], select.POLLIN)
                connection.send(syscalls.READY)
                return
            for each in received:
                os.close(each)
            if message:
                why = message.decode("utf-8", "backslashreplace")
                self._notes.add(observation.BLIND, f"programs that are not Python are not observed: {why}", {})

    def _asked(self, name: str, port: int, stream: bool) -> None:
        about: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            process = name_server.owner(port, stream)
            if process is not None:
                who = Tracee(process)
                if who.own or not who.inside:
                    return
                about = who.about()
        self._notes.add(observation.HOST, name, about)

    def _progress(self) -> None:
        """Read what the job has printed since the last time."""
        text = self._log.read()
        if text and self.reach.begun is not None:
            self._steps.feed(text, time.monotonic() - self.reach.begun)

    def _write(self) -> None:
        self.usage.look(last=True)
        self._progress()
        used = self.usage.record()
        if self.reach.begun is not None:
            self._steps.end(time.monotonic() - self.reach.begun)
        used.update(seconds_to_first_step=self._steps.first, seconds_per_step=self._steps.each)
        used.update(files_opened=len(self.reach.opened) or None)
        used.update(calls=self.reach.calls, seconds_waited=round(self.reach.seconds, 3))
        path = os.path.join(self._out, self._node)
        with files.published(path + ".files", flushed=False) as stream:
            stream.writelines(os.fsencode(name) + b"\n" for name in sorted(self.reach.opened) if "\n" not in name)
        with files.published(path + ".used.json", flushed=False) as stream:
            stream.write(json.dumps(used, sort_keys=True).encode() + b"\n")


class _GrowingLog:
    """The job's output. The job can write anything there, or put a link in its place, which is not followed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> str:
        """Return the next part, at most 1 MiB; nothing if there is none."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        with open(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            size = os.fstat(descriptor).st_size
            self._offset = max(self._offset, size - _MAX_OUTPUT)
            stream.seek(self._offset)
            data = stream.read(_MAX_OUTPUT)
        self._offset += len(data)
        return data.decode("utf-8", "replace")


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--measure", action="append", default=[])
    parser.add_argument("--log", default="")
    parser.add_argument("--no-names", action="store_true")
    options = parser.parse_args()
    observer = NodeObserver(options.out, options.node, options.peer, options.measure, not options.no_names, options.log)
    signal.signal(signal.SIGTERM, observer.end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    observer.serve()


if __name__ == "__main__":
    main()
