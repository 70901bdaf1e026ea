"""What the integration tests share: the command line as a user calls it, and one hello-mpi bundle on one lab."""

import base64
import json
import os
import shlex
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from deployer.connected.bundle.pyz import make_pyz
from tests.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "$(ls /opt/python/3.6/bin/python3.6 2>/dev/null || echo python3)"
WORKSPACE = "/home/alice/deployer"
#: The lab as a site with Intel MPI, and as one with Open MPI.
SITES = ("--site", "lab", "--site", "lab-openmpi")


Alice = Callable[..., str]


@dataclass(frozen=True)
class Cli:
    """Calls ``deployer`` with a lab's ssh configuration and an engine; returns how it ended."""

    environment: dict[str, str]

    def __call__(self, *words: object, code: int = 0, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [ROOT / ".venv" / "bin" / "deployer", *map(str, words)],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert not done.stderr.startswith("Traceback")  # ours; a payload's is shown behind "| "
        assert "\nTraceback" not in done.stderr
        if code:
            assert (
                "deployer: error: " in done.stderr
                or done.returncode == 1
                or words[0] in ("check", "rehearse", "reproduce")
            )  # a verdict is none
        return done


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment whose log files and state are the tests' own; caches are shared on purpose."""
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}


@pytest.fixture(autouse=True)
def _forget_speeds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove what doctor measured: later jobs are compared with it, and the lab's nodes share two noisy cores."""
    yield
    if "lab" in request.fixturenames:
        for measured in request.getfixturevalue("lab").home.glob("alice/*/network/*.json"):
            measured.unlink()


@pytest.fixture(scope="session")
def cli(environment: dict[str, str]) -> Cli:
    """Return the command line without an engine."""
    return Cli(environment)


@pytest.fixture(scope="session")
def built(environment: dict[str, str], engine: Any) -> Cli:
    """Return the command line with an engine in which hello-mpi is built."""
    cli = Cli({**environment, "DOCKER_HOST": engine.docker_host})
    cli("build", "bundles/hello-mpi")
    return cli


@pytest.fixture(scope="session")
def no_bind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile of the lab in which the image's own MPI is meant to be used: the bind taken out."""
    record = yaml.safe_load((ROOT / "site_profiles" / "lab.yaml").read_text())
    record["name"] = "lab-own-mpi"
    record["partitions"]["batch"]["mpi"] = None
    path = tmp_path_factory.mktemp("profile") / "lab-own-mpi.yaml"
    path.write_text(yaml.safe_dump(record))
    return path


