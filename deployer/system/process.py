"""The only module that starts processes, except for a rank's payload; all others pass it an argv.

Each command is logged shell-quoted, so that a person can paste it. Children get an explicit environment and, by
default, a closed standard input. Nothing here uses a shell.
"""

import errno
import logging
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import IO, Any, Callable, Dict, Iterable, Iterator, Mapping, NamedTuple, NoReturn, Optional, Sequence

from deployer.contract.base.errors import EXIT_INTERRUPTED, DeployerError, JobFailed, MissingTool
from deployer.contract.base.shell import quoted
from deployer.system import files

_logger = logging.getLogger("deployer.process")

#: The part of the environment that a child gets by default: enough to find programs, a home and a locale. The connected
#: side adds what ssh, proxies and TLS need.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ")

#: Seconds to wait for a program's last lines after its end.
_LAST_LINES = 0.5
#: Seconds between two calls of ``tick``.
_TICK = 0.5
#: Seconds between two checks whether a process has ended.
_PAUSE = 0.002
#: Bytes that a program may print into memory; the largest answers have some megabytes.
_MAX_OUTPUT = 32 * 1024 * 1024


class Completed(NamedTuple):
    """How a process ended.

    Attributes:
        argv: the command.
        returncode: the exit status; negative: the signal.
        stdout: captured text.
        stderr: captured text.
    """

    argv: Sequence[str]
    returncode: int
    stdout: str
    stderr: str

    def last_words(self, lines: int = 3) -> str:
        """Return the last lines of stderr (else stdout) in one line, for an error message."""
        text = self.stderr.strip() or self.stdout.strip()
        return " / ".join(text.splitlines()[-lines:])


def base_environment(*more: str) -> Dict[str, str]:
    """Return the part of this process's environment that a child may see: ``INHERITED`` and the given names."""
    return {name: os.environ[name] for name in INHERITED + more if name in os.environ}


def run(
    argv: Sequence[str],
    timeout: float,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    stdin: "str | bytes | None" = None,
    stdout: Optional[IO[bytes]] = None,
    check: bool = True,
    hint: str = "",
    hear: Optional[Callable[[str], bool]] = None,
    tick: Optional[Callable[[int], None]] = None,
) -> Completed:
    """Run ``argv`` to its end.

    The child is killed when the time is up, or if it prints more than 32 MiB.

    Args:
        timeout: seconds. It is always given: nothing here may hang forever.
        env: the environment; None: ``base_environment()``.
        stdin: its input; None: end-of-file at once.
        stdout: a file for its output; None: the output is returned.
        check: raise JobFailed for a non-zero status, with the last lines of stderr.
        hint: the remedy in errors.
        hear: receives each line of stderr immediately and returns whether to leave it out of the captured text.
        tick: receives the process's number repeatedly while it runs and prints nothing.

    Raises:
        MissingTool: the program does not exist.
        JobFailed: it failed, ran too long, or printed too much.
    """
    process = _started(argv, env, hint, stdin is not None, stdout=stdout or subprocess.PIPE, cwd=cwd)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = _completed(_Exchange(argv, process, [data or b""], hear=hear, tick=tick), timeout, None, hint)
    if check and done.returncode != 0:
        raise JobFailed("%s failed (exit %d): %s" % (quoted(argv), done.returncode, done.last_words()), hint)
    return done


def _started(
    argv: Sequence[str], env: Optional[Mapping[str, str]], hint: str = "", reads: bool = False, **more: Any
) -> "subprocess.Popen[bytes]":
    """Start a program with pipes for its output and errors, and for its input if it ``reads``."""
    _logger.debug("$ %s", quoted(argv))
    stdin = subprocess.PIPE if reads else subprocess.DEVNULL
    options = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    try:
        return subprocess.Popen(list(argv), env=base_environment() if env is None else dict(env), **options)
    except OSError as error:
        _not_started(argv, error, hint)


