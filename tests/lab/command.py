"""Starts processes and waits for them: each with a time limit and a clean environment."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.lab.errors import LabError

#: What a daemon or a root command sees, on the host and in the nodes: nothing of the caller's environment leaks in.
CLEAN_ENV: Mapping[str, str] = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/",
}


@dataclass(frozen=True)
class Result:
    """How a command ended. ``stdout`` and ``stderr`` are text."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    def check(self, what: str, hint: str = "") -> Result:
        """Return itself when the command succeeded; raise a LabError that says what was being done otherwise."""
        if self.returncode == 0:
            return self
        said = (self.stderr or self.stdout).strip().splitlines()
        reason = said[-1] if said else "no output"
        raise LabError(f"{what}: {reason} (exit {self.returncode}: {shlex.join(self.argv)})", hint)


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: str | None = None,
    env: Mapping[str, str] = CLEAN_ENV,
) -> Result:
    """Run ``argv`` to its end and return what it said, whatever its exit code.

    When the time is up the whole process group is killed: ``nsenter --pid`` forks, so killing only the process
    that we started would leave its child running in the node.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise LabError(f"no such program: {argv[0]}") from error
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        _kill_group(process)
        raise LabError(f"no end within {timeout:g} s: {shlex.join(argv)}") from error
    except BaseException:  # Ctrl-C: leave no child behind
        _kill_group(process)
        raise
    return Result(tuple(argv), process.returncode, stdout, stderr)


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
