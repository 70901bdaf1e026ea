"""What stays beside a payload: notes which MPI library its processes have mapped, and how it ended.

It is imported when the payload is on its way, and only takes what it needs then.
"""

import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Dict, NoReturn, Optional, Set

from deployer.contract import json_records
from deployer.contract.errors import Refused
from deployer.contract.payload import MappedLibrary, PayloadRecord
from deployer.site.rank import mapped_mpi, oom

MYPY = False
if MYPY:
    from deployer.site.rank.itex import Sight
    from deployer.site.rank.outside import Watcher

#: Seconds between two looks: at first, at most until a library was seen, and at most after that.
_FIRST, _SEARCHING, _SEEN = 0.02, 0.25, 30.0
_GROWTH = 1.25
#: Seconds between the payload's failure and ours.
_LAST_WORDS = 1.0
#: Seconds that a library gets to say its version, and a payload that is not right to end.
_PATIENCE = 10.0
#: Seconds for goodbyes after the job was asked to end; Slurm kills all 30 s after SIGTERM (KillWait).
GOODBYE = 20.0
_LEAVING = ".leaving-"


def watch(
    pid: int,
    out: str,
    shared: str,
    task: int,
    awaited: Set[signal.Signals],
    abort: bool,
    itex: bool,
    outside: Optional[str] = None,
) -> int:
    """Stay beside the payload ``pid`` of rank ``task`` until it ends, and end as ``rank.run`` says."""
    path = os.path.join(out, "payload-%d.json" % task)
    record = PayloadRecord(task, os.uname().nodename, [], None, None, None)
    libraries: Dict[mapped_mpi.Mapping, MappedLibrary] = {}
    sight = _sight() if itex else None
    watcher = None
    if outside is not None:
        watcher = _watcher(outside)
        os.chdir(out)  # a node's folder is removed when no process is in it any more
    stop = 0.0  # when a payload that was asked to end is killed
    goodbye = _Goodbye(awaited, os.path.join(shared, _LEAVING + str(task)))
    kills = oom.kills()
    pause = _FIRST
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        before = record
        _look(pid, libraries, sight, watcher)
        record = record._replace(libraries=list(libraries.values()), itex=sight.verdict if sight else None)
        record = record._replace(outside=watcher.seen if watcher else None)
        if record != before:
            _write(path, record)
        if record.refusal is not None:
            stop = stop or time.time() + _PATIENCE
            _end_all(pid, signal.SIGKILL if time.time() > stop else signal.SIGTERM)
            pause = 1.0
        elif record.libraries != before.libraries:
            pause = 1.0
        else:
            known = libraries and not (sight and sight.verdict is None)
            pause = min(pause * _GROWTH, _SEEN if known else _SEARCHING)
        goodbye.wait(pause)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    killer = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if sight and status == 0 and not goodbye.asked():
        sight.end()
        record = record._replace(itex=sight.verdict)
    if record.refusal is not None:
        code, killer = Refused.exit_code, None
    record = record._replace(exit_code=code, signal=killer, ended=int(time.time() * 1000))
    if code or killer:
        ended = oom.kills().since(kills)
        record = record._replace(shm=shared_memory(), oom_group=ended.group, oom_node=ended.node)
    _write(path, record)
    if goodbye.asked():
        goodbye.await_others()
    return _last_words(code, killer, abort)


class _Goodbye:
    """What may come between this rank's being asked to end, by one of the signals ``awaited``, and its end.

    Launchers kill all ranks as soon as they see that one has failed. So a rank shows the others that it was asked, by a
    file at ``mark``, and one that is done waits until there is no such file.
    """

    def __init__(self, awaited: Set[signal.Signals], mark: str) -> None:
        self._awaited = awaited
        self._mark = mark
        self._since: Optional[float] = None

    def wait(self, seconds: float) -> None:
        """Wait for a signal, so long at most."""
        sent = signal.sigtimedwait(self._awaited, seconds)
        if sent is not None and sent.si_signo != signal.SIGCHLD and self._since is None:
            self._since = time.time()
            with suppress(OSError):
                os.close(os.open(self._mark, os.O_CREAT, 0o600))

    def asked(self) -> bool:
        if self._since is None and signal.sigpending() & (self._awaited - {signal.SIGCHLD}):
            self._since = time.time()  # it came with the payload's end
        return self._since is not None

    def await_others(self) -> None:
        """Wait until no rank says goodbye, also one that is asked a moment later than this one, but not for ever."""
        with suppress(OSError):
            os.unlink(self._mark)
        folder = os.path.dirname(self._mark)
        with suppress(OSError):
            while time.time() < (self._since or 0) + GOODBYE:
                time.sleep(_LAST_WORDS)
                if not any(name.startswith(_LEAVING) for name in os.listdir(folder)):
                    return


def shared_memory() -> Optional[int]:
    """Return the bytes that are free in the memory through which ranks of a node send to each other."""
    try:
        state = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return None
    return state.f_bavail * state.f_frsize


def _sight() -> "Sight":
    from deployer.site.rank import itex

    return itex.Sight()


def _watcher(library: str) -> "Watcher":
    from deployer.site.rank.outside import Watcher

    return Watcher(library or None)


def _look(
    pid: int,
    libraries: Dict[mapped_mpi.Mapping, MappedLibrary],
    sight: "Optional[Sight]",
    watcher: "Optional[Watcher]" = None,
) -> None:
    """Add the MPI libraries that the payload has mapped since, and what is seen of Intel's extension."""
    for member in mapped_mpi.family(pid):
        maps = mapped_mpi.maps(member)
        for mapping in mapped_mpi.mpi_libraries(maps):
            if mapping not in libraries:
                found = mapped_mpi.identity(member, mapping)
                path = watcher.host_copy(found) if watcher else mapping.path
                libraries[mapping] = MappedLibrary(mapping.path, found, _says(path) if path else None)
        if sight:
            sight.look(member, maps)
        if watcher:
            watcher.look(member, maps)


def _end_all(pid: int, number: int) -> None:
    """Send a signal to the payload's processes, parents first: a shell would go on to its next command."""
    for member in mapped_mpi.family(pid):
        with suppress(OSError):
            os.kill(member, number)


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
            from deployer.site.rank import mpi

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


def _last_words(code: Optional[int], killer: Optional[int], abort: bool) -> int:
    """End by a signal or return the exit code, after the payload's last words."""
    if code:
        # srun --kill-on-bad-exit ends the step when it hears of this, and drops what it has not forwarded yet: in the
        # lab the traceback was lost but for its first line. The payload's last words get this long to arrive.
        time.sleep(_LAST_WORDS)
    if killer is not None:
        _end_by(killer)
    if code and abort:
        _end_by(signal.SIGABRT)
    return code or 0


def _end_by(number: int) -> NoReturn:
    """End this process by the signal that ended the payload, so that the launcher sees what happened."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the payload's core is the one of interest
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _write(path: str, record: PayloadRecord) -> None:
    """Write the record, whole or not at all; evidence that cannot be written must not end a job that runs."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, ".%s.%d.part" % (name, os.getpid()))
    try:
        with open(temporary, "w") as stream:
            stream.write(json_records.pretty(record.record()))
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        sys.stderr.write("deployer: error: cannot write %s: %s\n" % (path, error.strerror))
