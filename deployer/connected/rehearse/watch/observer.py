"""The observer of a node: a program that records what the node's processes try to reach and what they use.

``python -m deployer.connected.rehearse.watch.observer --out FOLDER --node NAME`` runs in the node's namespaces until
SIGTERM. It appends observations to ``NAME.network.jsonl`` as they occur. At the end, it writes ``NAME.used.json``, and
``NAME.files`` with the opened files of the container, one per line. Observed processes must end before the observer.
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
import struct
import sys
import time
from collections.abc import Callable
from functools import partial

from deployer.connected.rehearse.watch import name_server, syscalls
from deployer.connected.rehearse.watch.first_step import FirstStep
from deployer.connected.rehearse.watch.name_server import NameServer
from deployer.connected.rehearse.watch.reach import Reach
from deployer.connected.rehearse.watch.syscalls import PATIENCE, CallListener
from deployer.connected.rehearse.watch.tracee import Tracee
from deployer.connected.rehearse.watch.usage import RankUsage
from deployer.contract.rehearsal import observation
from deployer.contract.rehearsal.observation import Observation
from deployer.system import files

#: Seconds between two ticks, and seconds at the end to wait for observed processes.
_TICK, _END = 0.5, 2.0
#: The maximum number and bytes of observations, separately for the network and for everything else. A program that
#: tries new things endlessly can neither fill the disk nor hide its use of the network.
_MOST, _MOST_BYTES = 5_000, observation.MAX_FILE // 2 - observation.MAX_LINE
_NETWORK = (observation.HOST, observation.ADDRESS, observation.DAEMON)
#: A program counts as still asking if its main thread repeated the request within these last seconds.
_STILL = 30.0
#: The maximum number of characters in one text.
_MAX_TEXT = 500
#: The maximum number of programs that wait to be observed.
_MAX_WAITS = 64
#: Bytes of output to read at once. If there is more, only the last part is read.
_MAX_OUTPUT = 1024 * 1024
_SECCOMP_LINK = "anon_inode:seccomp notify"


class ObservationFile:
    """The file of observations. Each observation is written once.

    Attributes:
        whole: whether everything was written.
    """

    def __init__(self, path: str, node: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._node = node
        self._parts = {True: _Part(), False: _Part()}
        self._again: dict[tuple[str, str], tuple[float, dict[str, str]]] = {}
        self.whole = True

    def add(self, kind: str, what: str, about: dict[str, str]) -> None:
        """Write an observation, unless it was written before."""
        what = what[:_MAX_TEXT]
        part = self._parts[kind in _NETWORK]
        if (kind, what) in part.seen and about.get("main"):
            self._again[kind, what] = (time.monotonic(), about)
        if part.full or (kind, what) in part.seen:
            return
        line = self._line(kind, what, about)
        if len(part.seen) == _MOST or part.size + len(line) > _MOST_BYTES:
            part.full = True
            self.whole = False
            line = self._line(observation.MORE, "more than an observer keeps", {})
        part.seen.add((kind, what))
        part.size += len(line)
        self._append(line)

    def add_still_asked(self) -> None:
        """Write again the requests that programs have repeated until now, because they may be waiting for an answer."""
        for (kind, what), (last, about) in self._again.items():
            if time.monotonic() - last < _STILL:
                self._append(self._line(kind, what, {**about, "still": "yes"}))

    def _line(self, kind: str, what: str, about: dict[str, str]) -> bytes:
        known = {name: text[:_MAX_TEXT] for name, text in about.items()}
        made = Observation(kind, what, round(time.time(), 3), (), {**known, "node": self._node})
        return json.dumps(made._asdict()).encode("ascii") + b"\n"

    def _append(self, line: bytes) -> None:
        try:
            done = os.write(self._file, line)
        except OSError:  # the disk is full, but the job must continue
            done = 0
        self.whole &= done == len(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class _Part:
    """Observations of the network, or all others: those that were written, and their size in bytes."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()
        self.size = 0
        self.full = False