@pytest.fixture(scope="session")
def bundle(built: Cli, no_bind: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return hello-mpi, packed for the lab with either of its MPIs, and for the lab without the bind."""
    path = tmp_path_factory.mktemp("bundle") / "hello-mpi.tar"
    built("pack", "bundles/hello-mpi", *SITES, "--site", no_bind, "-o", path)
    return path


@dataclass(frozen=True)
class Site:
    """The lab with hello-mpi on it, as the laptop and as alice see it."""

    cli: Cli
    lab: Lab

    @property
    def options(self) -> list[str]:
        return ["--site", "lab", "--ssh-config", str(self.lab.ssh_config)]

    def run(self, *words: str, code: int = 0, bundle: str = "hello-mpi", site: str = "lab") -> dict[str, Any]:
        """Run a job to its end from the laptop and return its result.json."""
        options = ["--site", site, "--ssh-config", str(self.lab.ssh_config)]
        self.cli("run", *options, bundle, "--wait", *words, code=code, timeout=900)
        return self.result()

    def result(self) -> dict[str, Any]:
        """Return the result of the last job."""
        newest = f"$(ls -td {WORKSPACE}/jobs/* | head -n 1)"
        record: dict[str, Any] = json.loads(self.alice(f"cat {newest}/result.json"))
        return record

    def alice(self, script: str, code: int = 0, timeout: float = 120) -> str:
        """Run a script as alice on login1 and return what it printed."""
        done = self.lab.sh("login1", "alice", script, timeout=timeout)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def tool(self, *words: str, code: int = 0) -> str:
        """Run the site half on login1 with the site's Python."""
        return self.alice(f"{PYTHON} {WORKSPACE}/deployer.pyz {' '.join(words)}", code)


@pytest.fixture(scope="session")
def site(built: Cli, bundle: Path, lab: Lab) -> Site:
    """Return the lab with hello-mpi pushed to it."""
    built("push", bundle, "lab", "--ssh-config", lab.ssh_config)
    return Site(built, lab)


#: Values that a shell, a runtime or a script could read otherwise than they are.
DIFFICULT = {
    "LINES": "a\n b\n", "QUOTES": "'x' \"y\"", "SINGLE": "'x'", "DOLLAR": "$HOME:$(id) `id` $", "EMPTY": "",
    "UNICODE": "\u00e9\u6f22\U0001f600", "LONG": "x" * 100_000, "EQUALS": "a=b=c", "BACK": "\\n\\", "COLON": ":$PATH:",
    "NCCL_DEBUG": "INFO",
}  # fmt: skip
#: Prints variables and the content of the file "name" in folders, as JSON; packed, because long lines of several
#: ranks get mixed in the job's output.
_LOOK = (
    "import base64, json, os, sys, zlib; names, folders = map(json.loads, sys.argv[1:]); "
    "seen = json.dumps([{name: os.environ.get(name) for name in names}, "
    "{folder: open(folder + '/name').read() for folder in folders}]); "
    "print('seen', base64.b64encode(zlib.compress(seen.encode())).decode())"
)


class Sight(NamedTuple):
    """What a process in the container sees: variables, and the file ``name`` of folders."""

    variables: dict[str, str]
    folders: dict[str, str]


def look(site: Site, verb: str, bundle: str, options: Sequence[str] = (), folders: Sequence[str] = ()) -> list[Sight]:
    """Return what the container sees of DIFFICULT and folders: one of ``exec``, of ``run`` one for each rank."""
    sets = [word for name, value in DIFFICULT.items() for word in ("--env", f"{name}={value}")]
    command = ["python3", "-c", _LOOK, json.dumps(list(DIFFICULT)), json.dumps(list(folders))]
    more = ["--json", "--wait"] if verb == "run" else []
    words = [verb, bundle, *options, *sets, *more, "--", *command]
    # A shell's own line is too short for them.
    (site.lab.home / "alice" / "words.json").write_text(json.dumps(words))
    start = "import json, os, sys; os.execv(sys.executable, [sys.executable, sys.argv[1], *json.load(sys.stdin)])"
    said = site.alice(f"{PYTHON} -c '{start}' {WORKSPACE}/deployer.pyz <words.json 2>/dev/null", timeout=600)
    if verb == "run":
        said = site.alice(f"cat {json.loads(said)['folder']}/output.log")
    packed = [line[len("seen ") :] for line in said.splitlines() if line.startswith("seen ")]
    return [Sight(*json.loads(zlib.decompress(base64.b64decode(each)))) for each in packed]


#: What another user of a node can leave in its /tmp, for whoever has that as HOME.
_STOLEN = """\
echo 'echo STOLEN' >/tmp/.bashrc; cp /tmp/.bashrc /tmp/.profile
for minor in 6 7 8 9 10 11 12 13 14; do
    place=/tmp/.local/lib/python3.$minor/site-packages; mkdir -p $place
    echo 'import sys; sys.stderr.write("STOLEN\\n")' >$place/stolen.pth
done"""
#: Starts what would read it; says where its home is, and who can look into it.
SENSITIVE = (
    "echo HOME=$HOME, TMPDIR=$TMPDIR, $(stat -c %a,%u $HOME); bash -ic true; bash -lc true; python3 -c pass; echo after"
)


@contextmanager
def stranger(lab: Lab) -> Iterator[None]:
    """Let another user of all nodes leave in /tmp what would run as whoever has that as HOME."""
    nodes = ("login1", "cn1", "cn2")
    for node in nodes:
        as_another = f"setpriv --reuid 2002 --regid 2002 --clear-groups bash -c {shlex.quote(_STOLEN)}"
        lab.sh(node, "root", as_another).check("leave it")
    try:
        yield
    finally:
        for node in nodes:
            lab.sh(node, "root", "rm -rf /tmp/.bashrc /tmp/.profile /tmp/.local")


#: What deployer or a user's processes can leave on a node.
PROCESSES, FILES = "pgrep -u alice -a", "find /dev/shm /tmp -mindepth 1 -maxdepth 1 -name 'deployer-*'"


@contextmanager
def nothing_left(
    lab: Lab, look: str = f"{PROCESSES}; {FILES}", nodes: Sequence[str] = ("cn1", "cn2")
) -> Iterator[None]:
    """Check that what is done inside leaves nothing on the nodes that was not there before it.

    The lab is shared: a killed job of another test may have left its home. What ends a moment later is waited for.
    """

    def there() -> set[str]:
        return {f"{node}: {line}" for node in nodes for line in lab.sh(node, "root", look).stdout.splitlines()}

    before = there()
    yield
    until = time.monotonic() + 10
    while (left := there() - before) and time.monotonic() < until:
        time.sleep(0.2)
    assert left == set()


@pytest.fixture
def counted(lab: Lab, tmp_path: Path) -> tuple[Path, Path]:
    """Return an ssh configuration, and a file that gets a line for each connection that is authenticated by it, none
    for what goes through one."""
    config, log = tmp_path / "counted", tmp_path / "dials"
    config.write_text(f"{lab.ssh_config.read_text()}  PermitLocalCommand yes\n  LocalCommand echo >>{log}\n")
    return config, log


def image_folder(site: Site, bundle: str = "hello-mpi") -> Path:
    """Return where a bundle is installed, as a folder of this machine."""
    images = (site.lab.home / "alice" / "deployer" / "images").glob("*/receipt.json")
    return next(path.parent for path in images if json.loads(path.read_text())["name"] == bundle)


def plan_record(site: Site, name: str) -> dict[str, Any]:
    """Return one of hello-mpi's plans."""
    found: dict[str, Any] = json.loads((image_folder(site) / "plans" / f"{name}.json").read_text())
    return found


@pytest.fixture
def plan(site: Site) -> Iterator[Callable[..., str]]:
    """Yield a function that gives hello-mpi one more plan: the lab's with some fields changed."""
    image = image_folder(site)
    made = image / "plans" / "changed.json"

    def change(**fields: Any) -> str:
        made.write_text(json.dumps({**plan_record(site, "lab"), "site": "changed", **fields}))
        made.chmod(0o644)
        return "changed"

    yield change
    made.unlink(missing_ok=True)


#: Prints what a stand-in for a driver's library answers, and the path and inode by which the process has it.
OPEN_DRIVER = (
    "import ctypes; print(ctypes.CDLL('libcuda.so.1').version()); "
    "print(*{tuple(line.split()[4:6]) for line in open('/proc/self/maps') if 'libcuda' in line})"
)


def with_driver(site: Site, plan: str = "lab") -> dict[str, Any]:
    """Compile a stand-in for a GPU's driver in the home; return a plan's fields that bind it by the exact map."""
    library = site.lab.home / "alice" / "driver-of-one" / "libcuda.so.1"
    library.parent.mkdir(exist_ok=True)
    text = "int version(void) { return 550; }"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=text, text=True, check=True)
    library.chmod(0o755)
    library.parent.chmod(0o755)
    record = plan_record(site, plan)
    driver = {"name": "lib/libcuda.so.1", "kind": "file", "source": "/home/alice/driver-of-one/libcuda.so.1"}
    folders = record["environment"]["LD_LIBRARY_PATH"].split(":")
    folders += [] if "/deployer/host/lib" in folders else ["/deployer/host/lib"]
    environment = {**record["environment"], "LD_LIBRARY_PATH": ":".join(folders)}
    return {"host": [{**driver, "why": "a stand-in", "spare": False}], "environment": environment}


