"""Start one process in a container with ``udocker run`` in mode P1 (proot). A separate program, not in the package.

``install`` copies it beside the kit's udocker, as ``images/DIGEST/engine/start.py``, and a small script calls it with
the site's Python. Each rank starts it, so it imports almost nothing. It corrects the following behaviour of udocker:

- **Environment.** udocker strips values and adds eleven variables of its own. Here, the environment consists only of
  the variables of ``--set-env`` and ``--pass``, and of PROOT_TMP_DIR, which proot reads.
- **Signals.** udocker ends at SIGTERM while proot ignores it, so a payload with a handler would be killed before it
  has written its checkpoint. This process outlives both. In a step, the launcher signals all processes, so this
  process does not forward signals, which would double them. Otherwise it forwards its signals to the payload.
- **Leftovers.** The temporary files of udocker and proot are in one folder, which is removed at the end. If this
  process is killed, a signal makes proot end the payload.
- **Mount points.** The image has a target for every bind, so udocker need not make any. Without its own container,
  udocker would make a folder ``.mountpoints`` for its records in the current folder, that is, in each user's home.
- **Network.** Nothing is downloaded: the engine is present, and the "repository" is the installed image.
"""

import os
import signal
import sys

MYPY = False
if MYPY:  # importing typing is slow
    from typing import Any, Dict, List, Mapping, NoReturn, Optional, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))

#: Host paths in a container besides its binds, if they exist, as with ch-run.
SYSTEM = ("/dev", "/proc", "/sys", "/tmp", "/etc/hosts", "/etc/resolv.conf")  # noqa: S108

