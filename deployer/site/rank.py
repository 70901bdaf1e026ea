"""rank: run the payload of one rank, and write down which MPI library its own processes use and how it ended.

The probe can only speak for itself: the payload may be linked to another library (Debian's ``libmpich.so.12``, an
RPATH). So this process stays as the payload's parent, looks at ``/proc/PID/maps`` of the payload and its children, and
ends as the payload ended. It has no other part in its life: the payload keeps the descriptors (PMI's among them), the
environment, the process group and the terminal. Launchers signal the whole group or step, so signals are not passed
on, which would make two of one; this process only waits on.

Being the parent, not a watcher that was forked off, leaves nothing behind, and gives each rank's own exit code: srun
reports the highest of all ranks, in which the one that raised is hidden by those that it killed.
"""

import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Dict, List, NoReturn, Optional

from deployer.contract import records
from deployer.contract.errors import DeployerError
from deployer.contract.evidence import MappedLibrary, PayloadRecord
from deployer.site import mapped, probe
from deployer.system import files, process

#: Seconds between two looks: at first, at most until a library was seen, and at most after that.
_FIRST, _SEARCHING, _SEEN = 0.02, 0.25, 30.0
_GROWTH = 1.25
#: Seconds between the payload's failure and ours.
_LAST_WORDS = 1.0
#: Seconds that a library gets to say its version.
_PATIENCE = 10.0
#: What may ask this process to end; the payload got it as well and decides.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def run(out: str, command: List[str], abort: bool = False) -> int:
    """Run ``command`` as the payload of this rank and return its exit code, with its record in the folder ``out``.

    Ends by the same signal as the payload where a signal ended it; with ``abort``, by SIGABRT where it failed: some
    launchers let the other ranks wait for one that has only exited.
    """
    environment = inherited_environment()
    task = probe.task_number(environment)
    path = os.path.join(out, "payload-%d.json" % task)
    awaited = set(_SIGNALS) | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _become(command, environment)
    record = PayloadRecord(task, socket.gethostname(), [], None, None, None)
    libraries: Dict[mapped.Mapping, MappedLibrary] = {}
    pause = _FIRST
    while True:
        signal.sigtimedwait(awaited, pause)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if _look(pid, libraries):
            record = record._replace(libraries=list(libraries.values()))
            _write(path, record)
            pause = 1.0
        else:
            pause = min(pause * _GROWTH, _SEEN if libraries else _SEARCHING)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    killer = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    _write(path, record._replace(exit_code=code, signal=killer, ended=int(time.time() * 1000)))
    if code:
        # srun --kill-on-bad-exit ends the step when it hears of this, and drops what it has not forwarded yet: in the
        # lab the traceback was lost but for its first line. The payload's last words get this long to arrive.
        time.sleep(_LAST_WORDS)
    if killer is not None:
        _end_by(killer)
    if code and abort:
        _end_by(signal.SIGABRT)
    return code or 0


def inherited_environment() -> Dict[str, str]:
    """Return the environment as this process got it: Python's start may add LC_CTYPE to ``os.environ``."""
    with open("/proc/self/environ", "rb") as stream:
        pairs = (entry.partition(b"=") for entry in stream.read().split(b"\0"))
        return {os.fsdecode(name): os.fsdecode(value) for name, found, value in pairs if found}


def restore_signals() -> None:
    """Undo what Python does to signals that a new program inherits: a payload must die of SIGPIPE as anywhere."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _become(command: List[str], environment: Dict[str, str]) -> NoReturn:
    """In the child: become the payload, or end with the error's exit code."""
    try:
        restore_signals()
        process.replace(command, environment)
    except DeployerError as error:
        sys.stderr.write("\n".join(error.lines()) + "\n")
        sys.stderr.flush()
        os._exit(error.exit_code)
    finally:
        os._exit(1)


def _look(pid: int, libraries: Dict[mapped.Mapping, MappedLibrary]) -> bool:
    """Add the MPI libraries that the payload has mapped since; return whether there were new ones."""
    before = len(libraries)
    for member in mapped.family(pid):
        for mapping in mapped.of_process(member):
            if mapping not in libraries:
                found = mapped.identity(member, mapping)
                libraries[mapping] = MappedLibrary(mapping.path, found, _says(mapping.path))
    return len(libraries) > before


def _says(path: str) -> Optional[str]:
    """Return what the library at ``path`` calls itself, asked in a process of its own that it may crash or hang."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            silent = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(silent, descriptor)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            from deployer.site import mpi

            os.write(writer, mpi.load([path]).version().encode()[:4096])
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], _PATIENCE)
        text = os.read(reader, 4096) if ready else b""
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return text.decode("utf-8", "replace") or None


def _end_by(number: int) -> NoReturn:
    """End this process by the signal that ended the payload, so that the launcher sees what happened."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the payload's core is the one of interest
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _write(path: str, record: PayloadRecord) -> None:
    """Write the record; evidence that cannot be written must not end a training that runs."""
    try:
        files.write_text(path, records.pretty(record.record()))
    except DeployerError as error:
        sys.stderr.write("\n".join(error.lines()) + "\n")
