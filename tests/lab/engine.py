"""A Docker engine for the tests and the quickstart: one that runs already, else our own dockerd.

Ours is one for each user of the machine. Its layers live in ``$XDG_CACHE_HOME/deployer/engine`` and so survive a fresh
clone; its sockets and pids live in /run, because a path of a socket has at most 108 characters. It is known by pid and
start time and stopped by that pid.

It keeps out of the way of other engines: a second dockerd on the default bridge shares its addresses with the first,
one with ``--bridge=none`` deletes the other's docker0, and each rewrites the DOCKER chains of iptables. So ours has a
bridge of its own, and we add its three iptables rules ourselves and take away the same three.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

import docker
import requests
from docker.errors import DockerException

from tests.lab.command import Result, run
from tests.lab.errors import LabError
from tests.lab.state import ProcessId, load_process, locked, read_stat, save_process

DEFAULT_HOST = "unix:///var/run/docker.sock"

#: The cache of layers is cut down when it is larger than this, in bytes.
CACHE_CAP = 20 * 10**9

_PROGRAMS = ("dockerd", "containerd", "containerd-shim", "containerd-shim-runc-v2")
_START_S = 60.0
_SETTLE_S = 3.0
_STOP_S = 30.0
_TRIES = 3
_COMMAND_S = 20.0


@dataclass
class Engine:
    """An engine to talk to. ``started``: this call started it.

    In a ``with`` statement the engine is held while the block runs; the last holder to leave stops it if it is ours
    and nobody asked to keep it.
    """

    docker_host: str
    started: bool
    own: OwnEngine | None = None
    _hold: IO[str] | None = field(default=None, repr=False)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.own is not None:
            if self._hold is not None:
                self._hold.close()
            self.own.leave()


def take_engine(keep: bool = False) -> Engine:
    """Return the engine that ``DOCKER_HOST`` or the default socket names, else ours, started when it does not run.

    With ``keep`` ours goes on running until ``stop_engine``; without it, until its last holder leaves.
    """
    for host in (os.environ.get("DOCKER_HOST"), DEFAULT_HOST):
        if host and answers(host):
            return Engine(host, started=False)
    own = OwnEngine(default_folder())
    started = own.start()
    if keep:
        own.kept.touch()
    return Engine(own.docker_host, started, own, own.hold())


def stop_engine() -> bool:
    """Stop our engine, if it is ours to stop: False when others still use it (the last of them stops it)."""
    own = OwnEngine(default_folder())
    own.kept.unlink(missing_ok=True)
    return own.leave()


def default_folder() -> Path:
    """Return the folder of this user's engine."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "deployer" / "engine"


def answers(host: str, timeout: int = 5) -> bool:
    """Return whether a Docker engine answers at ``host``."""
    scheme, _, path = host.partition("://")
    if scheme == "unix":  # asked by hand: the SDK leaves its socket open when nobody listens
        try:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(timeout)
                asking.connect(path)
                asking.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
                return b" 200 " in asking.recv(64)
        except OSError:
            return False
    try:
        client = docker.DockerClient(base_url=host, timeout=timeout, version="1.41")
        with contextlib.closing(client):
            return bool(client.ping())
    except (DockerException, requests.RequestException, ValueError):
        return False