#: Candidates for temporary files; the first that exists, is writable, and can execute proot's loader is used. If the
#: image is staged, the engine's folder is local to the node; TMPDIR may be on a shared file system.
_OWN = os.path.join(os.path.dirname(HERE), "tmp")
_TEMPORARY = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108
#: In a step of one of these launchers, a signal reaches all processes anyway.
_LAUNCHERS = ("SLURM_STEP_ID", "SLURM_STEPID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_SI_USER = 0
#: The exit code for a command that cannot be started, as in a shell.
_CANNOT = 126


class StartArguments:
    """The arguments of the command line; see ``udocker.options``."""

    def __init__(self, words: "Sequence[str]") -> None:
        self.environment: "Dict[str, str]" = {}
        self.passed: "List[str]" = []
        self.binds: "List[str]" = []
        self.folder = "/"
        rest = list(words)
        while rest and rest[0].startswith("--"):
            name, _, value = rest.pop(0).partition("=")
            if name == "--set-env":
                key, _, text = value.partition("=")
                self.environment[key] = text
            elif name == "--pass":
                self.passed.append(value)
            elif name == "--bind":
                self.binds.append(value)
            elif name == "--cd":
                self.folder = value
            else:
                fail(f"what is {name}?")
        if len(rest) < 3 or rest[1] != "--":
            fail("usage: run [OPTION...] ROOTFS -- COMMAND [ARG...]")
        self.rootfs = os.path.realpath(rest[0])  # as the kernel reports it: images share it through links
        self.command = rest[2:]

    def whole_environment(self, host: "Mapping[str, str]", temporary: str) -> "Dict[str, str]":
        """Return the payload's environment: variables passed from the host, then variables that are set."""
        import fnmatch

        variables = {name: host[name] for name in host if any(fnmatch.fnmatchcase(name, glob) for glob in self.passed)}
        variables.update(self.environment)
        variables["PROOT_TMP_DIR"] = temporary
        return variables


def udocker_argv(start: StartArguments, user: str) -> "List[str]":
    """Return the words of ``udocker run``, without the command's arguments, which udocker need not parse."""
    words = ["udocker", "--allow-root", "--quiet", "run", "--nobanner", "--nosysdirs", "--location=" + start.rootfs]
    words += ["--user=" + user, "--workdir=" + ("/" if is_bound(start) else start.folder)]
    words += ["--env=PATH=" + start.environment.get("PATH", "")]
    # For a mapped file, the kernel reports the host path (/proc/PID/maps), so the image's host paths must exist inside.
    own = (start.rootfs, os.path.dirname(HERE))
    words += [f"--volume={path}:{path}" for path in (*SYSTEM, *own) if os.path.exists(path)]
    words += ["--volume=" + bind for bind in start.binds]
    # With --location, udocker drops the first word, normally the name of an image.
    return [*words, "-", start.command[0]]


def is_bound(start: StartArguments) -> bool:
    """Return whether the working folder is the target of a bind. udocker would look up each part of the source twice.

    udocker searches for a relative command in the working folder.
    """
    sources = [bind.partition(":")[0] for bind in start.binds if bind.partition(":")[2] == start.folder]
    return start.command[0].startswith("/") and any(map(os.path.isdir, sources))


def udocker_environment(temporary: str) -> "Dict[str, str]":
    """Return udocker's own environment, with the kit's engine, an empty home, and no downloads."""
    return {
        "HOME": temporary,
        "PATH": os.defpath,
        "UDOCKER_DIR": HERE,
        "UDOCKER_TMP": temporary,
        "PROOT_TMP_DIR": temporary,
        "UDOCKER_TARBALL": os.path.join(HERE, "none"),
        "UDOCKER_DEFAULT_EXECUTION_MODE": "P1",
        "UDOCKER_USE_PROOT_EXECUTABLE": os.path.join(HERE, "bin", "proot"),
    }


def become(start: StartArguments, temporary: str) -> int:
    """Let udocker prepare the container, and become proot with the payload; called in the child."""
    environment = start.whole_environment(dict(os.environ), temporary)
    os.environ.clear()
    os.environ.update(udocker_environment(temporary))
    sys.path.insert(0, os.path.join(HERE, "lib"))
    sys.argv = udocker_argv(start, login())
    import types

    import udocker.engine.proot  # type: ignore[import-not-found]
    import udocker.utils.curl  # type: ignore[import-not-found]
    import udocker.utils.mountpoint  # type: ignore[import-not-found]
    from udocker.umain import UMain  # type: ignore[import-not-found]

    def call(argv: "List[str]", **_: "Any") -> "NoReturn":
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        argv[argv.index("-w") + 1] = start.folder
        os.execve(argv[0], argv + start.command[1:], environment)

    udocker.engine.proot.subprocess = types.SimpleNamespace(call=call)
    udocker.utils.mountpoint.MountPoint.setup = lambda _: True
    # udocker requires a program for downloads, which a node may lack, before it checks whether it needs one.
    udocker.utils.curl.GetURL._select_implementation = lambda _: None
    # This returns only after an error, which udocker has printed.
    return int(UMain(sys.argv).execute()) or _CANNOT


def login() -> str:
    """Return a user name, which the image's passwd may lack: udocker adds it, with the real number."""
    if os.getuid() == 0:
        return "root"
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "user%d" % os.getuid()


def temporary_folder() -> str:
    """Return a new folder for the temporary files of udocker and proot, in which programs can be executed."""
    for place in (_OWN, os.environ.get("TMPDIR", ""), *_TEMPORARY):
        try:
            if place and not os.statvfs(place).f_flag & os.ST_NOEXEC and not _anybody_renames(place):
                folder = f"{place}/deployer-udocker-{os.urandom(8).hex()}"
                os.mkdir(folder, 0o700)
                return folder
        except OSError:
            continue
    return fail("no folder for temporary files: none of {} lets programs be executed".format(", ".join(_TEMPORARY)))


def _anybody_renames(place: str) -> bool:
    """Return whether other users can rename files there: all users can write, and the sticky bit is not set."""
    return os.stat(place).st_mode & 0o1002 == 0o2


def end_with_parent() -> None:
    """Make proot end its payload, as it does at SIGQUIT, when the parent of this process ends."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def payload(proot: int) -> "Optional[int]":
    """Return proot's own child, or None if there is none."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stream:
                    if int(stream.read().rpartition(b")")[2].split()[1]) == proot:
                        return int(name)
            except OSError:
                continue
    return None


def wait(child: int, forward: bool) -> int:
    """Return the exit code of proot; with ``forward``, pass signals to this process on to the payload."""
    awaited = set(_PASSED_ON) | {signal.SIGCHLD, signal.SIGQUIT}
    while True:
        received = signal.sigwaitinfo(awaited)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        # The kernel sends a terminal's signals to all its processes.
        if forward and received.si_signo in _PASSED_ON and received.si_code == _SI_USER:
            target = payload(child)
            if target is not None:
                os.kill(target, received.si_signo)


def fail(message: str) -> "NoReturn":
    """Print a line to stderr, and end this process."""
    sys.stderr.write(f"deployer: error: udocker: {message}\n")
    sys.stderr.flush()
    os._exit(_CANNOT)


def main(words: "Sequence[str]") -> int:
    """Run the command and return its exit code."""
    start = StartArguments(words)
    temporary = temporary_folder()
    forward = not any(name in os.environ for name in _LAUNCHERS)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(_PASSED_ON) | {signal.SIGCHLD, signal.SIGQUIT})
    child = os.fork()
    if child == 0:
        code = _CANNOT
        try:
            end_with_parent()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            code = become(start, temporary)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else _CANNOT
        except Exception as error:  # noqa: BLE001 (print any udocker error as one line)
            sys.stderr.write(f"deployer: error: udocker: {type(error).__name__}: {error}\n")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    try:
        return wait(child, forward)
    finally:
        import shutil

        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
