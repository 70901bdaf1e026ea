"""Starts one process in a container with ``udocker run`` in mode P1 (proot). A program of its own, not in the package.

``install`` copies it beside the kit's udocker, as ``images/DIGEST/engine/start.py``, and a small script calls it with
the site's Python. Each rank starts it, so it imports almost nothing. It corrects these habits of udocker:

- **Environment.** udocker strips values and adds eleven variables of its own. Here the environment is exactly that of
  ``--set-env`` and ``--pass``, and PROOT_TMP_DIR, which proot itself reads.
- **Signals.** udocker ends at SIGTERM while proot ignores it, so a payload with a handler would be killed before it
  has written its checkpoint. This process outlives both. A launcher signals all processes of a step, so nothing is
  passed on in a step, which would double the signal; otherwise the payload receives this process's signals.
- **Traces.** The temporary files of udocker and proot are in one folder, which is removed at the end. When this
  process is killed, proot is told to end the payload.
- **Mount points.** The image has a target for every bind, so udocker need not make any. Without a container of its
  own it would make a folder for its notes, ``.mountpoints``, in the current folder: in each user's home.
- **Network.** Nothing is fetched: the engine is there, and the "repository" is the installed image.
"""

import os
import signal
import sys

MYPY = False
if MYPY:  # typing takes a while to import
    from typing import Any, Dict, List, Mapping, NoReturn, Optional, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))

#: Paths of the host that a container sees besides its binds, as with ch-run, if they exist.
SYSTEM = ("/dev", "/proc", "/sys", "/tmp", "/etc/hosts", "/etc/resolv.conf")  # noqa: S108

#: Candidates for temporary files: the first that exists, is writable, and allows proot's loader to be executed. If the
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


class StartArguments(object):
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
                fail("what is %s?" % name)
        if len(rest) < 3 or rest[1] != "--":
            fail("usage: run [OPTION...] ROOTFS -- COMMAND [ARG...]")
        self.rootfs = os.path.realpath(rest[0])  # as the kernel reports it; images share it by links
        self.command = rest[2:]

    def whole_environment(self, host: "Mapping[str, str]", temporary: str) -> "Dict[str, str]":
        """Return the payload's environment: the host's variables that are passed, then those that are set."""
        import fnmatch

        variables = {name: host[name] for name in host if any(fnmatch.fnmatchcase(name, glob) for glob in self.passed)}
        variables.update(self.environment)
        variables["PROOT_TMP_DIR"] = temporary
        return variables


def udocker_argv(start: StartArguments, user: str) -> "List[str]":
    """Return the words of ``udocker run`` without the command's own, which udocker's parser need not see."""
    words = ["udocker", "--allow-root", "--quiet", "run", "--nobanner", "--nosysdirs", "--location=" + start.rootfs]
    words += ["--user=" + user, "--workdir=" + start.folder]
    words += ["--env=PATH=" + start.environment.get("PATH", "")]
    # For a mapped file the kernel reports the host's path (/proc/PID/maps): the image's own paths must lead somewhere.
    own = (start.rootfs, os.path.dirname(HERE))
    words += ["--volume=%s:%s" % (path, path) for path in (*SYSTEM, *own) if os.path.exists(path)]
    words += ["--volume=" + bind for bind in start.binds]
    # With --location, udocker drops the first word, which would be an image's name.
    return [*words, "-", start.command[0]]


def udocker_environment(temporary: str) -> "Dict[str, str]":
    """Return udocker's own environment: its engine is the kit's, its home is empty, nothing is fetched."""
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
    """In the child: let udocker prepare the container, and become proot with the payload."""
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
        os.execve(argv[0], argv + start.command[1:], environment)

    udocker.engine.proot.subprocess = types.SimpleNamespace(call=call)
    udocker.utils.mountpoint.MountPoint.setup = lambda _: True
    # udocker requires a program for downloads before it checks whether it needs one; a node may have none.
    udocker.utils.curl.GetURL._select_implementation = lambda _: None
    # It returns only after an error, which it has printed.
    return int(UMain(sys.argv).execute()) or _CANNOT


def login() -> str:
    """Return a user name that the image's passwd need not have: udocker adds it, with the real number."""
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
                folder = "%s/deployer-udocker-%s" % (place, os.urandom(8).hex())
                os.mkdir(folder, 0o700)
                return folder
        except OSError:
            continue
    return fail("no folder for temporary files: none of %s lets programs be executed" % ", ".join(_TEMPORARY))


def _anybody_renames(place: str) -> bool:
    """Return whether other users can rename our files there: all can write, and there is no sticky bit."""
    return os.stat(place).st_mode & 0o1002 == 0o2


def end_with_parent() -> None:
    """Make proot end its payload when this process's parent is gone (which is what SIGQUIT makes it do)."""
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
                with open("/proc/%s/stat" % name, "rb") as stream:
                    if int(stream.read().rpartition(b")")[2].split()[1]) == proot:
                        return int(name)
            except OSError:
                continue
    return None


def wait(child: int, forward: bool) -> int:
    """Return the exit code of proot; with ``forward``, signals to this process are passed to the payload."""
    awaited = set(_PASSED_ON) | {signal.SIGCHLD, signal.SIGQUIT}
    while True:
        received = signal.sigwaitinfo(awaited)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        # The kernel sends a terminal's signals to all of its processes.
        if forward and received.si_signo in _PASSED_ON and received.si_code == _SI_USER:
            target = payload(child)
            if target is not None:
                os.kill(target, received.si_signo)


def fail(message: str) -> "NoReturn":
    """End with a line on stderr."""
    sys.stderr.write("deployer: error: udocker: %s\n" % message)
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
        except Exception as error:  # noqa: BLE001 (any error of udocker becomes one line)
            sys.stderr.write("deployer: error: udocker: %s: %s\n" % (type(error).__name__, error))
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
