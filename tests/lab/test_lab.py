"""The lab itself, on a real machine: up, down, what its nodes may and may not do, every fault, every repair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, LabError
from tests.lab.state import load_process

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("root", "slurm", "munge", "ssh", "charliecloud", "lmod"),
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).resolve().parents[2]
MPI = "/opt/intel/mpi/2021.15"
ONE_A_NODE = "srun -N2 --ntasks-per-node=1 -c1"


def quiet(_: str) -> None:
    """Say nothing: the tests look at what was done."""


@pytest.fixture(scope="module")
def own() -> Iterator[Lab]:
    """Yield a lab of this module's own, up."""
    lab = Lab(f"test-{os.getpid()}", say=quiet)
    try:
        lab.up()
        yield lab
    finally:
        lab.down(purge=True)


@pytest.fixture
def mended(own: Lab) -> Iterator[Lab]:
    """Yield the lab for a test that breaks it; `up` must be able to mend whatever the test did."""
    yield own
    own.up()
    assert own.status().up


@pytest.fixture
def another() -> Iterator[Lab]:
    """Yield a second lab, not up."""
    lab = Lab(f"test-{os.getpid()}-b", say=quiet)
    try:
        yield lab
    finally:
        lab.down(purge=True)


def eventually(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a thing that has to happen within ``seconds``."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
        time.sleep(0.2)


def alice(lab: Lab, script: str, node: str = "login1", timeout: float = 60) -> str:
    """Run a script as alice and return what it printed."""
    return lab.sh(node, "alice", script, timeout=timeout).check(script).stdout.strip()


def traces(name: str) -> dict[str, list[str]]:
    """Return what of the lab ``name`` the machine shows: processes, mounts, interfaces, named namespaces."""
    processes = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"tests.lab.holder" in words and name.encode() in words:
            processes.append(file.parent.name)
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    names = ["ip", "netns", "list"]
    return {
        "processes": processes,
        "mounts": [line for line in mounts if f"lab/{name}" in line],
        # Without the ports of bridges: containers of others come and go meanwhile.
        "interfaces": sorted(link.name for link in Path("/sys/class/net").iterdir() if not (link / "master").exists()),
        "netns": subprocess.run(names, capture_output=True, text=True, timeout=10, check=True).stdout.split(),
    }


def has_ended(pid: int) -> bool:
    """True if no such process is left, other than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


# ---------------------------------------------------------------- up, status, down


def test_status_shows_all_of_it(own: Lab) -> None:
    status = own.status()
    assert status.up
    assert [node.name for node in status.nodes] == ["switch", "laptop", "login1", "cn1", "cn2"]
    nodes = {node.name: node for node in status.nodes}
    assert set(nodes["login1"].daemons) == {"munged", "slurmctld", "sshd"}
    assert set(nodes["cn1"].daemons) == {"munged", "slurmd"}
    assert nodes["cn2"].slurm == "idle"
    assert json.loads(status.as_json())["intel_mpi"] == MPI


def test_up_again_changes_nothing_and_is_quick(own: Lab) -> None:
    before = own.status()
    report = own.up()
    assert report.started == ()
    assert report.seconds < 2
    assert own.status() == before


def test_down_leaves_nothing(another: Lab) -> None:
    before = traces(another.name)
    another.up()
    inside = [int(pid) for pid in traces(another.name)["processes"]]
    assert len(inside) == 5
    started = time.monotonic()
    another.down()
    assert time.monotonic() - started < 3
    assert traces(another.name) == before
    assert another.state.node("login1").joinpath("log/slurm/slurmctld.log").exists()
    another.down(purge=True)
    assert not another.state.path.exists()


def test_down_ends_what_users_left_running(another: Lab) -> None:
    another.up()
    alice(another, "nohup setsid sleep 4321 >/dev/null 2>&1 & sleep 0.2")
    found = subprocess.run(["pgrep", "-fx", "sleep 4321"], capture_output=True, text=True, timeout=10, check=False)
    pids = [int(pid) for pid in found.stdout.split()]
    assert pids
    another.down()
    assert all(has_ended(pid) for pid in pids)


def test_two_labs_side_by_side(own: Lab, another: Lab) -> None:
    another.up(nodes=1)
    own.home.joinpath("alice/whose").write_text("first")
    another.home.joinpath("alice/whose").write_text("second")
    assert own.ssh("cat whose").stdout == "first"
    assert another.ssh("cat whose").stdout == "second"
    assert alice(another, "sinfo -h -N -o %N") == "cn1"
    another.down()
    assert own.status().up
    assert len(alice(own, f"{ONE_A_NODE} hostname").split()) == 2


def test_another_shape_starts_it_anew_and_is_remembered(another: Lab) -> None:
    another.up(nodes=1)
    another.up(nodes=3)
    assert alice(another, "sinfo -h -N -o %N").split() == ["cn1", "cn2", "cn3"]
    another.down()
    another.up()
    assert alice(another, "srun -N3 hostname | sort").split() == ["cn1", "cn2", "cn3"]


def test_jobs_of_a_lab_that_went_down_do_not_come_back(another: Lab) -> None:
    another.up()
    alice(another, 'sbatch -N2 --wrap "sleep 600"')
    another.down()
    another.up()
    assert alice(another, "squeue -h") == ""


@pytest.mark.parametrize("after", [0.15, 0.3, 0.45, 0.6, 0.8, 1.1, 1.5])
def test_up_that_is_killed_is_repaired_by_the_next(another: Lab, after: float) -> None:
    command = [sys.executable, "-m", "tests.lab", "--name", another.name, "up"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        time.sleep(after)
        up.send_signal(signal.SIGKILL)
        up.wait(10)
    recorded = {load_process(file) for file in another.state.path.glob("nodes/*/process.json")} - {None}
    pids = {str(process.pid) for process in recorded if process}
    # A holder that was not yet written down ends by itself: nothing may run that `down` could not find.
    eventually(lambda: set(traces(another.name)["processes"]) <= pids, 5, "an unrecorded holder ends")
    another.up()
    assert len(traces(another.name)["processes"]) == 5
    assert len(alice(another, f"{ONE_A_NODE} hostname").split()) == 2


def test_up_that_is_killed_is_cleared_by_down(another: Lab) -> None:
    command = [sys.executable, "-m", "tests.lab", "--name", another.name, "up"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        time.sleep(0.8)
        up.kill()
        up.wait(10)
    another.down(purge=True)
    eventually(lambda: traces(another.name)["processes"] == [], 5, "every holder ends")


def test_two_ups_at_once(another: Lab) -> None:
    command = [sys.executable, "-m", "tests.lab", "--name", another.name, "up"]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [up.communicate(timeout=120)[0] for up in both]
    assert [up.returncode for up in both] == [0, 0]
    assert sorted("all of it was running" in text for text in said) == [False, True]
    assert len(traces(another.name)["processes"]) == 5


def test_a_record_of_a_stranger_is_not_believed(another: Lab) -> None:
    """A pid file whose process died and whose number went to somebody else's: never killed, never entered."""
    another.up()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        file = another.state.process_file("cn1")
        real = json.loads(file.read_text())
        os.kill(real["pid"], signal.SIGKILL)
        file.write_text(json.dumps({"pid": stranger.pid, "start": real["start"]}))
        assert not another.status().up
        another.up()
        another.down()
        assert stranger.poll() is None
        stranger.kill()


# ---------------------------------------------------------------- what the site is


def test_ssh_reaches_login1_as_alice_only(own: Lab) -> None:
    assert own.ssh("id -un; hostname; pwd").stdout.split() == ["alice", "login1", "/home/alice"]
    asked = ["ssh", "-F", str(own.ssh_config), "-l", "root", "login1", "true"]
    assert subprocess.run(asked, capture_output=True, timeout=30, check=False).returncode == 255


def test_ssh_passes_exit_codes_and_input(own: Lab) -> None:
    assert own.ssh("exit 7").returncode == 7
    assert own.ssh("cat", stdin="words").stdout == "words"


def test_scp_and_sftp(own: Lab, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(os.urandom(1_000_000))
    config = ["-q", "-F", str(own.ssh_config)]
    subprocess.run(["scp", *config, data, "login1:by-scp"], check=True, timeout=30)
    batch = f"put {data} by-sftp\n"
    subprocess.run(["sftp", *config, "-b", "-", "login1"], input=batch, text=True, check=True, timeout=30)
    for name in ("by-scp", "by-sftp"):
        assert own.home.joinpath("alice", name).read_bytes() == data.read_bytes()


def test_one_connection_for_many_commands(own: Lab, tmp_path: Path) -> None:
    """ControlMaster works on top of the lab's configuration: the second command makes no connection of its own."""
    options = ["-F", str(own.ssh_config), "-o", f"ControlPath={tmp_path}/m"]
    master = ["-o", "ControlMaster=auto", "-o", "ControlPersist=60"]
    subprocess.run(["ssh", *options, *master, "login1", "true"], check=True, timeout=30)
    try:
        own.fault("stop-sshd")
        asked = subprocess.run(["ssh", *options, "login1", "hostname"], capture_output=True, timeout=30, check=True)
        assert asked.stdout == b"login1\n"
        data = tmp_path / "data"
        data.write_bytes(b"over the same connection")
        subprocess.run(["scp", "-q", *options, data, "login1:shared"], check=True, timeout=30)
    finally:
        subprocess.run(["ssh", *options, "-O", "exit", "login1"], check=True, timeout=30, stderr=subprocess.DEVNULL)
        own.fault("start-sshd")


def test_no_way_leads_out(own: Lab) -> None:
    attempts = own.up().no_way_out
    assert {attempt.node for attempt in attempts} == {"login1", "cn1", "cn2"}
    assert {attempt.failure for attempt in attempts} == {
        "[Errno 111] Connection refused",
        "[Errno 101] Network is unreachable",
    }
    for node in ("login1", "cn1"):
        assert "default" not in own.sh(node, "root", ["ip", "route"]).stdout


def test_no_name_is_resolved_but_the_sites_own(own: Lab) -> None:
    assert own.sh("cn1", "alice", "getent hosts login1").stdout.split() == ["10.99.0.1", "login1"]
    assert own.sh("login1", "alice", "getent hosts example.org").returncode == 2


def test_compute_nodes_have_no_sshd(own: Lab) -> None:
    for node in ("cn1", "cn2"):
        assert own.sh(node, "root", ["pgrep", "-x", "sshd"]).returncode == 1
        refused = own.sh("login1", "alice", f"bash -c '</dev/tcp/{node}/22'")
        assert "refused" in refused.stderr


def test_what_of_the_host_the_nodes_see(own: Lab) -> None:
    for node in ("login1", "cn1"):
        for hidden in (ROOT, Path.home() / ".cache", own.state.path, "/root/.ssh", "/var/lib/docker"):
            assert own.sh(node, "root", ["test", "-e", str(hidden)]).returncode == 1, (node, hidden)
        for fixed in ("/", "/usr", "/etc", "/opt", "/opt/intel"):
            refused = own.sh(node, "root", ["touch", f"{fixed}/.lab-test"])
            assert "Read-only file system" in refused.stderr, (node, fixed)


def test_home_is_shared_and_tmp_is_not(own: Lab) -> None:
    alice(own, "echo shared >~/seen; echo private >/tmp/unseen; echo private >/dev/shm/unseen", node="cn1")
    assert alice(own, "cat ~/seen", node="login1") == "shared"
    assert own.sh("cn2", "alice", "ls /tmp/unseen /dev/shm/unseen").returncode != 0
    assert not Path("/tmp/unseen").exists()


def test_processes_of_other_nodes_are_not_seen(own: Lab) -> None:
    assert own.sh("cn1", "root", ["pgrep", "-x", "slurmctld"]).returncode == 1
    assert own.sh("cn1", "root", ["cat", "/proc/1/comm"]).stdout == "lab-cn1\n"


def test_scratch_is_small_and_on_login1_only(own: Lab) -> None:
    assert alice(own, "df --output=size ~/scratch | tail -1") == str(64 * 1024)
    assert alice(own, "findmnt -n -o FSTYPE -T ~/scratch", node="cn1") != "tmpfs"


def test_orphans_are_reaped(own: Lab) -> None:
    alice(own, "(sleep 0.1 &) ; sleep 0.5", node="cn1")
    assert "Z" not in own.sh("cn1", "root", ["ps", "-eo", "stat="]).stdout


# ---------------------------------------------------------------- Slurm


def test_two_nodes_are_two_hosts(own: Lab) -> None:
    assert sorted(alice(own, f"{ONE_A_NODE} hostname").split()) == ["cn1", "cn2"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
@pytest.mark.parametrize("bind", ["", "--cpu-bind=cores", "--cpu-bind=none"])
def test_ranks_of_two_nodes_are_pinned_to_different_cores(own: Lab, bind: str) -> None:
    script = f"{ONE_A_NODE} {bind} grep Cpus_allowed_list /proc/self/status"
    cores = [line.split()[1] for line in alice(own, script).splitlines()]
    assert len(cores) == 2
    assert len(set(cores)) == 2
    if len(os.sched_getaffinity(0)) == 2:
        assert set(cores) == {"0", "1"}


def test_a_batch_job_starts_at_once_and_has_modules(own: Lab) -> None:
    own.home.joinpath("alice/job.sh").write_text(
        "#!/bin/bash -l\n#SBATCH -N2 --ntasks-per-node=1 -o job.out\nmodule load intel-mpi\n"
        'echo "$I_MPI_ROOT"\nsrun hostname\ntouch job.done\n'
    )
    alice(own, "rm -f job.done; sbatch job.sh")
    eventually(lambda: own.home.joinpath("alice/job.done").exists(), 15, "the job is done")
    lines = own.home.joinpath("alice/job.out").read_text().split()
    assert lines[0] == MPI
    assert sorted(lines[1:]) == ["cn1", "cn2"]


def test_a_job_that_is_too_large_is_refused(own: Lab) -> None:
    assert own.sh("login1", "alice", "sbatch -N5 --wrap hostname").returncode != 0
    assert own.sh("login1", "alice", "sbatch --mem=900G --wrap hostname").returncode != 0


# ---------------------------------------------------------------- the site's software


def test_module_intel_mpi(own: Lab) -> None:
    script = "module load intel-mpi && echo $I_MPI_ROOT && echo $LD_LIBRARY_PATH && command -v mpiexec.hydra"
    assert alice(own, script).split() == [MPI, f"{MPI}/lib", f"{MPI}/bin/mpiexec.hydra"]
    assert alice(own, f"readlink {MPI}/lib/libmpi.so.12") == "libmpi.so.12.0.0"


def test_intel_mpi_runs_on_both_nodes(own: Lab) -> None:
    """With no compiler and no MPI program at hand: ctypes calls the library, as srun's PMI-2 starts it."""
    own.home.joinpath("alice/hello.py").write_text(
        "import ctypes, os\n"
        'mpi = ctypes.CDLL("libmpi.so.12")\n'
        "mpi.MPI_Init(None, None)\n"
        "world, value = ctypes.c_int(0x44000000), ctypes.c_int()\n"
        "mpi.MPI_Comm_size(world, ctypes.byref(value))\n"
        "one, total = ctypes.c_int(1), ctypes.c_int()\n"
        "integer, add = ctypes.c_int(0x4C000405), ctypes.c_int(0x58000003)\n"
        "mpi.MPI_Allreduce(ctypes.byref(one), ctypes.byref(total), 1, integer, add, world)\n"
        "print(os.uname().nodename, value.value, total.value)\n"
        "mpi.MPI_Finalize()\n"
    )
    said = alice(own, f"module load intel-mpi; {ONE_A_NODE} --mpi=pmi2 /usr/bin/python3 hello.py")
    assert sorted(said.splitlines()) == ["cn1 2 2", "cn2 2 2"]


def test_open_mpi_runs_on_both_nodes(own: Lab) -> None:
    """As srun's PMIx starts it: Open MPI 5 speaks nothing else."""
    own.home.joinpath("alice/hello_openmpi.py").write_text(
        "import ctypes, os\n"
        'mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)\n'
        "def handle(name):\n"
        "    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))\n"
        "mpi.MPI_Init(None, None)\n"
        'world, value = handle("ompi_mpi_comm_world"), ctypes.c_int()\n'
        "mpi.MPI_Comm_size(world, ctypes.byref(value))\n"
        "one, total = ctypes.c_int(1), ctypes.c_int()\n"
        'integer, add = handle("ompi_mpi_int"), handle("ompi_mpi_op_sum")\n'
        "mpi.MPI_Allreduce(ctypes.byref(one), ctypes.byref(total), 1, integer, add, world)\n"
        "print(os.uname().nodename, value.value, total.value)\n"
        "mpi.MPI_Finalize()\n"
    )
    said = alice(own, f"module load openmpi; {ONE_A_NODE} --mpi=pmix /usr/bin/python3 hello_openmpi.py")
    assert sorted(said.splitlines()) == ["cn1 2 2", "cn2 2 2"]


def test_python36_where_pyenv_has_one(own: Lab) -> None:
    python = own.status().python36
    if not python:
        pytest.skip("needs CPython 3.6: pyenv install 3.6.15")
    script = f"{python} -c 'import ssl, ctypes, lzma, zlib, sys; print(sys.version_info[:2], sys.prefix)'"
    for node in ("login1", "cn2"):
        assert alice(own, script, node=node) == "(3, 6) /opt/python/3.6"


def test_charliecloud_is_there(own: Lab) -> None:
    assert alice(own, "ch-run --version 2>&1", node="cn1")


# ---------------------------------------------------------------- faults


def test_link_down_and_up(mended: Lab) -> None:
    mended.fault("link-down", "laptop")
    assert mended.ssh("true", timeout=30).returncode == 255
    mended.fault("link-up", "laptop")
    assert mended.ssh("echo back").stdout == "back\n"
    mended.fault("link-down", "cn1")
    assert mended.sh("login1", "alice", "timeout 3 bash -c '</dev/tcp/cn1/6818'").returncode == 124
    mended.fault("link-up", "cn1")
    eventually(lambda: alice(mended, f"{ONE_A_NODE} hostname").count("cn") == 2, 30, "cn1 is used again")


def test_a_transfer_ends_when_the_link_is_cut(mended: Lab, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(8_000_000))
    mended.fault("link-slow", "laptop", "4mbit")
    copy = ["scp", "-q", "-F", str(mended.ssh_config), str(data), "login1:cut"]
    with subprocess.Popen(copy, stderr=subprocess.DEVNULL) as transfer:
        time.sleep(2)
        assert transfer.poll() is None
        mended.fault("link-down", "laptop")
        assert transfer.wait(45) != 0


def test_link_slow(mended: Lab, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(1_000_000))
    copy = ["scp", "-q", "-F", str(mended.ssh_config), str(data), "login1:slow"]

    def seconds() -> float:
        begin = time.monotonic()
        subprocess.run(copy, check=True, timeout=60)
        return time.monotonic() - begin

    mended.fault("link-slow", "laptop", "2mbit")
    assert seconds() > 3
    mended.fault("link-up", "laptop")
    assert seconds() < 3
    with pytest.raises(LabError, match="slow down"):
        mended.fault("link-slow", "laptop", "quickly")


def test_kill_node_and_start_it(mended: Lab) -> None:
    mended.fault("kill-node", "cn2")
    with pytest.raises(LabError, match="cn2 is down"):
        mended.sh("cn2", "root", ["true"])
    assert not mended.status().up
    mended.fault("start-node", "cn2")
    assert sorted(alice(mended, f"{ONE_A_NODE} hostname").split()) == ["cn1", "cn2"]


def test_kill_login1_and_start_it(mended: Lab) -> None:
    mended.fault("kill-node", "login1")
    assert mended.ssh("true", timeout=30).returncode == 255
    mended.fault("start-node", "login1")
    assert mended.ssh("hostname").stdout == "login1\n"
    assert sorted(alice(mended, f"{ONE_A_NODE} hostname").split()) == ["cn1", "cn2"]


def test_an_allocation_ends_with_login1_and_a_batch_job_does_not(mended: Lab) -> None:
    batch = alice(mended, 'sbatch --parsable -N1 --wrap "sleep 600"')
    alice(mended, "nohup srun -N1 sleep 600 >/dev/null 2>&1 & sleep 7")  # Slurm saves its jobs every 5 s
    assert len(alice(mended, "squeue -h -t R -o %i").split()) == 2
    mended.fault("kill-node", "login1")
    mended.fault("start-node", "login1")
    eventually(lambda: alice(mended, "squeue -h -o %i") == batch, 15, "only the batch job is left")
    alice(mended, f"scancel {batch}")
    eventually(lambda: alice(mended, "squeue -h") == "", 15, "the batch job ends")


def test_kill_slurmd_and_start_it(mended: Lab) -> None:
    mended.fault("kill-slurmd", "cn1")
    assert {node.name: dict(node.daemons) for node in mended.status().nodes}["cn1"]["slurmd"] is False
    with pytest.raises(LabError, match="does not run"):
        mended.fault("kill-slurmd", "cn1")
    mended.fault("start-slurmd", "cn1")
    assert sorted(alice(mended, f"{ONE_A_NODE} hostname").split()) == ["cn1", "cn2"]


@pytest.mark.slow
def test_slurm_notices_a_dead_node_and_up_mends_it(mended: Lab) -> None:
    mended.fault("kill-slurmd", "cn1")
    eventually(lambda: "down" in alice(mended, "sinfo -h -n cn1 -o %T"), 60, "Slurm takes cn1 for down")
    assert mended.up().started == ("slurmd on cn1",)
    assert alice(mended, "sinfo -h -n cn1 -o %T") == "idle"


def test_up_resumes_a_drained_node(mended: Lab) -> None:
    mended.sh("login1", "root", "scontrol update nodename=cn1 state=drain reason=test").check("drain")
    mended.up()
    assert alice(mended, "sinfo -h -n cn1 -o %T") == "idle"


def test_sshd_stops_and_starts(mended: Lab) -> None:
    mended.fault("stop-sshd")
    refused = mended.ssh("true", timeout=30)
    assert refused.returncode == 255
    assert "refused" in refused.stderr
    mended.fault("start-sshd")
    assert mended.ssh("true").returncode == 0


def test_new_host_key_is_noticed(mended: Lab) -> None:
    mended.fault("new-hostkey")
    warned = mended.ssh("true", timeout=30)
    assert warned.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in warned.stderr
    mended.fault("old-hostkey")
    assert mended.ssh("true").returncode == 0


def test_disk_full_and_free(mended: Lab) -> None:
    mended.fault("disk-full")
    full = mended.sh("login1", "alice", "echo words >scratch/file")
    assert "No space left on device" in full.stderr
    mended.fault("disk-free")
    assert alice(mended, "echo words >scratch/file; cat scratch/file") == "words"
    mended.fault("disk-full", "3m")
    assert alice(mended, "df --output=avail -B1 ~/scratch | tail -1") == str(3 * 2**20)


def test_up_undoes_every_fault_at_once(mended: Lab) -> None:
    mended.fault("new-hostkey")
    mended.fault("disk-full")
    mended.fault("stop-sshd")
    mended.fault("link-slow", "cn1", "1mbit")
    mended.fault("link-down", "cn2")
    mended.fault("kill-slurmd", "cn1")
    mended.fault("kill-node", "laptop")
    mended.up()
    assert mended.ssh("echo words >scratch/file; cat scratch/file").stdout == "words\n"
    assert sorted(alice(mended, f"{ONE_A_NODE} hostname").split()) == ["cn1", "cn2"]
    assert "tbf" not in mended.sh("cn1", "root", ["tc", "qdisc"]).stdout


# ---------------------------------------------------------------- limits


def test_a_command_that_takes_too_long_is_ended_in_its_node(own: Lab) -> None:
    with pytest.raises(LabError, match="no end within"):
        own.sh("cn1", "alice", "sleep 9876", timeout=1)
    eventually(lambda: own.sh("cn1", "root", ["pgrep", "-fx", "sleep 9876"]).returncode == 1, 5, "it ends")


def test_the_command_line(own: Lab) -> None:
    lab = [str(ROOT / "scripts/lab"), "--name", own.name]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*lab, *words], capture_output=True, text=True, timeout=60, check=False)

    assert run("as", "alice", "cn1", "--", "sh", "-c", "id -un; pwd").stdout == "alice\n/home/alice\n"
    assert run("exec", "cn2", "--", "hostname").stdout == "cn2\n"
    assert run("exec", "cn2", "--", "sh", "-c", "exit 9").returncode == 9
    assert run("ssh", "--", "login1", "echo", "hello").stdout == "hello\n"
    assert json.loads(run("status", "--json").stdout)["up"] is True
    wrong = run("fault", "link-down", "cn9")
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (1, "lab: error: no link 'cn9'")
