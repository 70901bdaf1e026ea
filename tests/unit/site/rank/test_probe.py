"""Evidence from a node and from a rank: identities, maps, the MPI calls on a library compiled for the test."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

from deployer.contract.base.errors import DeployerError
from deployer.contract.proof import evidence
from deployer.contract.rules import hostfiles
from deployer.site.proof import rank_record
from deployer.site.rank import host_probe, mpi, probe
from deployer.site.rank.node_records import node_name
from deployer.site.rank.observed import mapped_mpi
from deployer.system import elf
from tests import running
from tests.evidence import recorded
from tests.unit.site.proof.test_result import LAUNCH

MAPS = """\
55d0-55d1 r--p 00000000 00:2f 11 /usr/bin/python3.11
7f00-7f01 r--p 00000000 08:01 42 /opt/intel mpi/lib/libmpi.so.12
7f01-7f02 r-xp 00001000 08:01 42 /opt/intel mpi/lib/libmpi.so.12
7f03-7f04 r-xp 00001000 08:01 43 /opt/intel/lib/libmpifort.so.12
7f04-7f05 r-xp 00001000 08:01 44 /usr/lib/libmpich.so.12.2.2
7f05-7f06 r-xp 00001000 08:01 45 /usr/lib/libmpi_shm_heap_proxy.so
7f06-7f07 rw-p 00000000 00:00 0
7f07-7f08 rw-p 00000000 00:00 0 [stack]
"""


def test_mpi_libraries_in_maps():
    assert mapped_mpi.mpi_libraries(MAPS) == [
        ("/opt/intel mpi/lib/libmpi.so.12", 42),
        ("/usr/lib/libmpich.so.12.2.2", 44),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "libmpi.so",
        "libmpi.so.40.30.4",
        "libmpi_cray.so.12",
        "libmpi_gnu_123.so.12",
        "libmpi_abi.so.1",
        "libmpi-1a2b3c4d.so.12.0.0",
        "libmpich.so.12",
    ],
)
def test_names_of_mpi_libraries(name):
    assert mapped_mpi.mpi_libraries(f"0-1 r-xp 0 08:01 7 /x/{name}\n")


@pytest.mark.parametrize(
    "name",
    [
        "libmpicxx.so.12",
        "libmpi_cxx.so.40",
        "libmpi_mpifh.so.40",
        "libmpifort.so.12",
        "libmpir.so",
        "libmpi.so.12 (deleted)x",
        "MPI.mpich.so",
    ],
)
def test_names_of_other_libraries(name):
    assert not mapped_mpi.mpi_libraries(f"0-1 r-xp 0 08:01 7 /x/{name}\n")


def test_identity_of_a_file(tmp_path):
    (tmp_path / "text").write_text("abc")
    assert elf.identity(str(tmp_path / "text")) == (
        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    (tmp_path / "cut").write_bytes(b"\x7fELF\x02\x01" + b"\xff" * 100)  # offsets far outside the file
    assert elf.identity(str(tmp_path / "cut")).startswith("sha256:")
    with pytest.raises(DeployerError, match="cannot read"):
        elf.identity(str(tmp_path / "none"))


def test_a_path_that_leads_elsewhere_proves_nothing(tmp_path):
    (tmp_path / "libmpi.so").write_text("abc")
    path = str(tmp_path / "libmpi.so")
    inode = os.stat(path).st_ino
    assert mapped_mpi.identity(os.getpid(), (path, inode)).startswith("sha256:")
    assert mapped_mpi.identity(os.getpid(), (path, inode + 1)) == "unknown:inode:%d" % (inode + 1)
    assert mapped_mpi.identity(os.getpid(), (path + " (deleted)", inode)) == "unknown:inode:%d" % inode


def test_a_single_file_of_the_host_under_proot(tmp_path, monkeypatch):
    """The kernel shows the host's path of a file that proot binds, where the image may have another file."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "libmpi.so.40").write_text("abc")
    (tmp_path / "libmpi.so.40.30").write_text("the image's")
    monkeypatch.setattr(hostfiles, "LIBRARIES", str(tmp_path / "host"))
    mapping = (str(tmp_path / "libmpi.so.40.30"), os.stat(str(tmp_path / "host" / "libmpi.so.40")).st_ino)
    assert mapped_mpi.identity(os.getpid(), mapping) == elf.identity(str(tmp_path / "host" / "libmpi.so.40"))
    assert mapped_mpi.reopened(os.getpid(), mapping) == str(tmp_path / "host" / "libmpi.so.40")


