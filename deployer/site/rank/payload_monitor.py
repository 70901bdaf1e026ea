"""The process beside a payload, which records the payload's MPI library and how the payload ended.

It is imported after the payload has started, and imports modules only when it needs them: see ``rank``.
"""

import errno
import os
import time

from deployer.site.proof import rank_record
from deployer.site.rank.node_records import NodeRecords
from deployer.site.rank.observed import mapped_mpi, oom
from deployer.site.rank.rendezvous import NCCL_LOG

MYPY = False
if MYPY:
    import signal
    from typing import Dict, List, NoReturn, Optional, Set

    from deployer.site.rank.launched import RankOptions
    from deployer.site.rank.observed.communication import PayloadWatcher
    from deployer.site.rank.observed.itex import Sight
    from deployer.site.rank.observed.launcher_variables import LauncherVariables
    from deployer.site.rank.observed.outside import Watcher
else:
    import _signal as signal

#: Seconds between two checks: at first, the maximum until a library is found, and the maximum after that.
_FIRST, _SEARCHING, _SEEN = 0.02, 0.25, 30.0
_GROWTH = 1.25
#: Seconds between the payload's failure and the end of this process.
_LAST_WORDS = 1.0
#: Made in a home that job.sh removes itself, after it has saved caches from it.
KEPT = "/.deployer-kept"
#: Seconds between two attempts to warn a payload that does not handle the signal yet.
_UNHEARD = 1.0
#: Seconds from the mapping of a payload's first MPI library to its warning. MPICH and its relatives handle SIGUSR1 from
#: MPI_Init on, and under srun the next MPI call then hangs (observed with Intel MPI 2021.15). Before the warning, the
#: payload must install its own handler.
_MPI_STARTS = 30.0
#: Seconds for a library to return its version, and for a refused payload to end.
_PATIENCE = 10.0
#: Seconds for payloads to end after a request to end the job; Slurm kills all 30 s after SIGTERM (KillWait).
GRACE = 20.0
_LEAVING = ".leaving"
_ATTEMPTS = 5
#: Parts of the names of libraries that communicate without MPI: see ``communication``.
_COMMUNICATING = ("/libnccl", "/librccl", "/libgloo", "/libtorch_c", "/libjax_common", "/xla_extension")
#: TensorFlow communicates directly only if no MPI is mapped.
_TENSORFLOW = "/libtensorflow_framework."
#: Programs of container runtimes that stay beside a payload; most are in Go, which handles every signal.
_RUNTIMES = ("podman", "conmon", "crun", "runc", "starter", "starter-suid", "apptainer", "singularity")


def watch(pid: int, task: int, awaited: "Set[int]", options: "RankOptions") -> int:
    """Monitor the payload ``pid`` of rank ``task`` until it ends; return or end as ``rank.run`` describes."""
    name, records = rank_record.PAYLOAD % task, NodeRecords(options.out)
    observer = _Observer(pid, task, options)
    record, outside, end = observer.record, options.outside is not None, options.end
    if outside:
        os.chdir(options.out)  # a node's folder is removed when no process uses it
    stop = 0.0  # the time at which a payload that was asked to end is killed
    grace = _GracePeriod(awaited, os.path.join(options.shared, _LEAVING, str(task)))
    kills = oom.kills()
    pause = _FIRST
    warning = _Warning(pid, options.warn, outside)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if outside:
            _reap(pid)
        before = dict(record)
        observer.look()
        if record != before:
            records.try_to_add(name, rank_record.dumps(record))
        if observer.refuses:
            stop = stop or time.time() + _PATIENCE
            # Parents first: otherwise a shell would start its next command.
            mapped_mpi.send(mapped_mpi.family(pid), signal.SIGKILL if time.time() > stop else signal.SIGTERM)
            pause = 1.0
        elif record["libraries"] != before["libraries"]:
            pause = 1.0
        else:
            pause = min(pause * _GROWTH, _SEARCHING if observer.searching else _SEEN)
        asked = grace.wait(warning.before(pause, bool(record["libraries"])))
        if end and asked in (signal.SIGUSR2, signal.SIGTERM):
            mapped_mpi.send(mapped_mpi.family(pid), signal.SIGTERM)
            end = False
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    killer = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    observer.end(status == 0 and not grace.asked())
    if observer.refuses:
        from deployer.contract.base.errors import Refused

        code, killer = Refused.exit_code, None
    record.update(exit_code=code, signal=killer, ended=int(time.time() * 1000))
    if code or killer:
        group, node = map(oom.added, kills, oom.kills())
        record.update(shm=shared_memory(), oom_group=group, oom_node=node)
    records.try_to_add(name, rank_record.dumps(record), last=True)
    if grace.asked():
        grace.await_others()
        leave(options.home)
    return _last_words(code, killer, options)


