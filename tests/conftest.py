"""What all tests share: engines that may be missing, the lab, time limits. Runs on pytest 7.0 and Python 3.6 too.

A test that needs an engine says so, ``@pytest.mark.needs("docker", "charliecloud")``, or takes the fixture ``lab`` or
``engine``. Where one is missing the test is skipped with the remedy; with ``--require-engines`` (CI) it fails.
"""

import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import pytest

if sys.version_info >= (3, 11):
    from tests.checked_records import records_have_their_schemas  # noqa: F401  a fixture for all tests

ROOT = Path(__file__).resolve().parent.parent

#: Seconds for an integration test that names no limit of its own (unit tests: ``timeout`` in pyproject.toml).
INTEGRATION_TIMEOUT = 300

#: Seconds for the first test that takes a session-wide fixture: it may download and start what the others reuse.
FIRST_TIMEOUT = 900

#: Characters of a parameter that are its name in a test's.
LONGEST_ID = 100


class Engine(NamedTuple):
    """A thing outside Python that a test needs: how to see that it is there, and what to do when it is not."""

    is_there: Callable[[], bool]
    remedy: str


def _programs(*names: str) -> Callable[[], bool]:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return lambda: all(shutil.which(name, path=path) for name in names)


def _is_root() -> bool:
    return os.geteuid() == 0


#: The root of the memory controller: version 1, or version 2 where it is handed on to groups.
MEMORY_LIMITS = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.reclaim")

_INSTALL = "run scripts/setup --tests as root (Debian package {})"

#: Runs a script in namespaces of its own, as root there.
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-c"]


def _runs_aarch64() -> bool:
    return _programs("arch-test")() and subprocess.call(["arch-test", "arm64"], stdout=subprocess.DEVNULL) == 0


ENGINES = {
    "age": Engine(_programs("age", "ssh-keygen"), _INSTALL.format("age, openssh-client")),
    "aarch64-compiler": Engine(
        _programs("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-strip"),
        _INSTALL.format("gcc-aarch64-linux-gnu, libc6-dev-arm64-cross"),
    ),
    "aarch64-emulation": Engine(_runs_aarch64, "run scripts/setup --emulation as root"),
    "caseless": Engine(
        lambda: _is_root() and os.path.exists("/dev/fuse") and importlib.util.find_spec("mfusepy") is not None,
        "run the tests as root, with /dev/fuse, libfuse3 and mfusepy (scripts/setup --tests)",
    ),
    "charliecloud": Engine(_programs("ch-run", "ch-convert"), _INSTALL.format("charliecloud")),
    "chromium": Engine(_programs("chromium"), _INSTALL.format("chromium")),
    "docker": Engine(_programs("docker", "dockerd"), _INSTALL.format("docker.io")),
    "fish": Engine(_programs("fish"), _INSTALL.format("fish")),
    "lmod": Engine(Path("/usr/share/lmod").is_dir, _INSTALL.format("lmod")),
    "loop": Engine(
        lambda: Path("/dev/loop-control").exists() and _programs("mkfs.ext4", "losetup")(),
        "loop devices (modprobe loop), and " + _INSTALL.format("e2fsprogs"),
    ),
    "memory-limits": Engine(
        lambda: _is_root() and any(os.access(path, os.W_OK) for path in MEMORY_LIMITS),
        "control groups with the memory controller, writable for root",
    ),
    "mmdebstrap": Engine(_programs("mmdebstrap"), _INSTALL.format("mmdebstrap")),
    "munge": Engine(_programs("munged"), _INSTALL.format("munge")),
    "openpbs": Engine(
        lambda: os.path.isfile(os.environ.get("DEPLOYER_OPENPBS", "")),
        "DEPLOYER_OPENPBS=ARCHIVE: an installation of OpenPBS, see docs/development.md",
    ),
    "podman": Engine(_programs("podman", "crun"), _INSTALL.format("podman, crun")),
    "python3.6": Engine(
        (ROOT / ".venv36" / "bin" / "python").exists, "pyenv install 3.6.15, then scripts/setup --tests"
    ),
    "root": Engine(_is_root, "run the tests as root: namespaces and mounts need it"),
    "singularity": Engine(
        lambda: os.path.isfile(os.environ.get("DEPLOYER_SINGULARITY", "")),
        "DEPLOYER_SINGULARITY=ARCHIVE: an installation of SingularityCE, see docs/development.md",
    ),
    "skopeo": Engine(_programs("skopeo"), _INSTALL.format("skopeo")),
    "slurm": Engine(_programs("slurmctld", "slurmd", "sbatch", "srun"), _INSTALL.format("slurm-wlm")),
    "squashfs": Engine(_programs("mksquashfs", "unsquashfs"), _INSTALL.format("squashfs-tools")),
    "sqfs2tar": Engine(_programs("sqfs2tar"), _INSTALL.format("squashfs-tools-ng")),
    "ssh": Engine(_programs("ssh", "scp", "sshd", "ssh-keygen"), _INSTALL.format("openssh-server, openssh-client")),
    "ssh-keygen": Engine(_programs("ssh-keygen"), _INSTALL.format("openssh-client")),
    "tcsh": Engine(_programs("tcsh"), _INSTALL.format("tcsh")),
    "user-namespaces": Engine(
        lambda: subprocess.call([*UNSHARE, "mount -t tmpfs tmpfs /mnt"], stderr=subprocess.DEVNULL) == 0,
        "user namespaces: not in a changed root or a container that forbids them, nor where AppArmor does",
    ),
    "zsh": Engine(_programs("zsh"), _INSTALL.format("zsh")),
    "zstd": Engine(_programs("zstd"), _INSTALL.format("zstd")),
}