def test_a_process_that_is_gone_has_nothing_mapped():
    assert mapped_mpi.maps(2**22 + 1) == ""


@pytest.mark.parametrize(
    ("environment", "task"),
    [
        ({"SLURM_PROCID": "3"}, 3),
        ({"SLURM_PROCID": "0", "PMI_RANK": "1"}, 1),
        ({"SLURM_PROCID": "0", "PMIX_RANK": "2"}, 2),
        ({"SLURM_PROCID": "0", "PMIX_RANK": "2", "OMPI_COMM_WORLD_RANK": "2"}, 2),
        ({}, 0),
        ({"SLURM_PROCID": "x"}, 0),
    ],
)
def test_task_number(environment, task):
    """Below mpiexec and mpirun SLURM_PROCID is that of the daemon that started the rank."""
    assert probe.task_number(environment) == task


def test_the_numa_domains_of_a_node(tmp_path):
    for name, cpus in (("node0", "0-1,4-5\n"), ("node1", "2-3,6-7\n"), ("node2", "\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(cpus)
    assert host_probe.numa_domains(str(tmp_path)) == ["0-1,4-5", "2-3,6-7"]  # node2 has memory alone
    assert host_probe.numa_domains(str(tmp_path / "nothing")) == []


def test_host_record(tmp_path):
    (tmp_path / "libmpi.so.12").write_text("abc")
    record = host_probe.host(str(tmp_path), str(tmp_path / "libmpi.so.12"))
    assert record.identity.startswith("sha256:ba78")
    assert json.loads((tmp_path / (node_name() + ".json")).read_text())["identity"] == record.identity
    assert host_probe.host(str(tmp_path), str(tmp_path / "none")).identity is None
    assert host_probe.host(str(tmp_path), None).identity is None


def test_host_record_names_what_the_node_lacks_of_the_job_s_binds(tmp_path):
    (tmp_path / "hosts").mkdir()
    (tmp_path / "there").mkdir()
    bound = [str(tmp_path / "gone.so"), str(tmp_path / "there")]
    running.write(str(tmp_path / "job.json"), LAUNCH._replace(bound=bound).record())
    assert host_probe.host(str(tmp_path / "hosts"), None).missing == (str(tmp_path / "gone.so"),)
    written = evidence.read(evidence.HostRecord, (tmp_path / "hosts" / (node_name() + ".json")).read_bytes(), "it")
    assert written.missing == (str(tmp_path / "gone.so"),)


def test_host_record_names_each_library_that_is_not_as_it_was_captured(tmp_path):
    (tmp_path / "hosts").mkdir()
    names = ["libmpi.so.12", "libopen-pal.so.80", "libopen-rte.so.80", "libpmix.so.2"]
    library, pal, rte, pmix = (str(tmp_path / name) for name in names)
    for name in names[:3]:
        (tmp_path / name).write_text(name)
    known = {path: elf.identity(path) for path in (pal, rte)}
    mpi = running.PLAN.mpi._replace(library=library, libraries=dict(known, **{pmix: "build-id:00"}))
    running.write(str(tmp_path / "job.json"), LAUNCH._replace(mpi=mpi).record())
    (tmp_path / names[1]).write_text("another")
    host_probe.host(str(tmp_path / "hosts"), library)
    written = evidence.read(evidence.HostRecord, (tmp_path / "hosts" / (node_name() + ".json")).read_bytes(), "it")
    assert written.changed == {pal: elf.identity(pal), pmix: "missing"}


def read_root(out, library, *reader):
    host_probe.host(str(out), library, reader=reader)
    path = out / (socket.gethostname() + ".root")
    return path.read_text() if path.exists() else None


def test_a_node_reads_the_canary_from_a_container_after_all_else(tmp_path):
    job = tmp_path / "job"
    (job / "hosts").mkdir(parents=True)
    assert read_root(job / "hosts", None, "sh", "-c", "echo canary; echo warning >&2; exit 1") == "canary\nwarning\n"
    assert "cannot start no-such-runtime" in read_root(job / "hosts", None, "no-such-runtime")


def test_a_full_disk_of_the_node_is_named_if_a_runtime_finds_one(tmp_path, monkeypatch):
    hosts = tmp_path / "job" / "hosts"
    hosts.mkdir(parents=True)
    monkeypatch.setattr(host_probe, "_PLACES", (str(tmp_path), "/proc"))  # /proc has no free block
    said = "error: please report this bug: No space left on device\n"
    assert read_root(hosts, None, "printf", said) == said + "full: /proc\n"
    assert read_root(hosts, None, "echo", "another error") == "another error\n"


def test_a_node_that_lacks_something_starts_no_container(tmp_path):
    job = tmp_path / "job"
    (job / "hosts").mkdir(parents=True)
    assert read_root(job / "hosts", str(tmp_path / "libmpi.so.12"), "echo") is None
    running.write(str(job / "job.json"), LAUNCH._replace(bound=[str(tmp_path / "gone.so")]).record())
    assert read_root(job / "hosts", None, "echo") is None


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("[0] MPI startup(): libfabric version: 1.21.0-impi\n[0] MPI startup(): libfabric provider: tcp\n", "tcp"),
        ("libfabric provider: tcp;ofi_rxm - 10.99.0.0/24\n", "tcp;ofi_rxm"),
        ("provider: tcp, score = 4\n", None),
        ("libfabric provider: \n", None),
        ("", None),
    ],
)
def test_the_provider_in_the_library_s_own_words(text, provider):
    assert mpi.provider(text) == provider