class _Observer:
    """The observations of the payload ``pid``, kept in ``record``; modules for rare cases are imported if needed."""

    def __init__(self, pid: int, task: int, options: "RankOptions") -> None:
        self._pid = pid
        self._libraries: "Dict[mapped_mpi.Mapping, Dict[str, Optional[str]]]" = {}
        self._nccl_log = os.path.join(options.out, NCCL_LOG % task)
        self._communication: "Optional[PayloadWatcher]" = None
        self._variables: "Optional[LauncherVariables]" = None
        self._sight: "Optional[Sight]" = None
        self._watcher: "Optional[Watcher]" = None
        self.record = rank_record.begun(task, os.uname().nodename)
        if options.itex:
            from deployer.site.rank.observed import itex

            self._sight = itex.Sight()
        if options.outside is not None:
            from deployer.site.rank.observed.outside import Watcher

            self._watcher = Watcher(options.outside or None)

    @property
    def refuses(self) -> bool:
        """Return whether the payload must not continue."""
        verdict = self._sight and self._sight.verdict
        return bool(verdict and verdict.reason is not None)

    @property
    def searching(self) -> bool:
        """Return whether something may still be found soon."""
        without_mpi = self._without_mpi()
        known = self._libraries or (without_mpi is not None and without_mpi.known)
        if not known or (without_mpi is not None and without_mpi.searching):
            return True
        return self._sight is not None and self._sight.verdict is None

    def look(self) -> None:
        """Record newly mapped MPI libraries of the payload, and all other observations."""
        members = _members(self._pid, self._watcher is not None)
        texts = [mapped_mpi.maps(member) for member in members]
        for member, maps in zip(members, texts):
            self._look_at(member, maps)
        names = _COMMUNICATING if self._libraries else (*_COMMUNICATING, _TENSORFLOW)
        if self._communication is None and any(name in text for text in texts for name in names):
            from deployer.site.rank.observed.communication import PayloadWatcher

            self._communication = PayloadWatcher(self._nccl_log)
        if self._communication:
            self._communication.look(members, texts)
        self._fill()

    def end(self, well: bool) -> None:
        """Record the payload's end: ``well`` if it came without an error and without a signal from deployer."""
        if self._sight and well:
            self._sight.end()
        self._fill()

    def _look_at(self, member: int, maps: str) -> None:
        mapped = mapped_mpi.mpi_libraries(maps)
        if mapped and not self._watcher:  # outside the container, the launcher's variables are the host's
            if self._variables is None:
                from deployer.site.rank.observed.launcher_variables import LauncherVariables

                self._variables = LauncherVariables()
            self._variables.look(member, mapped)
        if len({inode for _, inode in mapped}) > 1:
            self.record["together"] = [path for path, _ in mapped]
        for mapping in mapped:
            if mapping not in self._libraries:
                identity = mapped_mpi.identity(member, mapping)
                path = self._watcher.host_copy(identity) if self._watcher else mapped_mpi.reopened(member, mapping)
                says = _says(path) if path else None
                self._libraries[mapping] = {"path": mapping[0], "identity": identity, "says": says}
        for observer in (self._sight, self._watcher):
            if observer:
                observer.look(member, maps)

    def _without_mpi(self) -> "Optional[PayloadWatcher]":
        """Return the observer of communication without MPI. If MPI is mapped too, TensorFlow alone does not count."""
        watcher = self._communication
        return None if self._libraries and watcher and watcher.only_tensorflow else watcher

    def _fill(self) -> None:
        """Put the observations into the record."""
        verdict, without_mpi = self._sight.verdict if self._sight else None, self._without_mpi()
        self.record.update(libraries=list(self._libraries.values()), itex=dict(verdict._asdict()) if verdict else None)
        self.record.update(communication=without_mpi.record() if without_mpi else None)
        self.record.update(unset=self._variables.missing if self._variables else [])
        if self._watcher and self._watcher.seen:
            self.record["outside"] = dict(self._watcher.seen._asdict())


class _GracePeriod:
    """The time between a request to end this rank, one of the signals ``awaited``, and its end.

    Launchers kill all ranks as soon as one fails. Therefore a rank that is asked to end makes a file at ``mark``. A
    rank whose payload has ended waits until the folder of these files is empty, which it tests by trying to remove it.
    Listing the folder every second in thousands of ranks would overload a shared file system.
    """

    def __init__(self, awaited: "Set[int]", mark: str) -> None:
        self._awaited = awaited
        self._mark = mark
        self._since: "Optional[float]" = None

    def wait(self, seconds: float) -> "Optional[int]":
        """Wait for a signal for at most ``seconds``, and return its number; None if none came."""
        sent = signal.sigtimedwait(self._awaited, seconds)
        if sent is not None and sent.si_signo != signal.SIGCHLD and self._since is None:
            self._since = time.time()
            self._leave_mark()
        return sent.si_signo if sent is not None else None

    def asked(self) -> bool:
        if self._since is None and signal.sigpending() & (self._awaited - {signal.SIGCHLD}):
            self._since = time.time()  # the signal came as the payload ended
        return self._since is not None

    def await_others(self) -> None:
        """Wait, up to the limit, for all ranks that were asked to end, including those asked a moment later."""
        _remove(self._mark)
        while time.time() < (self._since or 0) + GRACE:
            time.sleep(_LAST_WORDS)
            if self._is_last():
                return
        self._is_last()

    def _is_last(self) -> bool:
        """Return whether no file is left, and remove the folder in that case."""
        try:
            os.rmdir(os.path.dirname(self._mark))
        except OSError as error:
            return error.errno not in (errno.ENOTEMPTY, errno.EEXIST)  # POSIX allows both
        return True

    def _leave_mark(self) -> None:
        """Make the file. If this fails, the other ranks do not wait for this one."""
        for _ in range(_ATTEMPTS):
            try:
                os.close(os.open(self._mark, os.O_CREAT, 0o600))
                return
            except OSError as error:
                if error.errno != errno.ENOENT:
                    return
            try:
                os.mkdir(os.path.dirname(self._mark), 0o700)
            except OSError:  # another rank made the folder, and may remove it before the next attempt
                continue


