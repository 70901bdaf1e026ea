"""A hostile job cannot reach the laptop of its rehearsal: it tries, in real namespaces."""

import ctypes
import errno
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.connected.rehearse.ask import rehearse
from deployer.connected.rehearse.world import far_shell, own_paths
from deployer.connected.rehearse.world.world import WorldOrder, WorldReport
from deployer.contract.base import json_records
from deployer.system import process
from tests.integration.conftest import ROOT, Cli

ATTACKS = Path(__file__).parent / "rehearse_attacks.py"
#: What the kernel answers to the system calls of rehearse_calls.c.
REFUSED = {
    "vsock": "EAFNOSUPPORT",
    **dict.fromkeys(("add_key", "request_key", "keyctl", "io_uring"), "ENOSYS"),
    **(
        {"vsock32": "SYS", "keyctl32": "SYS", "pid32": "SYS", "vsock_x32": "ENOSYS"}
        if os.uname().machine == "x86_64"
        else {}
    ),
}
ABSTRACT = f"deployer-attack-{os.getpid()}"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with what a simulated site needs, and a secret that it does not."""
    for name in ("world/bin", "world/home", "world/sockets", "world/machine", "seen", "job", "app"):
        (tmp_path / name).mkdir(parents=True)
    rehearse._program(tmp_path / "world/bin/ssh", Path(far_shell.__file__))
    for name in ("job.sh", "agent", "environment", "machines"):
        (tmp_path / "job" / name).touch()
    (tmp_path / "secret").write_text("secret")
    shutil.copy(ATTACKS, tmp_path / "app")
    _compile(tmp_path / "app" / "calls")
    return tmp_path


def _compile(path: Path) -> None:
    process.run(["gcc", "-static", "-o", str(path), str(ATTACKS.with_name("rehearse_calls.c"))], 60)


def simulate(site: Path, script: str, **other: object) -> WorldReport:
    """Run a script where job.sh runs, on a simulated site with one node."""
    job = site / "job"
    order = WorldOrder(
        parent=os.getpid(),
        nodes=1,
        folder=str(site / "world"),
        readable=[*own_paths.python(), str(site / "app"), str(job / "job.sh"), str(job / "agent")],
        writable=[str(job)],
        fixed=[str(job / "environment"), str(job / "machines")],
        seen=str(site / "seen"),
        job=str(job),
        words=["/bin/bash", "-c", script],
        memory_mb=None,
        observer=rehearse._observer(job, 1),
    )._replace(**other)
    own = process.base_environment() | {"PYTHONPATH": str(own_paths.package().parent)}
    argv = [sys.executable, "-S", "-m", "deployer.connected.rehearse.world.world"]
    done = process.run(argv, 100, own, stdin=json.dumps(order._asdict()))
    assert not done.stderr, done.stderr
    return WorldReport(**json_records.parse(done.stdout.encode(), "report"))


@pytest.fixture
def key() -> Iterator[None]:
    """Put a key into the session's keyring, as Kerberos does."""
    libc = ctypes.CDLL(None, use_errno=True)
    add, control = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
    made = libc.syscall(add, b"user", b"deployer-attack", b"secret", 6, -3)
    if made < 0 and ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):  # a container's filter: there are no keys
        raise OSError(ctypes.get_errno(), "add_key")
    yield
    libc.syscall(control, 3, made)  # revoke


def test_what_runs_outside_of_the_container_does_not_reach_the_laptop(site: Path, key: None) -> None:
    job = site / "job"
    words = f"{sys.executable} {site}/app/{ATTACKS.name} {job}/tried {site}/secret {job} {ABSTRACT}"
    script = f"{words}; ssh node1 {words}; ssh node1 true"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + ABSTRACT)
        listener.listen()
        report = simulate(site, script)
    assert (report.exit_code, report.error) == (0, ""), (job / "output.log").read_text()
    assert report.nodes["node1"]["observed"]
    for name in ("login", "node1"):
        found = json.loads((job / f"tried-{name}.json").read_text())
        assert not [attempt for attempt, how in found.items() if how == "done"], found
        assert {name: found[name] for name in REFUSED} == REFUSED
    assert sorted(path.name for path in (site / "seen").iterdir()) == [
        "node1.files",
        "node1.network.jsonl",
        "node1.used.json",
    ]