def run_rank(out, soname, code="", more="False, None", **environment):
    """Run probe.rank in a process of its own, after ``code``: it gives its output away."""
    code += (
        f"import sys; from deployer.site.rank import probe; sys.exit(probe.rank(sys.argv[1], sys.argv[2], (), {more}))"
    )
    env = dict({"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "SLURM_PROCID": "1"}, **environment)
    return subprocess.call([sys.executable, "-c", code, str(out), soname], env=env, stderr=subprocess.DEVNULL)


def read(out):
    return evidence.read(evidence.ProbeRecord, recorded(out, "probe-1.json").encode(), "it")


@pytest.mark.thorough
def test_a_rank_tells_library_world_provider_and_cpus(tmp_path, stand_in):
    assert run_rank(tmp_path, stand_in, OMP_NUM_THREADS="2") == 0
    record = read(tmp_path)
    assert (record.task, record.rank, record.size, record.stage) == (1, 1, 4, rank_record.DONE)
    assert (record.provider, record.thread_level, record.threads) == ("tcp", "multiple", 2)
    assert record.library.says == "Stand-in MPI 1.0"
    assert record.library.identity == elf.identity(stand_in)
    assert record.library.identity.startswith("build-id:")
    assert evidence.parse_cpus(record.cpus) == os.sched_getaffinity(0)
    assert record.measures.allreduce.nanoseconds > 0
    assert (record.measures.allreduce.bytes, record.measures.allreduce.wrong) == (1 << 20, None)
    assert record.measures.gpu is None
    assert record.shared_memory is False
    with tempfile.TemporaryDirectory(dir="/dev/shm") as staged:
        assert run_rank(tmp_path, shutil.copy(stand_in, staged)) == 0
    assert read(tmp_path).shared_memory is False
    assert run_rank(tmp_path, stand_in, STAND_IN_SHARES="1") == 0
    assert read(tmp_path).shared_memory is True


def test_a_library_takes_leave_of_the_launcher_when_the_process_exits(tmp_path, stand_in):
    """As MPICH does: without it, Hydra kills the other ranks."""
    code = "import sys; parts = [b'']; exec(open(sys.argv[1] + '/deployer/site/rank/first_module.py').read())"
    words = [os.getcwd(), "probe", "--rank", "--out", str(tmp_path), "--library", stand_in]
    env = {"PATH": os.environ["PATH"], "SLURM_PROCID": "1", "STAND_IN_GOODBYE": str(tmp_path / "goodbye")}
    assert subprocess.call([sys.executable, "-I", "-S", "-c", code, *words], env=env) == 0
    assert read(tmp_path).stage == rank_record.DONE
    assert (tmp_path / "goodbye").exists()


def test_a_sum_that_is_wrong_is_told(tmp_path, stand_in):
    assert run_rank(tmp_path, stand_in, STAND_IN_SUMS_WRONG="1") == 0
    assert read(tmp_path).measures.allreduce.wrong == "the sum over 4 ranks is 1, not 6"


@pytest.mark.thorough
def test_the_limit_of_locked_memory_is_the_process_s_own(tmp_path, stand_in):
    code = "import resource; resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536)); "
    assert run_rank(tmp_path, stand_in, code=code) == 0
    assert read(tmp_path).measures.memlock == 65536


@pytest.mark.parametrize(
    ("environment", "first"),
    [({}, True), ({"SLURM_LOCALID": "0"}, True), ({"SLURM_LOCALID": "0", "MPI_LOCALRANKID": "1"}, False)],
)
def test_the_first_rank_of_a_node(environment, first):
    assert probe.first_of_node(environment) is first


def test_a_library_that_ends_the_process_leaves_a_record_of_where(tmp_path, stand_in):
    assert run_rank(tmp_path, stand_in, STAND_IN_ABORTS="1") != 0
    record = read(tmp_path)
    assert record.stage == rank_record.STARTING
    assert record.library.identity == elf.identity(stand_in)
    assert "no provider" in json.loads(recorded(tmp_path, "probe-1.log"))


@pytest.mark.thorough
def test_a_probe_that_is_asked_to_end_leaves_its_output(tmp_path, stand_in):
    """As at a time limit: the launcher signals the rank and its child. The job's home goes too."""
    home = tmp_path / "home"
    home.mkdir()
    more = f"False, {str(home)!r}"
    code = "import os, signal; os.setsid(); from deployer.site.rank import mpi; "
    code += "mpi.Library.meet = lambda self: (os.write(1, b'hangs\\n'), os.killpg(0, signal.SIGTERM)); "
    assert run_rank(tmp_path, stand_in, code=code, more=more) == -signal.SIGTERM
    assert not home.exists()
    assert read(tmp_path).stage == rank_record.STARTING
    assert json.loads(recorded(tmp_path, "probe-1.log")).endswith("hangs\n")


def test_a_job_without_mpi_starts_none(tmp_path, stand_in):
    assert run_rank(tmp_path, stand_in, more="True, None", STAND_IN_ABORTS="1", SLURM_NTASKS="4") == 0
    record = read(tmp_path)
    assert (record.stage, record.library, record.reason) == (rank_record.DONE, None, None)
    assert (record.rank, record.size) == (1, 4)  # the launcher's
    assert evidence.parse_cpus(record.cpus) == os.sched_getaffinity(0)


def test_no_library_is_told_with_the_loader_s_reason(tmp_path):
    assert run_rank(tmp_path, "libmpi-none.so.99") == 0
    record = read(tmp_path)
    assert record.library is None
    assert "libmpi-none.so.99: cannot open shared object file" in record.reason
