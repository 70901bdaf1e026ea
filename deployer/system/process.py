"""The only module that starts processes, but for a rank's payload; everything else hands it an argv.

Each command is logged shell-quoted, so that a person can paste it. Children get an explicit environment and, unless
told otherwise, a closed standard input. Nothing here uses a shell.
"""

import errno
import fcntl
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import (
    IO,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Union,
)

from deployer.contract import shell
from deployer.contract.errors import EXIT_INTERRUPTED, DeployerError, JobFailed, MissingTool

_logger = logging.getLogger("deployer.process")

#: What a child sees of the caller's environment unless it is given one: enough to find programs, a home and a locale.
#: The connected side adds what ssh, proxies and TLS need.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ")

#: F_SETPIPE_SZ of Linux's fcntl.h; Python has a name for it since 3.10.
_SET_PIPE_SIZE = 1031

#: Seconds that a program's last lines may be on their way once it has ended.
_LAST_LINES = 0.5
#: Of what a program may print into memory, in bytes: the largest answers have some megabytes.
_MAX_OUTPUT = 32 * 1024 * 1024

_Target = Union[None, int, IO[bytes]]


class Completed(NamedTuple):
    """What a finished process left: its argv, exit status (negative: the signal) and captured text."""

    argv: Sequence[str]
    returncode: int
    stdout: str
    stderr: str

    def last_words(self, lines: int = 3) -> str:
        """Return the last lines of stderr (else stdout) in one line, for an error message."""
        text = self.stderr.strip() or self.stdout.strip()
        return " / ".join(text.splitlines()[-lines:])


def quoted(argv: Sequence[str]) -> str:
    """Return argv as a person would type it."""
    return shell.quoted(argv)


def base_environment(*more: str) -> Dict[str, str]:
    """Return the part of this process's environment that a child may see: ``INHERITED`` and the names given."""
    return {name: os.environ[name] for name in INHERITED + more if name in os.environ}


