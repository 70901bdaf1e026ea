"""A rank of an image without Python is seen from outside: its MPI library, its place in the world, its CPUs."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from deployer.contract.proof import evidence
from deployer.contract.proof.payload import PayloadRecord
from deployer.site.proof import rank_record
from deployer.site.rank import launched, payload_monitor
from deployer.site.rank.observed import outside
from deployer.system import elf
from tests.evidence import recorded

CODE = "import ctypes, sys, time; ctypes.CDLL(sys.argv[1]); time.sleep(0.6)"


def watched(folder, command, library="", **environment):
    """Run a rank that is watched from outside, and return its record."""
    words = ["--out", str(folder), "--outside", library, "--", *command]
    code = "import sys; from deployer.site.rank import rank, payload_monitor as watch; "
    code += "watch._LAST_WORDS = 0; sys.exit(rank.main(sys.argv[1:]))"
    env = dict(PATH=os.environ["PATH"], PYTHONPATH=os.getcwd(), **environment)
    subprocess.run([sys.executable, "-c", code, *words], env=env, stderr=subprocess.PIPE, timeout=30, check=False)
    return evidence.read(
        PayloadRecord, recorded(folder, "payload-%d.json" % launched.task_number(environment)).encode(), "it"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("host", [True, False])
def test_a_rank_shows_its_library_its_place_and_its_cpus(tmp_path, stand_in, host):
    copy = tmp_path / "libmpi.so.12"
    shutil.copyfile(stand_in, str(copy))  # as the container has it: what is there is not loaded out here
    library = stand_in if host else ""
    command = ["sh", "-c", '"$@"; :', "sh", sys.executable, "-c", CODE, str(copy)]
    given = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "0", "OMP_NUM_THREADS": "3"}
    found = watched(tmp_path, command, library, **given)
    (mapped,) = found.libraries
    assert (mapped.path, mapped.identity) == (str(copy), elf.identity(stand_in))
    assert mapped.says == ("Stand-in MPI 1.0" if host else None)
    cpus = rank_record.render_numbers(os.sched_getaffinity(0))
    assert found.outside._asdict() == {
        "rank": 1, "size": 2, "alone": None, "static": None, "threads": 3, "cpus": cpus, "has_mpi": True
    }  # fmt: skip


@pytest.mark.thorough
def test_a_payload_that_leaves_its_runtime_is_seen(tmp_path, stand_in):
    """As podman's, whose conmon forks twice."""
    command = ["sh", "-c", '(setsid "$@" &); sleep 1', "sh", sys.executable, "-c", CODE, stand_in]
    found = watched(tmp_path, command, PMI_RANK="0", PMI_FD="0")
    assert [each.path for each in found.libraries] == [stand_in]
    assert found.outside.has_mpi


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["conmon", "program"])
def test_the_warning_is_not_for_the_runtime_s_own_processes(tmp_path, monkeypatch, name):
    program = shutil.copy(os.path.realpath(sys.executable), str(tmp_path / name))
    code = "import signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7)); print(1, flush=True); "
    env = dict(os.environ, PYTHONHOME=sys.base_prefix)
    words = [program, "-c", code + "time.sleep(1)"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        payload_monitor._Warning(child.pid, 0, outside=True).before(1)
    assert child.returncode == (0 if name == "conmon" else 7)


@pytest.mark.thorough
def test_a_rank_without_mpi_has_cpus_alone(tmp_path):
    found = watched(tmp_path, ["sleep", "1"])
    assert (found.libraries, found.outside.has_mpi, found.outside.alone) == ([], False, None)
    assert evidence.parse_cpus(found.outside.cpus) == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("library", "environment", "more", "reason"),
    [
        ("libmpi.so.12", {"PMI_FD": "7", "PMI_RANK": "0"}, "", None),
        ("libmpi.so.12", {"PMI_FD": "8", "PMI_RANK": "0"}, "", "PMI_FD names descriptor 8, which is not open"),
        ("libmpi.so.12", {"PMIX_RANK": "0", "SLURM_PROCID": "0"}, "", "libmpi.so.12 finds its launcher by PMI, and"),
        ("libmpi.so.12", {"PMIX_RANK": "0"}, "/usr/lib/libpmix.so.2", None),
        ("libmpi.so.12", {"SLURM_PROCID": "0"}, "/opt/cray/lib/libpmi2.so.0", None),
        ("libmpi.so.12", {}, "/opt/cray/lib/libpmi2.so.0", "finds its launcher by PMI"),
        ("libmpich.so.12", {}, "", "libmpich.so.12 finds"),
        ("libmpi_cray.so.12", {"PMI_PORT": "cn1:9"}, "", None),
        ("libmpi.so.40", {"PMIX_RANK": "1"}, "/usr/lib/libpmix.so.2", None),
        ("libmpi.so.40", {"PMI_RANK": "1", "PMI_FD": "7"}, "/usr/lib/libpmix.so.2", "PMIX_RANK is not"),
        ("libmpi.so.40", {"PMI_RANK": "1", "PMI_FD": "7"}, "/usr/lib/libpmi2.so.0", None),
        ("libmpi-1a2b3c4d.so.40.1", {}, "", "PMIX_RANK is not"),
        ("libmpi_other.so.3", {}, "", None),
    ],
)
def test_who_cannot_find_the_others(library, environment, more, reason):
    maps = f"7f00-7f01 r-xp 00000000 08:01 5 {more}\n" if more else ""
    said = outside.alone(environment, maps, ["0", "1", "2", "7"], library)
    assert said is None if reason is None else reason in said


@pytest.mark.thorough
def test_a_program_with_mpi_inside_is_told_from_one_that_loads_it(tmp_path):
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    call = "int MPI_Init(void *, void *); int main(void) { return MPI_Init(0, 0); }\n"
    (tmp_path / "call.c").write_text(call)
    stub = "int MPI_Init(void *a, void *b) { return a != b; }\n"
    (tmp_path / "mpi.c").write_text(stub + "int PMPI_Init(void *a, void *b) { return a != b; }\n")
    (tmp_path / "stub.c").write_text(stub)
    for words in (
        ["-shared", "-fPIC", "mpi.c", "-o", "libmpi.so.12"],
        ["call.c", "-o", "loads", "-L.", "-l:libmpi.so.12"],
        ["call.c", "mpi.c", "-o", "inside"],
        ["call.c", "stub.c", "-o", "serial"],
    ):
        subprocess.run(["gcc", *words], cwd=str(tmp_path), check=True, timeout=60)
    assert outside.has_mpi(str(tmp_path / "inside"))
    assert not outside.has_mpi(str(tmp_path / "loads"))
    assert not outside.has_mpi(str(tmp_path / "serial"))  # stubs, for a build that is serial on purpose
    assert not outside.has_mpi(sys.executable)


@pytest.mark.thorough
def test_a_record_without_it_is_as_before(tmp_path):
    code = "import sys; from deployer.site.rank import rank; sys.exit(rank.main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "--out", str(tmp_path), "--", "true"]
    subprocess.run(words, env=dict(os.environ, PYTHONPATH=os.getcwd(), SLURM_PROCID="0"), check=True, timeout=30)
    assert "outside" not in json.loads(recorded(tmp_path, "payload-0.json"))