def shared_memory() -> "Optional[int]":
    """Return the free bytes of the shared memory through which ranks on a node communicate."""
    try:
        state = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return None
    return state.f_bavail * state.f_frsize


def _members(pid: int, outside: bool) -> "List[int]":
    """Return the payload's processes; those that left the runtime ``pid``, outside the container, are last."""
    own = mapped_mpi.family(pid)
    return own + [member for member in mapped_mpi.family(os.getpid())[1:] if member not in own] if outside else own


def _reap(pid: int) -> None:
    """Reap the ended processes that this one adopted, but not the payload, whose exit status is still needed."""
    for member in mapped_mpi.family(os.getpid())[1:]:
        if member != pid:
            try:
                os.waitpid(member, os.WNOHANG)
            except ChildProcessError:  # another process's child
                continue


def _is_runtime(pid: int) -> bool:
    """Return whether a process belongs to the container runtime."""
    try:
        name = os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:  # it has ended, or has more privileges than this user (setuid)
        return True
    return name in _RUNTIMES or name.startswith("proot")


class _Warning:
    """The signal before the time limit, so that the payload ``pid`` can save its state; ``at`` None: no signal."""

    def __init__(self, pid: int, at: "Optional[int]", outside: bool = False) -> None:
        self._pid = pid
        self._outside = outside
        self._at = at
        self._sent = at is None
        self._not_before = 0.0

    def before(self, pause: float, has_mpi: bool = False) -> float:
        """Send the signal if it is time; return the seconds to wait before the next check, at most ``pause``."""
        if has_mpi and not self._not_before:
            self._not_before = time.time() + _MPI_STARTS
        if self._sent or self._at is None:
            return pause
        left = max(self._at, self._not_before) - time.time()
        if left > 0:
            return min(pause, left)
        for member in _members(self._pid, self._outside):
            if self._outside and _is_runtime(member):  # it would handle the signal itself, or forward it to all
                continue
            if not _handles(member, signal.SIGUSR1):  # the signal would end this process
                continue
            try:
                os.kill(member, signal.SIGUSR1)
            except OSError:
                continue  # it has ended, or belongs to another user
            self._sent = True
        return pause if self._sent else min(pause, _UNHEARD)


def _handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    lines = mapped_mpi.kernel_text("/proc/%d/status" % pid).splitlines()
    caught = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)


def _says(path: str) -> "Optional[str]":
    """Return the version text of the library at ``path``, from a separate process because it may crash or hang."""
    import select

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            import resource

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


def _last_words(code: "Optional[int]", killer: "Optional[int]", options: "RankOptions") -> int:
    """End with a signal, or return the exit code, after the payload's last output has arrived."""
    if options.warn is not None and code == rank_record.SAVED:
        code = 0  # if one rank fails, the launcher may end others that are still saving
    if code:
        # srun --kill-on-bad-exit ends the step when this process ends, and drops output that is not forwarded yet. In
        # tests, all but the first line of a traceback was lost. Wait for the payload's last output to arrive.
        time.sleep(_LAST_WORDS)
    if killer is not None:
        end_by(killer)
    if code and options.abort:
        end_by(signal.SIGABRT)
    return code or 0


def end_by(number: int) -> "NoReturn":
    """End this process with the signal that ended the payload, so that the launcher reports the cause."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # only the payload's core file is useful
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def leave(home: "Optional[str]") -> None:
    """Remove the job's home on this node after a request to end, then wait until the other nodes have done the same.

    Slurm then starts no further step that could remove it, and kills all ranks when the first one ends.
    """
    if home and not os.path.lexists(home + KEPT):  # noqa: TID251 (a damaged home is removed later)
        from deployer.contract.base.errors import DeployerError
        from deployer.system import files

        try:
            files.remove_tree(home)
        except (OSError, DeployerError):
            return  # the next job on the node removes the rest
        time.sleep(2 * _LAST_WORDS)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