def run(
    argv: Sequence[str],
    timeout: float,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    stdin: Union[str, bytes, None] = None,
    stdout: _Target = subprocess.PIPE,
    check: bool = True,
    hint: str = "",
    hear: Optional[Callable[[str], bool]] = None,
) -> Completed:
    """Run ``argv`` to its end and return what it left.

    ``timeout`` is in seconds and always given: nothing here may hang for ever. ``stdin`` is what to feed; without it
    the child reads end-of-file. With ``check`` a non-zero status raises JobFailed, with the last words of stderr.
    Raises MissingTool when the program is not there. The child is killed when the time is up, or if it prints more
    than 32 MiB. ``hear`` gets each line of stderr as it comes, and returns whether that was for it alone.
    """
    _logger.debug("$ %s", quoted(argv))
    end = time.monotonic() + timeout
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=dict(env) if env is not None else base_environment(),
            cwd=cwd,
        )
    except OSError as error:
        _not_started(argv, error, hint)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    try:
        with _ended(process):
            said = _read_until(pipes, end, _MAX_OUTPUT, process.stdin, data or b"", hear)
            if said is not None:
                process.wait(max(0.0, end - time.monotonic()))
            elif time.monotonic() < end:
                reason = "%s printed more than %d MiB" % (quoted(argv), _MAX_OUTPUT // 1024**2)
                raise JobFailed(reason, hint)
            else:
                raise subprocess.TimeoutExpired(list(argv), timeout)
    except subprocess.TimeoutExpired:
        raise JobFailed("%s did not end within %d s" % (quoted(argv), timeout), hint) from None
    done = Completed(argv, process.returncode, "" if process.stdout is None else _text(said[0]), _text(said[-1]))
    _logger.debug("exit %d%s", done.returncode, ": " + done.last_words() if done.returncode else "")
    if check and done.returncode != 0:
        raise JobFailed("%s failed (exit %d): %s" % (quoted(argv), done.returncode, done.last_words()), hint)
    return done


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Kill a process if the block fails, by Ctrl-C too: no child outlives its caller. Its pipes are closed."""
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()


def glance(
    argv: Sequence[str], timeout: float, limit: int = 1024 * 1024, env: Optional[Mapping[str, str]] = None
) -> Completed:
    """Run a program that is not to be trusted to end, and return what it said, whatever its exit status.

    When ``timeout`` seconds are over or it says more than ``limit`` bytes, it is killed with all that it started, and
    JobFailed says so. One that even then does not go, stuck in a dead file system, is left behind. Raises MissingTool.
    """
    _logger.debug("$ %s", quoted(argv))
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env) if env is not None else base_environment(),
            start_new_session=True,
        )
    except OSError as error:
        _not_started(argv, error, "")
    if process.stdout is None or process.stderr is None:
        raise AssertionError("pipes were asked for")
    try:
        with process.stdout, process.stderr:
            said = _read_until([process.stdout, process.stderr], time.monotonic() + timeout, limit)
            with suppress(subprocess.TimeoutExpired):
                if said is not None:
                    process.wait(1)  # it closed its output, and so is about to end
    finally:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
    if said is None:
        raise JobFailed("%s did not end within %g s, or printed more than %d bytes" % (quoted(argv), timeout, limit))
    status = -signal.SIGKILL if process.returncode is None else process.returncode
    return Completed(argv, status, _text(said[0]), _text(said[1]))


def _read_until(
    streams: Sequence[IO[bytes]],
    end: float,
    limit: int,
    stdin: Optional[IO[bytes]] = None,
    data: bytes = b"",
    hear: Optional[Callable[[str], bool]] = None,
) -> Optional[List[bytes]]:
    """Return what comes from ``streams`` until all are closed; None where it is too much, or takes too long.

    ``stdin`` is fed with ``data`` meanwhile, and closed. All pipes are served at once: a child that writes a lot to one
    of them cannot block us. ``hear`` gets the lines of the last stream as they come, and those that it takes are left
    out.
    """
    left = memoryview(data)
    found = [bytearray() for _ in streams]
    offered = 0  # where the first line begins that ``hear`` has not got
    with selectors.DefaultSelector() as selector:
        for number, stream in enumerate(streams):
            selector.register(stream, selectors.EVENT_READ, number)
        if stdin is not None:
            os.set_blocking(stdin.fileno(), False)
            selector.register(stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                return None
            for key, _ in ready:
                if stdin is not None and key.fileobj is stdin:
                    left = _fed(key.fd, left)
                    if not left:
                        selector.unregister(stdin)
                        stdin.close()
                    continue
                piece = os.read(key.fd, 64 * 1024)
                found[key.data] += piece
                if hear and key.data == len(streams) - 1:
                    offered = _offer(found[-1], offered, hear)
                if not piece:
                    selector.unregister(key.fileobj)
            if sum(map(len, found)) > limit:
                return None
    return [bytes(each) for each in found]


def _offer(text: bytearray, start: int, hear: Callable[[str], bool]) -> int:
    """Let ``hear`` have each whole line of ``text`` from ``start`` on, remove those that it takes, and return where
    the next line begins."""
    while True:
        end = text.find(b"\n", start)
        if end < 0:
            return start
        if hear(_text(bytes(text[start:end]))):
            del text[start : end + 1]
        else:
            start = end + 1


def _fed(descriptor: int, data: memoryview) -> memoryview:
    """Write what a pipe takes of ``data`` and return the rest: none if its reader has gone."""
    try:
        return data[os.write(descriptor, data[: 64 * 1024]) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return data[:0]


def attach(
    argv: Sequence[str],
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    hear: Optional[Callable[[bytes], bool]] = None,
) -> int:
    """Run ``argv`` on this process's own stdin, stdout and stderr and return its exit status as a shell would.

    A program that answers Ctrl-C by 255, as ssh does, was interrupted: 130. ``hear`` gets each line of its output, and
    returns whether that was for it alone; all others are passed on.
    """
    _logger.debug("$ %s", quoted(argv))
    interrupted: List[int] = []
    # The terminal sends it to the child as well, whose answer decides. Noted, not raised: between the child's end and
    # the line that keeps its status an exception would lose that, and the next wait would say 0.
    before = signal.getsignal(signal.SIGINT)
    notes = before is signal.default_int_handler
    if notes:
        signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    try:
        process = subprocess.Popen(
            list(argv),
            env=dict(env) if env is not None else base_environment(),
            cwd=cwd,
            stdout=subprocess.PIPE if hear else None,
        )
        if hear and process.stdout:
            _pass_on(process, process.stdout, hear)
        status = process.wait()
    except OSError as error:
        _not_started(argv, error, "")
    finally:
        if notes:
            signal.signal(signal.SIGINT, before)
    if interrupted and status == 255:
        return EXIT_INTERRUPTED
    return status if status >= 0 else 128 - status


def _pass_on(process: "subprocess.Popen[bytes]", stream: IO[bytes], hear: Callable[[bytes], bool]) -> None:
    """Copy what a process prints to standard output, but for the lines that ``hear`` takes, until it ends."""
    sys.stdout.flush()
    left = b""
    with stream, selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(_LAST_LINES):
                if process.poll() is not None:
                    break  # another holds the pipe: a master of ssh's does, for the command of a client that is gone
                continue
            data = os.read(stream.fileno(), 64 * 1024)
            *lines, left = (left + data).split(b"\n")
            for line in lines:
                if not hear(line):
                    sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
            if not data:
                break
    sys.stdout.buffer.write(left)
    sys.stdout.buffer.flush()


def feed(
    argv: Sequence[str], pieces: Iterable[bytes], timeout: float, env: Optional[Mapping[str, str]] = None
) -> Completed:
    """Run ``argv`` with ``pieces`` on its standard input and return what it left, whatever its exit status.

    It may end before it took all of them: its status says why. ``timeout`` is in seconds from the last piece on; until
    then it is up to the program to end when it gets stuck, as ssh does by ServerAliveInterval. What it says is small:
    it is kept in memory. An error in making the pieces kills it.
    """
    _logger.debug("$ %s", quoted(argv))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=dict(env) if env is not None else base_environment(),
            )
        except OSError as error:
            _not_started(argv, error, "")
        if process.stdin is None:
            raise AssertionError("a pipe was asked for")
        enlarge_pipe(process.stdin.fileno())
        try:
            try:
                with process.stdin as stdin:
                    for piece in pieces:
                        stdin.write(piece)
            except BrokenPipeError:
                pass
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise JobFailed("%s did not end within %d s" % (quoted(argv), timeout)) from None
        except BaseException:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        err.seek(0)
        done = Completed(argv, process.returncode, _text(out.read(_MAX_OUTPUT)), _text(err.read(_MAX_OUTPUT)))
    _logger.debug("exit %d%s", done.returncode, ": " + done.last_words() if done.returncode else "")
    return done


def enlarge_pipe(descriptor: int) -> None:
    """Let a pipe hold 1 MiB, so that its two ends wait less for each other; where it cannot, all works as well."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, _SET_PIPE_SIZE, 1024 * 1024)


#: Becomes the program given, and ends it when the pipe on standard input is closed, be it by our own death.
_TIED = 'exec 3<&0; { read -r _ <&3; kill $$; } & exec "$@" </dev/null 3<&-'


class Background(object):
    """A process that runs beside this one until ``stop``, and not longer than this one, even if this one is killed.

    What it says goes to the file ``log``; its standard input is empty.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: str) -> None:
        _logger.debug("$ %s", quoted(argv))
        self._log = log
        try:
            with open(log, "wb") as output:
                self._process = subprocess.Popen(
                    ["sh", "-c", _TIED, "sh", *argv],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=dict(env),
                )
        except OSError as error:
            _not_started(argv, error, "")

    def poll(self) -> Optional[int]:
        """Return the exit status, or None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Return what it said so far."""
        with open(self._log, "rb") as stream:
            return _text(stream.read(_MAX_OUTPUT))

    def stop(self, patience: float = 5.0) -> None:
        """End it: SIGTERM, then SIGKILL after ``patience`` seconds."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            if self._process.stdin:
                self._process.stdin.close()


class HeldProcess(object):
    """A process that says a line when it is ready and then lives for as long as its standard input is open: not longer
    than this one, even if this one is killed. What else it says goes where this one's errors go."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        _logger.debug("$ %s", quoted(argv))
        try:
            self._process = subprocess.Popen(list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env))
        except OSError as error:
            _not_started(argv, error, "")
        self.pid = self._process.pid

    def line(self, timeout: float) -> str:
        """Return the line, empty where it ends without one or does not say it within ``timeout`` seconds."""
        if self._process.stdout is None:
            raise AssertionError("a pipe was asked for")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return _text(self._process.stdout.readline()).strip() if selector.select(timeout) else ""

    def end(self, patience: float = 10.0) -> None:
        """Let it end; kill it where it does not within ``patience`` seconds."""
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
        raise MissingTool("cannot start %s: %s" % (argv[0], error.strerror), hint or "is it installed, and in PATH?")
    raise DeployerError("cannot start %s: %s" % (argv[0], error), hint)


def _text(data: Optional[bytes]) -> str:
    return data.decode("utf-8", "replace") if data else ""
