"""The ladder with a fake Slurm and a fake ch-run on PATH: each rung breaks once, and nothing above it is climbed."""

import json
import os
import re
import types

import pytest

from deployer.cli.site import main
from deployer.contract.base import json_records
from deployer.contract.base.errors import Refused, UsageError
from deployer.site.doctor import climb, cluster, here, ladder
from deployer.site.jobs.schedulers import SCHEDULERS
from tests import running as made

SINFO = "batch*|up|2|idle"
GOOD = {
    "schema": "deployer.result",
    "format": 1,
    "min_reader": 1,
    "exit_code": 0,
    "world_size": 2,
    "findings": [],
    "ranks": [
        {
            "host": "cn%d" % (number + 1),
            "mpi_library": "Intel(R) MPI Library 2021.15",
            "mpi_identity": "build-id:aa",
            "host_mpi_identity": "build-id:aa",
            "provider": "tcp",
            "allreduce": {"latency_us": 20.0 + number, "bytes": 1048576, "bandwidth_mb_s": 300.0 - number},
        }
        for number in range(2)
    ],
    "payload": {"horovod": "0.28.1", "framework": "tensorflow 2.15.1", "size": 2, "sum": 3.0},
}


def finding(code):
    return {"code": code, "severity": "error", "subject": "job", "message": "it is so", "remedy": "mend it"}


class Site:
    """A site with one image; ``say`` changes what its programs answer, ``doctor`` climbs."""

    def __init__(self, folder, monkeypatch, capsys):
        self.capsys = capsys
        self.programs = folder / "bin"
        self.programs.mkdir()
        monkeypatch.setenv("PATH", f"{self.programs}:/usr/bin:/bin")
        self.store = made.store(folder / "root")
        os.makedirs(os.path.join(self.store.images, "aaaa", "wheels", "lib", "horovod"))
        self.folder = folder
        root = os.stat(os.path.join(self.store.images, "aaaa", "rootfs"))
        made.program(self.programs, "ch-run", "echo root %d %d" % (root.st_dev, root.st_ino))
        made.program(self.programs, "scancel", f'echo "$@" >> {folder}/cancelled')
        self.say("sinfo", SINFO)
        self.say("squeue", "7|COMPLETED|0:01|cn1|None")
        self.result(GOOD)
        monkeypatch.setattr(here.machine, "user_namespaces", lambda tools: True)

    def say(self, program, text):
        made.program(self.programs, program, f"cat <<'EOF'\n{text}\nEOF\n")

    def result(self, record, log=""):
        (self.folder / "record").write_text(json.dumps(record))
        (self.folder / "log").write_text(log)
        lines = 'd=$(dirname "$2"); cp %s/record "$d/result.json"; cp %s/log "$d/output.log"; echo 7'
        made.program(self.programs, "sbatch", lines % (self.folder, self.folder))

    def doctor(self, *words):
        """Return exit code, the states by rung, and what was printed on both streams."""
        code = main.main(["doctor", "--root", self.store.root, *words])
        printed = self.capsys.readouterr()
        steps = {}
        for line in printed.out.splitlines():
            state = line.split()[0]
            if state in (climb.OK, climb.SKIPPED, climb.BROKEN):
                steps[line[9:19].strip()] = state
        long = [line.split() for line in printed.out.splitlines() if len(line) > 80]
        assert words or all(len(alone) == 1 for alone in long)  # a path is not broken
        return code, steps, re.sub(r"\n {20}", " ", printed.out), printed.err


@pytest.fixture
def healthy(tmp_path, monkeypatch, capsys):
    return Site(tmp_path, monkeypatch, capsys)


def test_a_healthy_site(healthy):
    code, steps, out, err = healthy.doctor()
    assert (code, err) == (0, "")
    assert list(steps) == [name for name, _ in ladder.RUNGS]
    assert set(steps.values()) == {climb.OK}
    assert "hello:1, " in out
    assert "its container sees its own root" in out
    assert "2 ranks on cn1, cn2: Intel(R) MPI Library 2021.15, the site's own; Allreduce 21 us, 299 MB/s" in out
    assert "tcp, as the plan asks" in out
    assert "Horovod 0.28.1 with tensorflow 2.15.1: allreduce over 2 ranks is right" in out
    assert os.listdir(healthy.store.jobs) == []  # nothing of jobs that went well is left


