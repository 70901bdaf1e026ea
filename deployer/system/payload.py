"""Start a payload: a fork that becomes the program. Separate from ``process``, because every rank waits for it.

Therefore it imports only what Python has already loaded or built in. Types are in quotes, because ``typing`` takes
longer than everything else here, as do the enumerations of ``signal``, which ``_signal`` lacks.
"""

import os
import sys

MYPY = False
if MYPY:
    import signal
    from typing import Dict, List, NoReturn, Optional, Set
else:
    import _signal as signal

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def start(
    command: "List[str]", environment: "Dict[str, str]", awaited: "Set[int]", stdin: "Optional[str]" = None
) -> int:
    """Start ``command`` with this process's current signal handling, and return its pid.

    If the program cannot be started, or the file ``stdin`` cannot be opened, the child prints the lines of a
    DeployerError and ends with its exit code.

    Args:
        awaited: signals that are blocked in this process from before the fork, so that the caller can wait for them.
        stdin: a file for standard input; None: this process's own.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited | {signal.SIGTERM})
    pid = os.fork()
    if pid == 0:
        if callable(signal.getsignal(signal.SIGTERM)):
            # The new program has no handler, so a signal handled before that would be lost.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _become(command, environment, stdin)
    signal.pthread_sigmask(signal.SIG_SETMASK, before | awaited)
    return pid


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends: podman's conmon leaves podman in this way.

    If that is impossible, the payload is observed only below the process that was started.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)
    except (ImportError, AttributeError):
        return


def exit_code(status: "int") -> "int":
    """Return a process's exit code as a shell does, from its wait status: 128 plus the signal if one ended it."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def restore_signals() -> None:
    """Undo Python's changes to signals that a new program inherits: a payload must end at SIGPIPE as usual."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def complain(text: str) -> None:
    """Print lines on standard error at once: a rank ends without cleanup, and before 3.9 they would be lost."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _become(command: "List[str]", environment: "Dict[str, str]", stdin: "Optional[str]") -> "NoReturn":
    try:
        restore_signals()
        if stdin is not None:
            _read_from(stdin)
        _execute(command, environment)
    except OSError:
        _explain(command, environment)
    finally:
        os._exit(1)


def _execute(command: "List[str]", environment: "Dict[str, str]") -> "None":
    """Become the program as ``os.execvpe`` does, which first imports ``warnings``. Raise OSError if there is none."""
    if "/" in command[0]:
        os.execve(command[0], command, environment)
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        try:
            os.execve(os.path.join(folder, command[0]), command, environment)
        except OSError:  # as execvpe: the next folder may have it; _explain finds the reason again
            continue
    raise FileNotFoundError(command[0])


def _read_from(path: "str") -> "None":
    try:
        os.dup2(os.open(path, os.O_RDONLY), 0)
    except OSError as error:
        complain(f"deployer: error: cannot read {path}, the job's stdin: {error.strerror}")
        os._exit(2)  # UsageError's


def _explain(command: "List[str]", environment: "Dict[str, str]") -> None:
    from deployer.contract.base.errors import DeployerError
    from deployer.system import process

    try:
        process.replace(command, environment)
    except DeployerError as error:
        complain("\n".join(error.lines()))
        os._exit(error.exit_code)