def _completed(exchange: "_Exchange", timeout: float, after: Optional[float], hint: str = "") -> Completed:
    """Return how a process ended. ``timeout`` and ``after`` are those of ``_Exchange.run``."""
    argv, process = exchange.argv, exchange.process
    end = time.monotonic() + timeout
    try:
        with _ended(process):
            outputs = exchange.run(timeout, after)
            process.wait(max(0.0, end - time.monotonic()) if after is None else after)
    except subprocess.TimeoutExpired as error:
        limit = timeout if after is None else error.timeout
        raise JobFailed("%s did not end within %d s" % (quoted(argv), limit), hint) from None
    except _TooMuchError:
        raise JobFailed("%s printed more than %d MiB" % (quoted(argv), _MAX_OUTPUT // 1024**2), hint) from None
    done = Completed(argv, process.returncode, _text(outputs[0]) if process.stdout else "", _text(outputs[-1]))
    _logger.debug("exit %d%s", done.returncode, ": " + done.last_words() if done.returncode else "")
    return done


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Kill a process if the block fails, also by Ctrl-C: no child outlives its caller. Its pipes are closed."""
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        _status(process)


def _status(process: "subprocess.Popen[bytes]", options: int = 0) -> Optional[int]:
    """Return how a child ended, as ``Popen`` has it; None: it still runs, and ``options`` do not wait for it.

    This does not use the lock of ``Popen``: if Ctrl-C comes just after its ``poll`` or ``wait`` has acquired it, it
    stays locked, and the next ``wait`` would never return.
    """
    if process.returncode is None:
        try:
            pid, status = os.waitpid(process.pid, options)
        except ChildProcessError:  # the interrupt came before its status was kept
            process.returncode = 0
        else:
            if pid:
                signaled = os.WIFSIGNALED(status)
                process.returncode = -os.WTERMSIG(status) if signaled else os.WEXITSTATUS(status)
    return process.returncode


def glance(
    argv: Sequence[str], timeout: float, limit: int = 1024 * 1024, env: Optional[Mapping[str, str]] = None
) -> Completed:
    """Run a program that may never end, and return its output, whatever its exit status.

    After ``timeout`` seconds or ``limit`` bytes it is killed with all its children. A process that does not end even
    then, stuck in a dead file system, is left behind.

    Raises:
        MissingTool: the program does not exist.
        JobFailed: it was killed.
    """
    process = _started(argv, env, start_new_session=True)
    try:
        outputs = _Exchange(argv, process, limit=limit).run(timeout)
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)  # it closed its output, so it is about to end
    except (subprocess.TimeoutExpired, _TooMuchError):
        text = "%s did not end within %g s, or printed more than %d bytes" % (quoted(argv), timeout, limit)
        raise JobFailed(text) from None
    finally:
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
    status = -signal.SIGKILL if process.returncode is None else process.returncode
    return Completed(argv, status, _text(outputs[0]), _text(outputs[1]))


class _TooMuchError(Exception):
    """A process printed more than the limit."""


class _Exchange:
    """Writes pieces to a process and reads its output.

    All pipes are served at once, so that a child that writes much to one of them cannot block this process.

    Args:
        pieces: what to write if its input is a pipe; None: what ``reply`` returns.
        limit: the most bytes that it may print.
        hear, tick: as in ``run``.
        reply, later: as in ``converse``.
    """

    def __init__(
        self,
        argv: Sequence[str],
        process: "subprocess.Popen[bytes]",
        pieces: Optional[Iterable[bytes]] = None,
        limit: int = _MAX_OUTPUT,
        hear: Optional[Callable[[str], bool]] = None,
        tick: Optional[Callable[[int], None]] = None,
        reply: Optional[Callable[[str], Optional[Iterable[bytes]]]] = None,
        later: Optional[Callable[[str], None]] = None,
    ) -> None:
        self.argv, self.process, self._limit = argv, process, limit
        self._hear, self._tick, self._reply, self._later = hear, tick, reply, later
        self._pieces = None if pieces is None else filter(None, pieces)
        self._left = memoryview(b"")

    def run(self, timeout: float, after: Optional[float] = None) -> Sequence[bytes]:
        """Return the output when it is closed.

        Args:
            timeout: seconds for everything or, with ``after``, until the first piece.
            after: seconds from the last piece on. Pieces may take any time.

        Raises:
            TimeoutExpired: the time is up.
            _TooMuchError: it printed too much.
        """
        stdin = self.process.stdin
        streams = [stream for stream in (self.process.stdout, self.process.stderr) if stream]
        outputs, offered = [bytearray() for _ in streams], [0] * len(streams)
        listeners = [self._hear_output if self._reply else None, self._hear][-len(streams) :]
        limit, end, writes = timeout, time.monotonic() + timeout, False
        if stdin:
            files.enlarge_pipe(stdin.fileno())
            os.set_blocking(stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            for number, stream in enumerate(streams):
                selector.register(stream, selectors.EVENT_READ, number)
            while selector.get_map():
                if stdin and self._pieces is not None and not (writes or stdin.closed):
                    selector.register(stdin, selectors.EVENT_WRITE)
                    writes = True
                for key in self._ready(selector, None if writes and after else end, limit):
                    if stdin and key.fileobj is stdin:
                        if not self._write(key.fd):
                            selector.unregister(stdin)
                            stdin.close()
                            writes = False
                            limit, end = (after, time.monotonic() + after) if after else (limit, end)
                        continue
                    data, number = os.read(key.fd, 64 * 1024), key.data
                    outputs[number] += data
                    offered[number] = _offer(outputs[number], offered[number], listeners[number])
                    if not data:
                        selector.unregister(key.fileobj)
                if sum(map(len, outputs)) > self._limit:
                    raise _TooMuchError
        return [bytes(output) for output in outputs]

    def _ready(
        self, selector: selectors.BaseSelector, end: Optional[float], limit: float
    ) -> Sequence[selectors.SelectorKey]:
        """Wait until pipes are ready, at most until ``end``, and call ``tick`` meanwhile."""
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = selector.select(left if left is None or not self._tick else min(left, _TICK))
            if ready:
                return [key for key, _ in ready]
            if not (self._tick and left):
                raise subprocess.TimeoutExpired(list(self.argv), limit)
            self._tick(self.process.pid)

    def _hear_output(self, line: str) -> bool:
        if self._pieces is None and self._reply:
            answer = self._reply(line)
            self._pieces = None if answer is None else filter(None, answer)
        elif self._later:
            self._later(line)
        return False

    def _write(self, descriptor: int) -> bool:
        """Write as much as the pipe accepts, and return whether there may be more to write."""
        if not self._left:
            self._left = memoryview(next(self._pieces or iter(()), b""))
            if not self._left:
                return False
        try:
            self._left = self._left[os.write(descriptor, self._left) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:  # it has ended; its status shows why
            return False
        return True


def _offer(text: bytearray, start: int, hear: Optional[Callable[[str], bool]]) -> int:
    """Pass each complete line of ``text`` from ``start`` on to ``hear``, remove the lines that it keeps, and return the
    start of the next line."""
    while hear:
        end = text.find(b"\n", start)
        if end < 0:
            break
        if hear(_text(bytes(text[start:end]))):
            del text[start : end + 1]
        else:
            start = end + 1
    return start


def attach(
    argv: Sequence[str],
    env: Optional[Mapping[str, str]] = None,
    hear: Optional[Callable[[bytes], bool]] = None,
    after: bytes = b"",
    begun: Optional[Callable[[], None]] = None,
) -> int:
    """Run ``argv`` on this process's own stdin, stdout and stderr; return its exit status as a shell would.

    A program that answers Ctrl-C with 255, as ssh does, counts as interrupted: 130.

    Its output and errors go there directly or, with ``hear`` or ``after``, through this process in their order.

    Args:
        hear: receives each line of its output and returns whether to keep it; other lines are passed on.
        after: its output up to these bytes is not passed on; empty: all of it is.
        begun: called when these bytes were found.

    Raises:
        MissingTool: the program does not exist.
        BrokenPipeError: the reader of this process's output has ended, so the program was ended.
        SpaceError, DeployerError: its output cannot be written, so it was ended.
    """
    interrupted = bytearray()  # the numbers of signals
    # The terminal sends Ctrl-C to the child as well, whose answer decides. It is noted, not raised: an exception
    # between the child's end and the line that keeps its status would lose it, and the next wait would return 0.
    before = signal.getsignal(signal.SIGINT)
    notes = callable(before)  # not ignored
    if notes:
        signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    pipe = subprocess.PIPE if hear or after else None
    try:
        process = _started(argv, env, stdin=None, stdout=pipe, stderr=pipe)
        if process.stdout and process.stderr:
            try:
                _pass_on(process, process.stdout, process.stderr, _Filter(hear, after, begun))
            except BaseException:
                process.terminate()  # not SIGKILL: ssh may have to turn on the terminal's echo
                process.wait()
                raise
        status = process.wait()
    finally:
        if notes:
            signal.signal(signal.SIGINT, before)
    if interrupted and status == 255:
        return EXIT_INTERRUPTED
    return status if status >= 0 else 128 - status


class _Filter:
    """Leaves out what a program prints before ``after``, and the lines that ``hear`` keeps."""

    def __init__(
        self, hear: Optional[Callable[[bytes], bool]], after: bytes, begun: Optional[Callable[[], None]]
    ) -> None:
        self._hear, self._after, self._begun = hear, after, begun
        self._left = b""

    def shown(self, data: bytes) -> bytes:
        """Return what to pass on after this piece of its output; empty bytes mark its end."""
        left = self._left + data
        if self._after:
            _, mark, behind = left.partition(self._after)
            if not mark:
                self._left = left[-len(self._after) :]
                return b""
            left, self._after = behind, b""
            if self._begun:
                self._begun()
        if not (self._hear and data):
            self._left = b""
            return left
        *lines, self._left = left.split(b"\n")
        return b"".join(line + b"\n" for line in lines if not self._hear(line))


def _pass_on(process: "subprocess.Popen[bytes]", output: IO[bytes], errors: IO[bytes], chosen: _Filter) -> None:
    """Copy the output of a process as ``chosen``, and its errors, until it ends.

    Output is served first, because a program prints its result before hints about it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    printed, told = _Sink(sys.stdout.fileno()), _Sink(sys.stderr.fileno())
    with output, errors, selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ, printed)
        selector.register(errors, selectors.EVENT_READ, told)
        while selector.get_map():
            ready = [key for key, _ in selector.select(_LAST_LINES)]
            if not ready and process.poll() is not None:
                break  # another process holds the pipes, as a master of ssh does after its client has gone
            for key in sorted(ready, key=lambda key: key.fileobj is errors):
                data = os.read(key.fd, 64 * 1024)
                if data:
                    key.data.write(data if key.fileobj is errors else chosen.shown(data))
                else:
                    selector.unregister(key.fileobj)
        printed.write(chosen.shown(b""))
        printed.end()
        told.end()


class _Sink:
    """The destination of another program's output. A terminal receives only text and colours."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._shown: Callable[[bytes], bytes] = bytes
        if os.isatty(descriptor):
            from deployer.system.escapes import Harmless  # only here: its expressions take longer than a rank's start

            self._shown = Harmless().shown

    def write(self, data: bytes) -> None:
        """Write a piece."""
        if data:
            _write(self._descriptor, self._shown(data))

    def end(self) -> None:
        """Write a withheld piece that could have been the beginning of a colour."""
        _write(self._descriptor, self._shown(b""))


def _write(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, without a buffer that keeps what could not be written."""
    left = memoryview(data)
    try:
        while left:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:  # a socket that is also our input, which ssh made non-blocking
                select.select([], [descriptor], [])
    except BrokenPipeError:
        raise
    except OSError as error:
        files.raise_named(error, "write the output")


def feed(
    argv: Sequence[str], pieces: Iterable[bytes], timeout: float, env: Optional[Mapping[str, str]] = None
) -> Completed:
    """Run ``argv`` with ``pieces`` on its standard input; return its output, whatever its exit status.

    It may end before it has read all pieces; its status shows why. Its output is kept in memory and must be small. An
    error in making the pieces kills it.

    Args:
        timeout: seconds after the last piece. Until then, the program itself must detect that it is stuck, as ssh does
            with ServerAliveInterval.
    """
    return _completed(_Exchange(argv, _started(argv, env, reads=True), pieces), timeout, timeout)


def converse(
    argv: Sequence[str],
    reply: Callable[[str], Optional[Iterable[bytes]]],
    patience: float,
    timeout: float,
    env: Optional[Mapping[str, str]] = None,
    hear: Optional[Callable[[str], bool]] = None,
    later: Optional[Callable[[str], None]] = None,
) -> Completed:
    """Run ``argv`` as ``feed`` does, with pieces that depend on what it prints first.

    Args:
        reply: receives each line of its output until it returns the pieces.
        patience: seconds until then.
        timeout: seconds from the last piece on.
        hear: as in ``run``.
        later: receives each line of its output after that.
    """
    process = _started(argv, env, reads=True)
    return _completed(_Exchange(argv, process, hear=hear, reply=reply, later=later), patience, timeout)


#: Becomes the given program, and ends it when the pipe on standard input is closed, even if this process is killed.
_TIED = 'exec 3<&0; { read -r _ <&3; kill $$; } & exec "$@" </dev/null 3<&-'


class Background:
    """A process that runs beside this one until ``stop``, and never longer than this one, even if this one is killed.

    Its output goes to the file ``log``; its standard input is empty.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: str) -> None:
        self._log = log
        with files.errors_named("write " + log), open(log, "wb") as output:
            self._process = _started(["sh", "-c", _TIED, "sh", *argv], env, reads=True, stdout=output, stderr=output)

    def poll(self) -> Optional[int]:
        """Return the exit status, or None while it runs."""
        return _status(self._process, os.WNOHANG)

    def output(self) -> str:
        """Return its output so far."""
        with open(self._log, "rb") as stream:
            return _text(stream.read(_MAX_OUTPUT))

    def stop(self, patience: float = 5.0) -> None:
        """End it with SIGTERM, and with SIGKILL after ``patience`` seconds."""
        try:
            if self.poll() is None:
                self._process.terminate()
            until = time.monotonic() + patience
            while self.poll() is None and time.monotonic() < until:
                time.sleep(_PAUSE)
            if self.poll() is None:
                self._process.kill()
                _status(self._process)
        finally:
            if self._process.stdin:
                self._process.stdin.close()


class HeldProcess:
    """A process that prints a line when it is ready and then lives while its standard input is open.

    It never lives longer than this process, even if this one is killed. Its other output goes to this process's stderr.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = _started(argv, env, reads=True, stderr=None)
        self.pid = self._process.pid

    def line(self, timeout: float) -> str:
        """Return the line; empty if the process ends without one or does not print it within ``timeout`` seconds."""
        output: Any = self._process.stdout
        return _text(output.readline()).strip() if select.select([output], [], [], timeout)[0] else ""

    def end(self, patience: float = 10.0) -> None:
        """Close its input; kill it if it does not end within ``patience`` seconds."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def replace(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Become ``argv``: same pid, same descriptors, so that signals and exit codes are the payload's own."""
    _logger.debug("exec %s", quoted(argv))
    try:
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        _not_started(argv, error, "")


def _not_started(argv: Sequence[str], error: OSError, hint: str) -> NoReturn:
    if error.errno in (errno.ENOENT, errno.EACCES):
        from deployer.contract.base import programs  # only for this error

        raise MissingTool(f"cannot start {argv[0]}: {error.strerror}", hint or programs.remedy(argv[0]))
    raise DeployerError(f"cannot start {argv[0]}: {error}", hint)


def _text(data: Optional[bytes]) -> str:
    return data.decode("utf-8", "replace") if data else ""
