"""Rehearsals on this machine, with real namespaces, the kit's ch-run and the image's own MPICH."""

import contextlib
import json
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from deployer.connected.image.bases.base import tarball_of
from deployer.connected.image.definition.definition import Base
from deployer.connected.rehearse.ask import container_image
from tests.integration.conftest import ROOT, Cli

DOWNLOAD = """\
import os, sys
if sys.argv[1:]:
    os.makedirs("../data/MNIST", exist_ok=True)
    import urllib.request
    urllib.request.urlopen(sys.argv[1])
"""
URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"


@pytest.fixture(scope="module")
def rehearsed(built: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return hello-mpi, whose ranks download what is named on the command line."""
    folder = tmp_path_factory.mktemp("rehearsed")
    shutil.copytree(ROOT / "bundles" / "hello-mpi", folder / "hello-mpi")
    program = folder / "hello-mpi" / "app" / "hello.py"
    program.write_text(DOWNLOAD + program.read_text())
    (folder / "hello-mpi" / "known").mkdir()
    (folder / "hello-mpi" / "known" / "file").touch()
    (definition,) = (folder / "hello-mpi").glob("*.yaml")
    definition.write_text(definition.read_text() + "\ndata: {known: {folder: known}}\n")
    built("pack", folder / "hello-mpi", "-o", folder / "hello.tar")
    return folder / "hello.tar"


def test_two_nodes_run_mpi_and_a_download_is_found_and_named(built: Cli, rehearsed: Path) -> None:
    """The image's MPICH joins the two nodes; the same job with a URL ends with code 3, and its place is named."""
    outcome = json.loads(built("rehearse", rehearsed, "--json").stdout)
    assert (outcome["verdict"], outcome["nodes"], outcome["ranks"]) == ("RUN", 2, 2), outcome
    result = json.loads(Path(outcome["folder"], "result.json").read_text())
    assert (result["exit_code"], result["world_size"]) == (0, 2)
    assert result["payload"]["hosts"] == ["node1", "node2"]
    assert outcome["requested"] == []
    outcome = json.loads(built("rehearse", rehearsed, "--json", "--", URL, code=3).stdout)
    first = outcome["findings"][0]
    assert (first["code"], first["stopped"]) == ("rehearse.network", True)
    assert "storage.googleapis.com" in first["subject"]
    assert (first["file"], first["line"]) == ("/deployer/app/hello.py", 5)
    assert not [line for line in _processes() if outcome["folder"] in line]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_nodes_of_open_mpi(built: Cli, tmp_path: Path) -> None:
    """Its mpirun starts for root too, and without pinning, which it cannot do where hwloc sees a synthetic machine."""
    program = "from mpi4py import MPI; print('sum', MPI.COMM_WORLD.allreduce(1)); print(MPI.Get_library_version())"
    (tmp_path / "bundle.yaml").write_text(
        "{name: of-open-mpi, version: '1', base: {debian: bookworm, include: [python3-mpi4py]},\n"
        f" jobs: {{sum: {{command: [python3, -c, {json.dumps(program)}], nodes: 2}}}}}}\n"
    )
    built("build", tmp_path, timeout=600)
    built("pack", tmp_path, "-o", tmp_path / "b.tar")
    outcome = json.loads(built("rehearse", tmp_path / "b.tar", "--json").stdout)
    assert (outcome["verdict"], outcome["nodes"], outcome["ranks"]) == ("RUN", 2, 2), outcome
    assert json.loads(Path(outcome["folder"], "result.json").read_text())["world_size"] == 2
    log = Path(outcome["folder"], "output.log").read_text()
    assert log.count("Open MPI v4.1.4") == 2
    assert log.count("sum 2\n") == 2


@pytest.mark.slow
def test_it_ends_at_its_time_and_leaves_nothing_when_it_is_killed(built: Cli, rehearsed: Path, tmp_path: Path) -> None:
    """A job that ignores SIGTERM is killed; a killed command leaves no process, and the next one no folder."""
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1234.5)"
    bundle = tmp_path / "bare.tar"
    built("pack", "--image", "deployer/hello-mpi:1.0.0", "--name", "bare", "--version", "1", "-o", bundle)
    words = ["rehearse", bundle, "--json", "--time", "3s", "--", "python3", "-c", stubborn]
    assert json.loads(built(*words).stdout)["ending"]["how"] == "limit"
    words[4] = "60s"
    program = [str(ROOT / ".venv" / "bin" / "deployer"), *map(str, words)]
    with subprocess.Popen(program, env=built.environment, stdout=subprocess.DEVNULL) as started:
        _until(lambda: any(line.startswith("python3 -c") and "1234.5" in line for line in _processes()))
        started.send_signal(signal.SIGKILL)
    _until(lambda: not [line for line in _processes() if "1234.5" in line])