#: What the shared fixtures stand on.
FIXTURE_NEEDS = {
    "engine": ("root", "docker"),
    "lab": ("root", "slurm", "munge", "ssh", "charliecloud", "lmod"),
}


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--require-engines",
        action="store_true",
        help="a missing engine (Docker, Slurm, ...) fails the tests that need it instead of skipping them",
    )


class EngineWatch:
    """Skip or fail the tests whose engines are missing, and say at the end how many that were."""

    def __init__(self, required: bool) -> None:
        self.required = required
        self.missed: Dict[str, int] = {}
        #: What the nodes of labs run, in words.
        self.labs: List[str] = []
        self._there: Dict[str, bool] = {}

    def _is_missing(self, name: str) -> bool:
        if name not in self._there:
            self._there[name] = ENGINES[name].is_there()
        return not self._there[name]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: Any) -> None:
        missing = [name for name in needed_engines(item) if self._is_missing(name)]
        if not missing:
            return
        for name in missing:
            self.missed[name] = self.missed.get(name, 0) + 1
        reason = "; ".join(f"needs {name}: {ENGINES[name].remedy}" for name in missing)
        if self.required:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for name, count in sorted(self.missed.items()):
            verb = "failed" if self.required else "skipped"
            terminalreporter.write_line(f"engines: {count} tests {verb} without {name}: {ENGINES[name].remedy}")
        for line in self.labs:
            terminalreporter.write_line("lab: " + line)
        _hand_over_counts(terminalreporter.stats)


def needed_engines(item: Any) -> List[str]:
    """Return the engines that a test names by its mark or by the fixtures that it takes, each once."""
    names = [name for mark in item.iter_markers("needs") for name in mark.args]
    for fixture in item.fixturenames:
        names += FIXTURE_NEEDS.get(fixture, ())
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise pytest.UsageError(f"{item.nodeid}: no engine {unknown[0]!r} in tests/conftest.py")
    return sorted(set(names))


def _hand_over_counts(stats: Any) -> None:
    """Tell scripts/test, which adds up its stages, how many tests passed, failed and were skipped."""
    target = os.environ.get("DEPLOYER_TEST_COUNTS")
    if target and "PYTEST_XDIST_WORKER" not in os.environ:  # the one that counts them all
        failed = len(stats.get("failed", [])) + len(stats.get("error", []))
        passed = len(stats.get("passed", [])) + len(stats.get("xfailed", []))
        with open(target, "a") as file:
            file.write("{} {} {}\n".format(passed, failed, len(stats.get("skipped", []))))


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(EngineWatch(config.getoption("--require-engines")), "deployer-engines")
    if hasattr(config, "workerinput"):
        _start_elsewhere(config)


def _start_elsewhere(config: Any) -> None:
    """Let each worker begin to collect at another file: what one has compiled and rewritten, the next one loads."""
    files = []
    for arg in config.args:
        files += sorted(map(str, Path(arg).rglob("test_*.py"))) if Path(arg).is_dir() else [arg]
    worker = config.workerinput
    first = len(files) * int(worker["workerid"][2:]) // worker["workercount"]
    config.args[:] = files[first:] + files[:first]


def pytest_make_parametrize_id(val: Any, argname: str) -> Optional[str]:
    """Name a long value by its length: workers send names of megabytes with each report, before pytest 9."""
    if isinstance(val, (str, bytes)) and len(val) > LONGEST_ID:
        return f"{argname}-of-{len(val)}"
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from the thousands of tests: it would look at each again and again."""
    gc.disable()
    yield
    if sys.version_info >= (3, 7):
        gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: Any, items: Any) -> None:
    """Mark what uses real engines, by folder or fixture, and give it longer than a unit test."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: str(item.fspath))  # all workers must have the same order
    started = set()
    real = tuple(str(ROOT / "tests" / folder) + os.sep for folder in ("integration", "lab"))
    for item in items:
        shared = FIXTURE_NEEDS.keys() & set(item.fixturenames)
        if not str(item.fspath).startswith(real) and not shared:
            continue
        item.add_marker("integration")
        if not list(item.iter_markers("timeout")):
            item.add_marker(pytest.mark.timeout(INTEGRATION_TIMEOUT if shared <= started else FIRST_TIMEOUT))
        started |= shared


# ------------------------------------------------------------------------------------------------------------ fixtures
#: Signals that the program handles, resets or blocks. SIGALRM is pytest-timeout's.
_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)


@pytest.fixture(autouse=True)
def _signals_as_python_has_them() -> Iterator[None]:
    """Restore the signals: a handler that one test leaves would keep a process of a later test alive."""
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number, handler in kept.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


if sys.version_info >= (3, 10):

    @pytest.fixture(scope="session")
    def lab(request: Any) -> Iterator[Any]:
        """Yield a lab of this session's own (laptop, login1, cn1, cn2), up; it is taken down at the end."""
        from tests.lab import Lab, versions

        ours = Lab(f"pytest-{os.getpid()}")
        try:
            ours.up()
            request.config.pluginmanager.getplugin("deployer-engines").labs.append(versions.report(ours))
            yield ours
        finally:
            ours.down(purge=True)

    @pytest.fixture(scope="session")
    def engine() -> Iterator[Any]:
        """Yield a Docker engine: the one that runs, else one of our own that is stopped at the end."""
        from tests.lab.engine import take_engine

        with take_engine() as taken:
            yield taken