def broken(found, rung, code, *words):
    """Assert that the climb ended at ``rung`` with this exit code and one line that has these words."""
    got, steps, _, err = found
    names = [name for name, _ in ladder.RUNGS]
    assert [name for name in steps if steps[name] == climb.BROKEN] == [rung]
    assert list(steps) == names[: names.index(rung) + 1]
    assert got == code
    first, second, third = err.splitlines()
    assert first.startswith(f"deployer: error: {rung}: ")
    assert second.startswith("hint: ")
    assert third.startswith("more: python3 deployer.pyz explain ")
    for word in words:
        assert word in err


def test_no_user_namespaces(healthy, monkeypatch):
    def none(tools):
        tools.note("user namespaces: No space left on device")
        return False

    monkeypatch.setattr(here.machine, "user_namespaces", none)
    broken(healthy.doctor(), "kernel", 3, "No space left on device", "max_user_namespaces")
    native = made.START_OPTION._replace(name="native-folder", runtime="native")  # no way for a container
    plan = made.PLAN._replace(start_options=[made.START_OPTION, native])
    made.write(os.path.join(healthy.store.images, "aaaa", "plans", "lab.json"), plan.record())
    broken(healthy.doctor(), "kernel", 3, "No space left on device")


def test_no_user_namespaces_on_the_login_node_alone(healthy, monkeypatch):
    """What the plan knows of the nodes counts for jobs; a container of this host's own cannot be started."""

    def none(tools):
        tools.note("user namespaces: No space left on device")
        return False

    monkeypatch.setattr(here.machine, "user_namespaces", none)
    plan = made.PLAN._replace(namespaces=True)
    made.write(os.path.join(healthy.store.images, "aaaa", "plans", "lab.json"), plan.record())
    code, steps, out, err = healthy.doctor()
    assert (code, err, set(steps.values())) == (0, "", {climb.OK})
    assert "no user namespaces here (No space left on device); the nodes have them" in out
    assert "no container was started here: " in out


def test_no_runtime(healthy, monkeypatch):
    os.unlink(str(healthy.programs / "ch-run"))
    plan = made.PLAN._replace(modules=[])
    made.write(os.path.join(healthy.store.images, "aaaa", "plans", "lab.json"), plan.record())
    monkeypatch.setenv("PATH", str(healthy.programs))
    broken(healthy.doctor(), "runtime", 7, "no ch-run in PATH", "module avail charliecloud")


def test_no_image(healthy):
    broken(healthy.doctor("other"), "image", 2, "no image other", "hello:1")


def test_a_container_that_sees_the_host(healthy):
    made.program(healthy.programs, "ch-run", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    broken(healthy.doctor(), "image", 4, "another root")


def test_a_container_that_does_not_start(healthy):
    made.program(healthy.programs, "ch-run", "echo 'error: cannot bind' >&2; exit 1")
    broken(healthy.doctor(), "image", 4, "does not start: error: cannot bind")


@pytest.mark.thorough
def test_a_scheduler_that_is_silent_a_partition_that_is_down(healthy):
    error = "slurm_load_partitions: Unable to contact slurm controller (connect failure)"
    made.program(healthy.programs, "sinfo", f"echo '{error}' >&2; exit 1")
    broken(healthy.doctor(), "scheduler", 5, "Unable to contact")
    healthy.say("sinfo", "batch*|down|2|idle")
    broken(healthy.doctor(), "scheduler", 3, "takes no jobs")
    healthy.say("sinfo", "batch*|up|2|down*")
    broken(healthy.doctor(), "scheduler", 8, "no node that is up", "sinfo -R")
    healthy.say("sinfo", "")
    broken(healthy.doctor(), "scheduler", 3, "no partition batch")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "rung", "exit_code"),
    [
        ("mpi.singletons", "one node", 3),
        ("probe.unfinished", "one node", 3),
        ("mpi.provider", "fabric", 3),
        ("limits.memlock", "fabric", 3),
        ("itex.inactive", "horovod", 3),
        ("payload.failed", "horovod", 1),
    ],
)
def test_a_job_breaks_the_rung_that_its_finding_is_about(healthy, code, rung, exit_code):
    healthy.result(dict(GOOD, findings=[finding(code)]), "ImportError: no libfoo\nsrun: error: cn1\n")
    found = healthy.doctor()
    broken(found, rung, exit_code, "it is so")
    if code == "payload.failed":
        assert "ImportError: no libfoo" in found[3]
    assert len(os.listdir(healthy.store.jobs)) > 0  # what is needed to look closer