class NodeObserver:
    """The main loop of the observer."""

    def __init__(
        self,
        out: str,
        node: str,
        peers: list[str],
        measured: list[str],
        names: bool = True,
        log: str = "",
        answer: str = "",
    ) -> None:
        """Start to listen.

        Args:
            peers: addresses of the rehearsal's nodes.
            measured: folders whose files are temporary.
            names: also run the name server.
            log: the file of the job's output, which need not exist yet.
            answer: the address of all outside names; empty: they do not exist.

        Raises:
            OSError: there is another observer, or the name server's port cannot be used.
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
        self._names = NameServer(self._asked, answer=answer) if names else None
        if self._names is not None:
            self._register(self._names.fileno(), self._names.answer)
        self._log = _GrowingLog(log)
        self._first_step = FirstStep()
        self._ends = False
        self._waits: dict[int, tuple[socket.socket, float]] = {}

    def _register(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._poll.register(descriptor, select.POLLIN)
        self._handlers[descriptor] = handler

    def _unregister(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._handlers[descriptor]

    def end(self, *_: object) -> None:
        """Make ``serve`` return soon."""
        self._ends = True

    def serve(self) -> None:
        """Observe until ``end`` is called, then write the results."""
        until = float("inf")
        ticked = 0.0
        while not self._ends or (self._listeners and time.monotonic() < until):
            if self._ends and until == float("inf"):
                until = time.monotonic() + _END
            for descriptor, events in self._poll.poll(_TICK * 1000):
                self._do(partial(self._serve, descriptor, events))
            if time.monotonic() - ticked > _TICK:
                ticked = time.monotonic()
                for work in (self.reach.tick, self.usage.look, self._progress, self._drop_silent):
                    self._do(work)
        for work in (self._notes.add_still_asked, self.reach.end):
            self._do(work)
        self._write()

    def _do(self, work: Callable[[], None]) -> None:
        """Call a function and continue if it fails, because observed programs wait for this process."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  a failure is recorded as an observation
            self._notes.whole = False
            self._notes.add(observation.BLIND, f"the observer failed: {type(error).__name__}", {})

    def _serve(self, descriptor: int, events: int) -> None:
        listener = self._listeners.get(descriptor)
        if descriptor in self._handlers:
            self._handlers[descriptor]()
        elif listener is not None and events & select.POLLIN:
            self.reach.handle(listener)
        elif listener is not None and events & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            self._poll.unregister(descriptor)
            self._listeners.pop(descriptor).close()

    def _accept(self) -> None:
        connection, _ = self._socket.accept()
        # Programs in a container can also connect and send anything.
        if len(self._waits) >= _MAX_WAITS or not _is_ours(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._waits[connection.fileno()] = (connection, time.monotonic() + PATIENCE)
        self._register(connection.fileno(), lambda: self._greet(connection))

    def _drop_silent(self) -> None:
        """Close connections that have not sent a listener in time."""
        for descriptor, (connection, until) in list(self._waits.items()):
            if time.monotonic() > until:
                self._unregister(descriptor)
                del self._waits[descriptor]
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        """Receive the seccomp listener of a process that is about to become an observed program."""
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
            for unwanted in received:
                os.close(unwanted)
            if message:
                self._notes.whole = False
                why = message.decode("utf-8", "backslashreplace")
                self._notes.add(observation.BLIND, f"programs that are not Python are not observed: {why}", {})

    def _asked(self, name: str, port: int) -> None:
        about: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            process = name_server.owner(port)
            if process is not None:
                who = Tracee(process)
                if not who.apart:
                    return
                main = self.reach.resolving.get(process, "")
                about = {**who.about(), "licence": who.licence(name), "main": main}
        self._notes.add(observation.HOST, name, about)

    def _progress(self) -> None:
        """Read new output of the job."""
        text = self._log.read()
        if text and self.reach.begun is not None:
            self._first_step.feed(text, time.monotonic() - self.reach.begun)

    def _write(self) -> None:
        used: dict[str, object] = {}
        for work in (lambda: self.usage.look(last=True), self._progress, lambda: used.update(self._used())):
            self._do(work)
        listed = [name for name in self.reach.opened if "\n" not in name]
        used.update(whole=self._notes.whole)
        used.update(all_files_listed=self.reach.all_listed and len(listed) == len(self.reach.opened))
        path = os.path.join(self._out, self._node)
        with files.published(path + ".files", flushed=False) as stream:
            stream.writelines(os.fsencode(name) + b"\n" for name in sorted(listed))
        with files.published(path + ".used.json", flushed=False) as stream:
            stream.write(json.dumps(used, sort_keys=True).encode() + b"\n")

    def close(self) -> None:
        """Close the sockets and the file."""
        for sock in (self._socket, *(connection for connection, _ in self._waits.values())):
            sock.close()
        if self._names is not None:
            self._names.close()
        self._notes.close()

    def _used(self) -> dict[str, object]:
        if self.reach.begun is not None:
            self._first_step.end(time.monotonic() - self.reach.begun)
        return {
            **self.usage.record(),
            "seconds_to_first_step": self._first_step.seconds,
            "files_opened": len(self.reach.opened) or None,
        }


def _is_ours(connection: socket.socket) -> bool:
    """Return whether the process at the other end is outside any container."""
    process, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        return not Tracee(process).apart
    except OSError:  # it has ended, or is in another process namespace
        return False


class _GrowingLog:
    """The job's output. The job can write anything there, or replace it with a link, which is not followed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> str:
        """Return the next part, at most 1 MiB, or an empty text if there is none."""
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
    """Run the observer as a program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--measure", action="append", default=[])
    parser.add_argument("--log", default="")
    parser.add_argument("--answer", default="")
    options = parser.parse_args()
    known = {"log": options.log, "answer": options.answer}
    observer = NodeObserver(options.out, options.node, options.peer, options.measure, **known)
    signal.signal(signal.SIGTERM, observer.end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    observer.serve()
    observer.close()


if __name__ == "__main__":
    main()