class OwnEngine:
    """A dockerd of our own with its data in ``folder``; two folders are two engines that do not meet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()
        self.run_folder = Path("/run/deployer-engine") / digest[:8]
        self.bridge = f"dpl-{digest[:8]}"
        self.network = f"10.213.{int(digest[:8], 16) % 254 + 1}"  # .0/24, the bridge is .1
        self.socket = self.run_folder / "docker.sock"
        self.docker_host = f"unix://{self.socket}"
        self.log = folder / "dockerd.log"
        self.kept = folder / "kept"
        self._record = folder / "process.json"
        self._pid_file = self.run_folder / "docker.pid"

    # ------------------------------------------------------------------------------------------------ who uses it

    def hold(self) -> IO[str]:
        """Return an open file that says "in use" until it is closed, or until this process ends."""
        stream = open(self.folder / "holders", "a", encoding="ascii")
        fcntl.flock(stream, fcntl.LOCK_SH)
        return stream

    def leave(self) -> bool:
        """Stop the engine unless it is kept or held. True when it does not run afterwards."""
        if not self.folder.is_dir():
            return True
        with locked(self.folder / "lock"), open(self.folder / "holders", "a", encoding="ascii") as stream:
            if self.kept.exists():
                return False
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._stop()
            return True

    # ------------------------------------------------------------------------------------------------ start, stop

    def process(self) -> ProcessId | None:
        """Return our dockerd if it runs."""
        return load_process(self._record)

    def start(self) -> bool:
        """Start the engine unless it runs; True when it had to be started. Raises LabError."""
        if os.geteuid() != 0:
            raise LabError("no Docker engine answers, and only root can start one", "start Docker, or set DOCKER_HOST")
        with locked(self.folder / "lock"):
            if self.process() is not None and answers(self.docker_host):
                return False
            for attempt in range(1, _TRIES + 1):
                self._stop()
                try:
                    self._start()
                    break
                except LabError:
                    if attempt == _TRIES:
                        raise
                    time.sleep(2.0 * attempt)
            self._cut_cache()
            return True

    def stop(self) -> None:
        """Stop the engine, whoever uses it."""
        with locked(self.folder / "lock"):
            self._stop()

    def _start(self) -> None:
        self.run_folder.mkdir(parents=True, exist_ok=True)
        self._network_up()
        settings = self.run_folder / "daemon.json"  # else the host's own settings would apply
        settings.write_text("{}\n")
        argv = [
            "dockerd", f"--data-root={self.folder / 'data'}", f"--exec-root={self.run_folder / 'exec'}",
            f"--pidfile={self._pid_file}", f"--host={self.docker_host}", f"--config-file={settings}",
            f"--bridge={self.bridge}", "--iptables=false", "--ip-masq=false", "--ip-forward=false",
        ]  # fmt: skip
        # dockerd stays in the foreground: setsid makes it a daemon that outlives us and our terminal.
        line = f"exec {shlex.join(argv)} </dev/null >{shlex.quote(str(self.log))} 2>&1"
        launched = run(["setsid", "--fork", "sh", "-c", line], timeout=_COMMAND_S)
        launched.check("cannot start dockerd", "apt-get install docker.io")
        began = time.monotonic()
        while not (self._note_process() and answers(self.docker_host)):
            waited = time.monotonic() - began
            if waited > _START_S or (waited > _SETTLE_S and not self._processes()):
                raise LabError(f"dockerd does not answer: {self._last_words()}", f"its log: {self.log}")
            time.sleep(0.1)

    def _note_process(self) -> bool:
        """Record the started dockerd by pid and start time as soon as it has written its pid."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            stat = read_stat(pid)
            if stat is not None and pid in self._processes():
                save_process(self._record, ProcessId(pid, stat.start))
                return True
        return False

    def _last_words(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        return lines[-1] if lines else "it said nothing"

    def _stop(self) -> None:
        """End dockerd as it wants to be ended, then reap what it, or one that was killed, left behind."""
        process = self.process()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            until = time.monotonic() + _STOP_S
            while process.alive() and time.monotonic() < until:
                time.sleep(0.05)
        self._reap()
        self._network_down()
        self._record.unlink(missing_ok=True)

    def _reap(self) -> None:
        """Kill the processes of an engine that is gone, with the containers below them, and undo its mounts."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
        doomed: list[int] = []
        todo = self._processes()
        while todo:
            pid = todo.pop()
            doomed.append(pid)
            todo += parents.get(pid, [])
        for pid in sorted(set(doomed)):
            stat = read_stat(pid)
            if stat is not None:
                ProcessId(pid, stat.start).kill()
        for target in _mounts_below(self.folder.resolve(), self.run_folder):
            run(["umount", "--lazy", target], timeout=_COMMAND_S)
        shutil.rmtree(self.run_folder, ignore_errors=True)

    def _processes(self) -> list[int]:
        """Return the pids of dockerd, containerd and shims that name our own folder in /run as an argument."""
        mark = f"{self.run_folder}/"
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                program, *words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                ours = any(mark in word for word in words)
                if ours and Path(program).name in _PROGRAMS:
                    found.append(int(entry.name))
        return found

    # ------------------------------------------------------------------------------------------------ network

    def _rules(self) -> Iterator[list[str]]:
        """Yield our iptables rules: table, chain and match."""
        yield ["nat", "POSTROUTING", "-s", f"{self.network}.0/24", "!", "-o", self.bridge, "-j", "MASQUERADE"]
        yield ["filter", "FORWARD", "-i", self.bridge, "-j", "ACCEPT"]
        answered = ["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"]
        yield ["filter", "FORWARD", "-o", self.bridge, *answered, "-j", "ACCEPT"]

    def _network_up(self) -> None:
        if not Path(f"/sys/class/net/{self.bridge}").exists():
            run(["ip", "link", "add", self.bridge, "type", "bridge"], timeout=_COMMAND_S).check("cannot make a bridge")
            address = ["ip", "address", "add", f"{self.network}.1/24", "dev", self.bridge]
            run(address, timeout=_COMMAND_S).check("cannot give the bridge an address")
        run(["ip", "link", "set", self.bridge, "up"], timeout=_COMMAND_S).check("cannot start the bridge")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
        for table, chain, *match in self._rules():
            # Inserted first: another engine may have made DROP the chain's policy.
            if _iptables(table, "-C", chain, *match).returncode != 0:
                _iptables(table, "-I", chain, *match).check("cannot add an iptables rule")

    def _network_down(self) -> None:
        """Take away what ``_network_up`` made; ip_forward stays, since others may count on it by now."""
        if Path(f"/sys/class/net/{self.bridge}").exists():
            for table, chain, *match in self._rules():
                _iptables(table, "-D", chain, *match)
            run(["ip", "link", "delete", self.bridge], timeout=_COMMAND_S)

    # ------------------------------------------------------------------------------------------------ cache

    def _cut_cache(self, cap: int = CACHE_CAP) -> None:
        """Remove stopped containers and, while the layers take more than ``cap`` bytes, images: the oldest first."""
        with contextlib.closing(docker.DockerClient(base_url=self.docker_host, timeout=120)) as client:
            client.containers.prune()
            for age in ("336h", "48h", ""):
                if int(client.df()["LayersSize"]) <= cap:
                    return
                client.images.prune(filters={"dangling": False, **({"until": age} if age else {})})


def _iptables(table: str, *words: str) -> Result:
    return run(["iptables", "-w", "-t", table, *words], timeout=_COMMAND_S)


def _mounts_below(*folders: Path) -> list[str]:
    """Return the mount points in ``folders``, the innermost first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in reversed(points) if any(point.startswith(f"{folder}/") for folder in folders)]