@pytest.mark.thorough
def test_a_job_that_waits_too_long_is_cancelled(healthy):
    healthy.say("squeue", "7|PENDING|0:00||Priority")
    broken(healthy.doctor("--patience", "0.1"), "one node", 8, "PENDING Priority", "--patience")
    assert (healthy.folder / "cancelled").read_text() == "7\n"


def test_a_job_that_leaves_nothing(healthy, monkeypatch):
    monkeypatch.setattr("deployer.site.jobs.jobs._LAG", 0)
    made.program(healthy.programs, "sbatch", 'echo "no such folder" > "$(dirname "$2")/output.log"; echo 7')
    healthy.say("squeue", "7|NODE_FAIL|0:01|cn1|None")
    broken(healthy.doctor(), "one node", 1, "NODE_FAIL", "no such folder")


def test_a_partition_of_one_node_and_an_image_without_horovod(healthy):
    healthy.say("sinfo", "batch*|up|1|idle")
    _, steps, out, _ = healthy.doctor()
    assert (steps["two nodes"], steps["fabric"], steps["horovod"]) == ("skipped", "ok", "ok")
    assert "the partition has one node" in out
    os.rmdir(os.path.join(healthy.store.images, "aaaa", "wheels", "lib", "horovod"))
    code, steps, out, _ = healthy.doctor()
    assert (code, steps["horovod"]) == (0, "skipped")


def test_an_image_without_python_is_no_fault_of_the_site(healthy, monkeypatch):
    """No job could prove anything, but what `run` checks before it submits is checked."""
    healthy.store = made.store(healthy.folder / "other", image=made.IMAGE._replace(python=None))
    made.program(healthy.programs, "sbatch", "exit 9")
    code, steps, out, _ = healthy.doctor()
    assert (code, steps["scheduler"]) == (0, "ok")
    assert [steps[name] for name in ("one node", "two nodes", "fabric", "horovod")] == ["skipped"] * 4
    assert "doctor NAME tests with another image" in out
    assert os.listdir(healthy.store.jobs) == []

    def drifted(*_):
        raise Refused("mpi.host-drift: this host: its library is another", "make a new plan")

    monkeypatch.setattr(cluster.run, "prepare", drifted)
    broken(healthy.doctor(), "one node", 3, "mpi.host-drift")


def test_a_dry_run_submits_nothing(healthy):
    made.program(healthy.programs, "sbatch", "exit 9")
    code, steps, out, _ = healthy.doctor("--dry-run")
    assert (code, steps["scheduler"], steps["one node"], steps["fabric"]) == (0, "ok", "skipped", "skipped")
    assert f"sbatch {healthy.store.jobs}/" in out


def test_the_record(healthy):
    code, _, out, _ = healthy.doctor("--json")
    fields = json_records.loads(out.encode(), "doctor", "it")
    assert (code, fields.flag("healthy"), fields.number("exit_code")) == (0, True, 0)
    assert [rung.text("name") for rung in fields.items("rungs")] == [name for name, _ in ladder.RUNGS]
    os.unlink(str(healthy.programs / "sinfo"))
    made.program(healthy.programs, "sinfo", "exit 1")
    code, _, out, err = healthy.doctor("--json")
    fields = json_records.loads(out.encode(), "doctor", "it")
    assert (fields.text("broken"), fields.number("exit_code")) == ("scheduler", code)
    assert fields.items("rungs")[-1].text("hint")
    assert err.startswith("deployer: error: scheduler: ")


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("batch*|up|2|idle\n", (True, 2, 2, "2 idle")),
        ("a|up|5|idle\nb*|up|1|mixed\nb*|up|2|down*\n", (True, 3, 1, "1 mixed, 2 down*")),
        ("b|up|1|allocated\nb|up|3|idle~\nb|up|1|idle*\nb|up|1|drained\n", (True, 6, 4, None)),
        ("b|inact|1|idle\n", (False, 1, 1, "1 idle")),
        ("warning: reboot\n", None),
    ],
)
def test_what_slurm_says_of_a_partition(out, expected):
    slurm = SCHEDULERS["slurm"]
    assert slurm.queue("b")[-1] == "--partition=b"
    found = slurm.parse_queue(0, out, "")
    assert (found and found[:3]) == (expected and expected[:3])
    if expected and expected[3]:
        assert found.says == expected[3]


def test_a_plan_for_a_batch_system_that_this_deployer_does_not_know():
    with pytest.raises(UsageError, match="knows no batch system 'nqs'"):
        here.scheduler(types.SimpleNamespace(plan=made.PLAN._replace(scheduler="nqs")))