def test_a_folder_of_a_rehearsal_below_tmp_shows_containers_no_socket_of_a_node(site: Path) -> None:
    """A container has the /tmp of its node: there, a socket would start programs outside of it."""
    assert str(site).startswith("/tmp/")
    report = simulate(site, "ssh node1 true && ssh node1 ls /.nodes && ssh node1 find /tmp /var/tmp /run -type s")
    assert (report.exit_code, (site / "job/output.log").read_text()) == (0, "node1\n")


def test_who_kills_the_observer_is_not_observed(site: Path) -> None:
    """The job's processes have its user, so they can; but then nothing is claimed of what they did."""
    kill = "import os, signal; os.kill(-1, signal.SIGKILL)"
    report = simulate(site, f"ssh node1 {sys.executable} -c {shlex.quote(shlex.quote(kill))}; ssh node1 true")
    assert report.exit_code == 0  # the node goes on
    assert report.nodes["node1"]["observed"] is False
    report = simulate(site, "ssh node1 true")
    assert report.nodes["node1"]["observed"] is True


def test_nodes_share_what_a_job_makes_in_the_data_folder_and_the_laptop_keeps_its_own(site: Path) -> None:
    """Its path may have what separates the options of a mount."""
    data = site / "root,a:b" / "data"
    data.mkdir(parents=True)
    (data / "known").write_text("known")
    quoted = shlex.quote(str(data))
    made = shlex.quote(f"echo made >{quoted}/made && rm {quoted}/known")
    moved = shlex.quote(f"! mv {quoted} {quoted}2; ! touch {shlex.quote(str(data.parent / 'other'))}")
    words = f"ssh node1 {made} && ssh node2 cat {quoted}/made && ssh node2 {moved}"
    report = simulate(site, words, nodes=2, readable=[*own_paths.python(), str(data.parent)], layered=[str(data)])
    assert report.exit_code == 0, (site / "job/output.log").read_text()
    assert (site / "job/output.log").read_text().startswith("made\n")
    assert [path.name for path in data.parent.iterdir()] == ["data"]
    assert [path.name for path in data.iterdir()] == ["known"]


BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(1)
"""


def test_too_many_processes_end_the_rehearsal(site: Path) -> None:
    """Root has no limit of processes, so the first process of all looks; others see that there are no more."""
    bomb = f"ssh node1 {sys.executable} -S -c {shlex.quote(shlex.quote(BOMB))}"
    report = simulate(site, f"timeout -s KILL 20 {bomb}; exit 7", tasks=300)
    if os.getuid() == 0:
        assert report.stopped == "it started more than 300 processes and threads"
        assert not report.nodes.get("node1", {}).get("observed")
    assert report.exit_code
    assert report.seconds < 25


@pytest.mark.slow
@pytest.mark.parametrize("way", ["namespaces", "docker"])
def test_a_hostile_job_reaches_nothing_and_what_it_asked_for_is_known(
    built: Cli, tmp_path: Path, key: None, way: str
) -> None:
    """It also removes what Python's hook wrote of it, and forges the account of the observer."""
    shutil.copytree(ROOT / "bundles" / "hello-mpi", tmp_path / "hello-mpi")
    shutil.copy(ATTACKS, tmp_path / "hello-mpi" / "app" / "hello.py")
    _compile(tmp_path / "hello-mpi" / "app" / "calls")
    built("pack", tmp_path / "hello-mpi", "-o", tmp_path / "hostile.tar")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    words = ["/deployer/job/tried", secret, "/deployer/job", ABSTRACT, "inside"]
    done = built("rehearse", "--engine", way, tmp_path / "hostile.tar", "--json", "--", *words)
    outcome = json.loads(done.stdout)
    assert outcome["watched"][-2:] == ["network", "files"]
    asked = {item["subject"]: item["code"] for item in outcome["findings"]}
    assert asked.get("192.0.2.1") == "rehearse.network", outcome
    assert outcome["used"]["peak_memory"] > 1
    log = Path(outcome["folder"], "output.log").read_text()  # Docker's engine sends no other file of the job
    tried = [json.loads(line.partition("tried: ")[2]) for line in log.splitlines() if "tried: " in line]
    assert len(tried) == 2
    for found in tried:
        assert not [attempt for attempt, how in found.items() if how == "done"], found
        assert {name: found[name] for name in REFUSED} == REFUSED
    assert secret.read_text() == "secret"