_READS_AND_WRITES = """\
name: reads
version: "1"
base: {debian: bookworm}
mpi: []
data: {set: {bundle: has-data}}
jobs:
  main:
    command: [sh, -c, "ls /deployer/data/set && touch /deployer/data/set/new && ls /deployer/data/set"]
"""


@pytest.mark.slow
def test_what_a_job_writes_beside_data_of_another_bundle_ends_with_it(built: Cli, tmp_path: Path) -> None:
    for name, text in (
        ("reads", _READS_AND_WRITES),
        ("data", "name: has-data\nversion: '1'\ndata: {set: {folder: set}}\n"),
    ):
        (tmp_path / name / "set").mkdir(parents=True)
        (tmp_path / name / "set" / "given").touch()
        (tmp_path / name / "bundle.yaml").write_text(text)
    built("build", tmp_path / "reads")
    for name in ("reads", "data"):
        built("pack", tmp_path / name, "-o", tmp_path / f"{name}.tar")
    for _ in range(2):
        done = built("rehearse", tmp_path / "reads.tar", "--data", tmp_path / "data.tar", "--json")
        log = Path(json.loads(done.stdout)["folder"], "output.log").read_text()
        assert [line for line in log.splitlines() if line in ("given", "new")] == ["given", "given", "new"]


#: What `jax.distributed.initialize()` without arguments reads: jax/_src/clusters/slurm_cluster.py of JAX 0.10.2.
_AS_JAX = """\
import os
names = "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES"
print("read", *[os.environ[name] for name in names], "PMI_RANK" in os.environ)
"""
_READS_SLURM = """\
name: reads-slurm
version: "1"
base: {debian: bookworm, include: [python3]}
mpi: []
jobs: {main: {command: [python3, /deployer/app/main.py], nodes: 2}}
"""


def test_ranks_without_mpi_have_the_numbers_that_a_sites_slurm_gives(built: Cli, tmp_path: Path) -> None:
    (tmp_path / "d" / "app").mkdir(parents=True)
    (tmp_path / "d" / "app" / "main.py").write_text(_AS_JAX)
    (tmp_path / "d" / "bundle.yaml").write_text(_READS_SLURM)
    built("build", tmp_path / "d")
    built("pack", tmp_path / "d", "-o", tmp_path / "b.tar")
    outcome = json.loads(built("rehearse", tmp_path / "b.tar", "--site", "lab", "--json").stdout)
    assert outcome["verdict"] == "RUN", outcome
    log = Path(outcome["folder"], "output.log").read_text()
    said = sorted(line[line.index("read ") :] for line in log.splitlines() if "read " in line)
    assert said == [f"read 1 node[1-2] 2 {rank} 0 2 False" for rank in (0, 1)], log
    refused = built("rehearse", tmp_path / "b.tar", "--json", code=3).stdout
    assert "KeyError: 'SLURM_JOB_ID'" in json.loads(refused)["findings"][0]["message"]


#: In a user namespace in which no other can be made: a laptop whose settings forbid them.
FORBIDDEN = 'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --ambient-caps=-all --inh-caps=-all "$@"'


