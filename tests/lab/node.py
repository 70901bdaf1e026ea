"""One node: a set of namespaces held by one process, which is PID 1 in it.

Killing that one process ends everything in the node: the kernel kills what else runs in the pid namespace, and
drops the mounts and network interfaces with the last user of theirs. So nothing has to be cleaned up one by one.

A holder can never be left over unrecorded. It tells its pid and start time to the command that started it, which
writes them down and answers "go"; if that command is killed at any moment before, the holder reads end-of-file
instead and ends.

    lab up                     holder.py (python -m tests.lab.holder)
      |-- spec, one JSON line --> unshare, fork: the child is PID 1
      |<-- {"pid", "start"} ------|
      |   written to process.json |
      |-- "go" ------------------>| mounts, pivot_root
      |<-- "ready" or an error ---|
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.lab import linux
from tests.lab.command import CLEAN_ENV
from tests.lab.errors import LabError
from tests.lab.state import ProcessId, StateDir, load_process, save_process

_REPOSITORY = Path(__file__).resolve().parents[2]
_START_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class NodeSpec:
    """All that a holder has to know. ``machine`` False: a network namespace and nothing else."""

    lab: str
    name: str
    machine: bool
    state: str
    root: str = "/"
    opt: str = ""
    memory_mb: int = 0
    scratch: str = ""
    namespaces: bool = True


class Starting:
    """A holder on its way up. Start several, then finish() each: they set themselves up side by side."""

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self._deadline = time.monotonic() + _START_TIMEOUT_S
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-m", "tests.lab.holder", spec.lab, spec.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**CLEAN_ENV, "PYTHONPATH": str(_REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            start_new_session=True,  # not ended by a Ctrl-C in the terminal that it was started from
        )
        self._write(json.dumps(asdict(spec)))

    def finish(self) -> ProcessId:
        """Record the holder, let it go on and wait until the node is ready."""
        fields = json.loads(self._read())
        process = ProcessId(fields["pid"], fields["start"])
        save_process(StateDir(Path(self.spec.state)).process_file(self.spec.name), process)
        self._write("go")
        answer = self._read()
        if answer != "ready":
            raise LabError(f"{self.spec.name} does not start: {answer}")
        return process

    def close(self) -> None:
        """Let go of the pipes. A holder that was not told "go" ends by it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process.wait(timeout=_START_TIMEOUT_S)  # not the node itself but the one that forked it

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # _read() then says why
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        left = max(0.0, self._deadline - time.monotonic())
        if not select.select([self._process.stdout], [], [], left)[0]:
            raise LabError(f"{self.spec.name} does not start within {_START_TIMEOUT_S:g} s")
        line = self._process.stdout.readline().decode().strip()
        if not line:
            raise LabError(f"{self.spec.name} ended while it started", "its last words are above")
        return line


def holder_of(state: StateDir, node: str) -> ProcessId | None:
    """Return the process that holds ``node``, None when the node is down."""
    return load_process(state.process_file(node))


def in_network_of(pid: int) -> list[str]:
    """Return the argv prefix for a command in the network of a node, else on the host."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]


def inside(pid: int) -> list[str]:
    """Return the argv prefix for a command as root in a node; it has the filter of the node's holder, if any."""
    filtered = "\nSeccomp:\t2\n" in Path(f"/proc/{pid}/status").read_text()
    first = [sys.executable, "-ISs", linux.__file__] if filtered else []
    return [*first, "nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"]