def check_driver(site: Site, said: str) -> None:
    """Check that ``OPEN_DRIVER`` printed the stand-in's answer, and that the process has the host's own file."""
    number = site.alice("stat -c %i driver-of-one/libcuda.so.1").strip()
    assert said.split() == ["550", f"('{number}',", "'/deployer/host/lib/libcuda.so.1')"]


@pytest.fixture(scope="session")
def alice(lab: Lab) -> Alice:
    """Return what runs a script on login1 in a folder with deployer.pyz."""
    folder = lab.home / "alice" / "capture"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    (folder / "deployer.pyz").write_bytes(make_pyz())

    def run(script: str, code: int = 0) -> str:
        done = lab.sh("login1", "alice", f"cd capture && tool='{PYTHON} deployer.pyz' && {script}", timeout=120)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def captured(alice: Alice, lab: Lab) -> Path:
    """Return a capture of the login node and of a node of the partition, put together on the site."""
    alice("eval $tool capture -o login.json")
    alice("srun -N1 -n1 $(eval echo $tool) capture --node -o node.json </dev/null")
    alice("eval $tool capture --merge login.json node.json -o site.json")
    return lab.home / "alice" / "capture" / "site.json"


@pytest.fixture
def fault(lab: Lab) -> Iterator[Callable[..., None]]:
    """Yield the lab's faults; whatever was broken is mended after the test."""
    yield lab.fault
    lab.up()