@pytest.mark.slow
def test_without_user_namespaces_docker_hosts_the_simulated_site(built: Cli, engine: Any, rehearsed: Path) -> None:
    """The command finds out by itself; two nodes run MPI in one container, and nothing of it is left."""
    with contextlib.closing(docker.DockerClient(base_url=engine.docker_host)) as client:
        container_image.ensure(client, print)  # mmdebstrap cannot run in a user namespace that maps root alone
    program = str(ROOT / ".venv" / "bin" / "deployer")
    words = ["unshare", "-U", "--map-current-user", "--keep-caps", "bash", "-c", FORBIDDEN, "bash", program]
    done = subprocess.run(
        [*words, "rehearse", str(rehearsed)],
        check=False,
        env=built.environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "runs in a container of Docker, because unshare: No space left on device" in done.stderr
    assert "user/max_user_namespaces is 0" in done.stderr
    assert "simulated by: docker" in done.stdout
    assert "watched: python, network, files" in done.stdout
    log = Path(done.stdout.partition("log: ")[2].splitlines()[0])
    result = json.loads((log.parent / "result.json").read_text())
    assert (result["exit_code"], result["world_size"]) == (0, 2)
    assert result["payload"]["hosts"] == ["node1", "node2"]
    assert not _containers(built)


@pytest.mark.slow
def test_in_a_container_a_download_is_named_and_a_killed_command_leaves_nothing(built: Cli, rehearsed: Path) -> None:
    """The report is the same as with namespaces; the container ends with the command, however that ends."""
    outcome = json.loads(built("rehearse", "--engine", "docker", rehearsed, "--json", "--", URL, code=3).stdout)
    first = outcome["findings"][0]
    assert (outcome["engine"], first["code"], first["stopped"]) == ("docker", "rehearse.network", True)
    assert "storage.googleapis.com" in first["subject"]
    assert (first["file"], first["line"]) == ("/deployer/app/hello.py", 5)
    program = [str(ROOT / ".venv" / "bin" / "deployer"), "rehearse", "--engine", "docker", str(rehearsed)]
    with subprocess.Popen(program, env=built.environment, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        while not next(started.stderr).startswith("running "):
            pass
        assert _containers(built)
        started.send_signal(signal.SIGKILL)
    _until(lambda: not _containers(built))


@pytest.mark.slow
def test_a_laptop_that_is_not_linux_rehearses_on_an_engine_elsewhere(
    built: Cli, engine: Any, rehearsed: Path, tmp_path: Path
) -> None:
    """Without what only Linux has, by TCP, in an image that Docker builds; the outcome is stored in the bundle."""
    base = tarball_of(Base(debian="bookworm", include=["python3"])).stem.rpartition("-")[2]
    bundle = tmp_path / "copy.tar"
    shutil.copy(rehearsed, bundle)
    words = [
        sys.executable,
        "-m",
        "tests.integration.not_linux",
        f"localhost/deployer/base:{base}",
        "rehearse",
        str(bundle),
    ]
    with _forwarded(engine.docker_host.removeprefix("unix://")) as port:
        own = {**built.environment, "DOCKER_HOST": f"tcp://127.0.0.1:{port}"}
        refused = subprocess.run(
            [*words, "--bind", "/etc"], check=False, env=own, capture_output=True, text=True, timeout=60, cwd=ROOT
        )
        assert refused.returncode == 2, refused.stderr
        assert "does not see this folder" in refused.stderr
        words += ["--json"]
        done = subprocess.run(words, check=False, env=own, capture_output=True, text=True, timeout=500, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["verdict"], outcome["engine"], outcome["ranks"]) == ("RUN", "docker", 2)
    assert not _containers(built)


@contextlib.contextmanager
def _forwarded(path: str) -> Iterator[int]:
    """Yield a TCP port of this machine that leads to a Unix socket."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as far:
                far.connect(path)
                back = threading.Thread(target=_pump, args=(far, self.request), daemon=True)
                back.start()
                _pump(self.request, far)
                back.join(60)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _containers(built: Cli) -> str:
    words = ["docker", "ps", "--all", "--quiet", "--filter", "label=deployer.rehearsal"]
    return subprocess.run(
        words, env=built.environment, capture_output=True, text=True, timeout=20, check=True
    ).stdout.strip()


def _processes() -> list[str]:
    return subprocess.run(
        ["ps", "-eww", "-o", "args"], capture_output=True, text=True, timeout=20, check=True
    ).stdout.split("\n")


def _until(is_true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.2)
