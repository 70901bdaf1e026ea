"""What a lab remembers on disk: its folder, its lock, and which processes are its own.

A process is known by its pid AND its start time. A pid alone is not enough: once ours is dead the kernel may give
the number to somebody else's process, which we must neither trust nor kill.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.errors import LabError

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_LOCK_WAIT_S = 180.0


def default_state_dir(name: str, environ: Mapping[str, str]) -> Path:
    """Return the folder of the lab ``name``: ``$XDG_STATE_HOME/deployer/lab/NAME``."""
    if not _NAME.fullmatch(name):
        raise LabError(f"not a lab name: {name!r}", "use small letters, digits and '-', at most 31 characters")
    return _xdg(environ, "XDG_STATE_HOME", ".local/state") / "deployer" / "lab" / name


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder that all labs of this user share for downloaded and built software."""
    return _xdg(environ, "XDG_CACHE_HOME", ".cache") / "deployer" / "lab"


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    home = Path(environ.get("HOME") or "/root")
    return Path(environ.get(variable) or home / fallback)


@dataclass(frozen=True)
class StateDir:
    """The folder of one lab and where things lie in it."""

    path: Path

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def record(self) -> Path:
        """What the lab was started with. Its presence marks the folder as a lab's: only such a one is purged."""
        return self.path / "lab.json"

    @property
    def etc(self) -> Path:
        """Files that cover those of the host's /etc on every node."""
        return self.path / "etc"

    @property
    def profile_d(self) -> Path:
        return self.path / "profile.d"

    @property
    def home(self) -> Path:
        """/home of every node: the shared file system."""
        return self.path / "home"

    @property
    def laptop(self) -> Path:
        return self.path / "laptop"

    @property
    def ssh_config(self) -> Path:
        return self.laptop / "ssh_config"

    def node(self, name: str) -> Path:
        return self.path / "nodes" / name

    def process_file(self, name: str) -> Path:
        return self.node(name) / "process.json"


# ---------------------------------------------------------------- processes


@dataclass(frozen=True)
class ProcessId:
    """A process, known by pid and start time (clock ticks since boot)."""

    pid: int
    start: int

    def alive(self) -> bool:
        """True while this very process exists and is no zombie."""
        stat = read_stat(self.pid)
        return stat is not None and stat.start == self.start and stat.state not in "ZX"

    def kill(self, timeout: float = 10.0) -> None:
        """End the process with SIGKILL and wait until it is gone; do nothing if it is gone already."""
        if self.alive():
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
        until = time.monotonic() + timeout
        while self.alive():
            if time.monotonic() > until:
                raise LabError(f"process {self.pid} does not end within {timeout:g} s of SIGKILL")
            time.sleep(0.01)


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that matter here."""

    pid: int
    state: str
    start: int


def parse_stat(text: str) -> Stat:
    """Parse /proc/PID/stat. The command name in it may hold blanks and brackets: count from the last bracket."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(pid=int(head.split(" ", 1)[0]), state=fields[0], start=int(fields[19]))


def read_stat(pid: int | str) -> Stat | None:
    """Return the state of process ``pid`` (or "self"), None if there is none."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def save_process(file: Path, process: ProcessId) -> None:
    write_atomically(file, json.dumps({"pid": process.pid, "start": process.start}) + "\n")


def load_process(file: Path) -> ProcessId | None:
    """Return the recorded process if it still runs, None otherwise."""
    try:
        fields = json.loads(file.read_text())
        process = ProcessId(int(fields["pid"]), int(fields["start"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return process if process.alive() else None


# ---------------------------------------------------------------- files and the lock


def write_atomically(file: Path, text: str, mode: int = 0o644) -> bool:
    """Give ``file`` this text by a rename, so that a reader sees the old or the new one. True if it changed."""
    try:
        if file.read_text() == text:
            return False
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(mode)
    temporary.rename(file)
    return True


@contextmanager
def locked(file: Path, wait: float = _LOCK_WAIT_S) -> Iterator[None]:
    """Hold the lock ``file``. It is the kernel's lock: it ends with its holder, even with one that was killed.

    A purge removes the file while another command may be waiting for it; that one then holds the lock of a file
    that nobody else can see, so it looks again.
    """
    until = time.monotonic() + wait
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a", encoding="ascii") as handle:  # not inherited by children: Python closes it on exec
            if _try_lock(handle.fileno(), until, file) and _is_same_file(handle.fileno(), file):
                yield
                return


def _try_lock(descriptor: int, until: float, file: Path) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                raise LabError(f"another command holds {file}", "wait for it, or end it") from None
            time.sleep(0.05)


def _is_same_file(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
