"""Batch systems besides Slurm: Grid Engine, OpenPBS, and hosts that ssh reaches, with both launchers on two nodes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import PYTHON, ROOT, WORKSPACE, Site
from tests.lab import apptainer, gridengine, openpbs

#: Of Intel MPI and of Open MPI.
LIBRARIES = {"": "Intel(R) MPI Library 2021.15", "-openmpi": "Open MPI v5.0.11"}
#: Of runtimes that the lab's own profile does not name.
RUNTIMES = ("-apptainer", "-podman")
KINDS = {
    "gridengine": {"parallel_environment": gridengine.ENVIRONMENT},
    "hosts": {"hosts": ["cn1", "cn2"]},
    "pbs": {"queue": "workq"},
}
SYSTEMS = {"gridengine": gridengine, "pbs": openpbs}
PBS = pytest.param("pbs", marks=[pytest.mark.slow, pytest.mark.needs("openpbs")])

SUM = """
import json, os
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
if world.rank == 0:
    with open(os.environ["DEPLOYER_RESULT"], "w") as stream:
        json.dump({"sum": total}, stream)
"""
#: Says goodbye when it is asked to end.
GOODBYE = """
import signal, sys, time
from mpi4py import MPI
def goodbye(number, frame):
    open(f"/deployer/job/goodbye-{MPI.COMM_WORLD.rank}", "w").close()
    sys.exit(1)
signal.signal(signal.SIGTERM, goodbye)
open(f"/deployer/job/ready-{MPI.COMM_WORLD.rank}", "w").close()
while True:
    time.sleep(0.1)
"""
_SSHD = """
set -e
mkdir -p /run/sshd
cd "$(mktemp -d)"
ssh-keygen -q -t ed25519 -N '' -f key
printf '%s\\n' "HostKey $PWD/key" "PidFile /run/sshd.pid" "UsePAM no" "AllowUsers alice" >config
/usr/sbin/sshd -f "$PWD/config"
echo "$(uname -n) $(cat key.pub)" >>/home/alice/.ssh/known_hosts
"""
_KEY = """
ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519 && cat ~/.ssh/id_ed25519.pub >>~/.ssh/authorized_keys
touch ~/.ssh/known_hosts
"""


@pytest.fixture(scope="module")
def image(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a bundle without a job on the lab, packed for each kind of site with each MPI."""
    folder = tmp_path_factory.mktemp("batch")
    slurm = folder / "lab-slurm.yaml"
    slurm.write_text("{format: 1, name: lab-slurm, extends: lab, source: {kind: document, where: this test}}")
    options: list[str | Path] = ["--site", slurm]
    for kind, place in KINDS.items():
        for more in [*LIBRARIES, *RUNTIMES]:
            base = f"lab{more}" if more in LIBRARIES else "lab"
            record = yaml.safe_load((ROOT / "site_profiles" / f"{base}.yaml").read_text())
            if more in RUNTIMES:
                record.update(policy={"runtimes": [more[1:]]}, runtimes={more[1:]: {}})
            record.update(name=f"lab-{kind}{more}", scheduler={"kind": kind})
            batch = record["partitions"]["batch"]
            del batch["launcher"], batch["pmi"]
            batch.update(place)
            if kind == "pbs":
                record["scheduler"]["gpu_request"] = "ngpus"
                batch["node"]["gpus"] = {"count": 2}
            profile = folder / f"{record['name']}.yaml"
            profile.write_text(yaml.safe_dump(record))
            options += ["--site", profile]
    named = ["--image", "deployer/hello-mpi:1.0.0", "--name", "batch", "--version", "1"]
    site.cli("pack", *named, *options, "-o", folder / "batch.tar")
    site.cli("push", folder / "batch.tar", "lab", "--without-plan", "--ssh-config", site.lab.ssh_config)
    yield "batch"
    site.cli("remove", *site.options, "batch")


@pytest.fixture(scope="module", params=["gridengine", pytest.param("hosts", marks=pytest.mark.slow), PBS])
def kind(request: pytest.FixtureRequest, site: Site) -> Iterator[str]:
    """Yield the kind of a site, as which the lab now is."""
    if request.param in SYSTEMS:
        SYSTEMS[request.param].start(site.lab)
        yield request.param
        site.alice(f"rm -rf {WORKSPACE}/jobs/batch-*")  # nobody can be asked about them any more
        SYSTEMS[request.param].stop(site.lab)
        return
    site.alice(_KEY)
    for node in ("cn1", "cn2"):
        site.lab.sh(node, "root", _SSHD).check(f"start sshd on {node}")
    yield request.param
    for node in ("cn1", "cn2"):
        site.lab.sh(node, "root", "kill $(cat /run/sshd.pid)").check(f"stop sshd on {node}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("more", ["", pytest.param("-openmpi", marks=pytest.mark.slow)])
def test_a_job_with_proof_on_two_nodes(site: Site, image: str, kind: str, more: str) -> None:
    plan = f"lab-{kind}{more}"
    result = site.run("--plan", plan, "--nodes", "2", "--", "python3", "-c", SUM, bundle=image)
    assert (result["site"], result["world_size"], result["exit_code"], result["findings"]) == (plan, 2, 0, [])
    assert sorted(rank["host"] for rank in result["ranks"]) == ["cn1", "cn2"]
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith(LIBRARIES[more])
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
        assert rank["mpi_seen_in"] == "payload"
    assert result["payload"] == {"sum": 3}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("more", RUNTIMES)
def test_a_job_of_each_runtime_on_two_nodes(site: Site, image: str, kind: str, more: str) -> None:
    apptainer.install(site.lab)
    try:
        plan = f"lab-{kind}{more}"
        result = site.run("--plan", plan, "--nodes", "2", "--", "python3", "-c", SUM, bundle=image)
    finally:
        apptainer.remove(site.lab)
    assert (result["site"], f"-{result['runtime']}", result["world_size"], result["findings"]) == (plan, more, 2, [])
    assert sorted(rank["host"] for rank in result["ranks"]) == ["cn1", "cn2"]
    assert {rank["mpi_identity"] == rank["host_mpi_identity"] for rank in result["ranks"]} == {True}
    assert result["payload"] == {"sum": 3}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("how", "code"), [("cancel", "job.stopped"), ("limit", "job.time-limit")])
@pytest.mark.parametrize("more", sorted(LIBRARIES))
def test_all_ranks_say_goodbye_and_leave_nothing(
    site: Site, image: str, kind: str, more: str, how: str, code: str
) -> None:
    submit = ["--plan", f"lab-{kind}{more}", "--nodes", "2", "--time", "00:05:00" if how == "cancel" else "00:01:00"]
    site.cli("run", *site.options, image, *submit, "--", "python3", "-c", GOODBYE)
    job = site.alice(f"basename $(ls -td {WORKSPACE}/jobs/* | head -n 1)").strip()
    folder = site.lab.home / "alice/deployer/jobs" / job
    wait(lambda: len(list(folder.glob("ready-*"))) == 2)
    assert "RUNNING" in site.tool("status", job)
    if how == "cancel":
        site.tool("cancel", job)
    wait(lambda: "RUNNING" not in site.tool("status", job) and "DELETED" not in site.tool("status", job))
    assert sorted(path.name for path in folder.glob("goodbye-*")) == ["goodbye-0", "goodbye-1"]
    result = site.result()
    assert result["exit_code"] != 0
    assert code in [finding["code"] for finding in result["findings"]]
    for node in ("cn1", "cn2"):
        wait(lambda node=node: not site.lab.sh(node, "root", "pgrep -u alice -f deployer/job").stdout)


def wait(found: object, seconds: float = 90) -> None:
    """Wait until a function says that something is so."""
    assert callable(found)
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until
        time.sleep(0.5)


@pytest.mark.timeout(600)
def test_each_start_of_a_script_has_a_folder_of_its_own(site: Site, image: str, kind: str) -> None:
    """One that is submitted again, and each task of an array; they have the ids that the batch system shows."""
    if kind != "gridengine":
        pytest.skip("hosts have no ids; OpenPBS: see tests/unit/site/run/test_again.py")
    jobs = site.lab.home / "alice" / "deployer" / "jobs"
    before = set(jobs.glob("*"))
    site.run("--plan", f"lab-{kind}", "--nodes", "1", "--", "echo", "ran", bundle=image)
    (first,) = set(jobs.glob("*")) - before
    script = f"{WORKSPACE}/jobs/{first.name}/job.sh"
    again = site.alice(f"qsub -terse {script}").strip()
    array = site.alice(f"qsub -terse -t 1-2 {script}").strip().partition(".")[0]

    def ended() -> list[Path]:
        results = [path.parent for path in jobs.glob("batch-*/result.json") if path.parent not in before]
        return [path for path in results if json.loads((path / "result.json").read_text())["exit_code"] == 0]

    wait(lambda: len(ended()) == 4, 240)
    ids = {(folder / "job_id").read_text().strip() for folder in ended()}
    assert ids == {(first / "job_id").read_text().strip(), again, f"{array}.1", f"{array}.2"}
    assert [(folder / "output.log").read_text() for folder in ended()] == ["ran\n"] * 4
    assert not list(jobs.glob("batch-*/batch-system*"))
    assert f"({array}.2)" in site.tool("cancel", f"{array}.2")  # has just ended, or is ending


@pytest.mark.timeout(600)
def test_a_failed_task_of_an_array_is_repeated_alone(site: Site, image: str, kind: str) -> None:
    program = "echo $DEPLOYER_TASK of $DEPLOYER_TASKS >>ran; [ $DEPLOYER_TASK != 4 ] || [ -e go ]"
    words = ["--plan", f"lab-{kind}", "--nodes", "1", "--array", "0,4,7%2", "--", "sh", "-c", program]
    if kind == "hosts":
        assert "need a batch system with arrays" in site.cli("run", *site.options, image, *words, code=3).stderr
        return
    group = json.JSONDecoder().raw_decode(site.cli("run", *site.options, image, "--json", *words).stdout)[0]
    assert "3 tasks" not in site.cli("status", *site.options, group["job"], "--wait", code=1).stderr
    folder = site.lab.home / "alice" / "deployer" / "jobs" / group["job"]
    (folder / "4" / "go").touch()
    again = json.loads(site.cli("retry", *site.options, group["job"], "--json").stdout)
    assert again["tasks"] == [4]
    assert "3 done" in site.cli("status", *site.options, group["job"], "--wait").stdout
    for number in (0, 4, 7):
        result = json.loads((folder / str(number) / "result.json").read_text())
        assert (result["task"], result["exit_code"]) == (number, 0)
        assert (folder / str(number) / "ran").read_text() == f"{number} of 3\n" * (2 if number == 4 else 1)
    assert not list(folder.glob("*/batch-system*"))


def test_what_the_site_does_not_have_is_refused_in_its_own_words(site: Site, image: str, kind: str) -> None:
    more = ["--nodes", "3"] if kind == "hosts" else ["--nodes", "2", "--partition", "nope"]
    said = {
        "hosts": "3 nodes are asked for, but the plan of lab-hosts names 2 hosts",
        "gridengine": 'job requests unknown queue "nope"',
        "pbs": "qsub: Unknown queue",
    }[kind]
    shown = site.cli("run", *site.options, image, "--plan", f"lab-{kind}", *more, "--", "true", code=3)
    assert said in shown.stderr


#: Hides Slurm, which the lab has too.
_ALONE = (
    "mkdir -p alone && printf '#!/bin/sh\\nexit 1\\n' >alone/sinfo && chmod +x alone/sinfo && PATH=$PWD/alone:$PATH"
)


@pytest.mark.slow
def test_queues_are_captured(site: Site, image: str, kind: str) -> None:
    if kind not in SYSTEMS:
        pytest.skip("it has no queues")
    said = site.alice(
        f"{_ALONE} {PYTHON} {WORKSPACE}/deployer.pyz capture --partitions all -o captured.json; rm -r alone"
    )
    assert "the login node and 1 of 1 partition\n" in said
    record = json.loads((site.lab.home / "alice" / "captured.json").read_text())
    scheduler = record["scheduler"]
    assert (scheduler["kind"], scheduler["version"].partition(".")[0]) == (kind, {"gridengine": "8", "pbs": "23"}[kind])
    (batch,) = record["partitions"].values()
    assert (batch["nodes"], batch.get("parallel_environment")) == (2, KINDS[kind].get("parallel_environment"))
    assert batch["source"]["where"] in ("cn1", "cn2")  # captured there by a job
    if kind == "pbs":  # what each node says that it has
        assert (batch["gpu_request"], batch["node"]["gpus"]) == ("ngpus", {"count": 2})
    assert set(record["mpi"]) == {"intel-2021.15", "openmpi-5.0.11"}


#: Counts steps, saves them when it is warned, and continues from there.
STEPS = """
import json, os, signal, sys, time
from mpi4py import MPI
world, warned = MPI.COMM_WORLD, []
signal.signal(signal.SIGUSR1, lambda *_: warned.append(1))
path = os.environ["DEPLOYER_CHECKPOINT"] + "/steps"
begun = steps = int(open(path).read()) if os.path.exists(path) else 0
while steps < 300:  # 30 s of work, and a warning after 20 s
    time.sleep(0.1)
    steps += 1
    if world.allreduce(len(warned)):
        if world.rank == 0:
            open(path, "w").write(str(steps))
        world.Barrier()
        sys.exit(85)
if world.rank == 0:
    json.dump({"steps": steps, "begun": begun}, open(os.environ["DEPLOYER_RESULT"], "w"))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["slurm", "gridengine", PBS])
def test_jobs_continue_one_that_saved_its_state(site: Site, image: str, kind: str, name: str) -> None:
    if kind != ("gridengine" if name == "slurm" else name):
        pytest.skip("once is enough")
    limit = ["--nodes", "2", "--time", "00:03:00", "--warn", "160", "--again", "20"]
    last = site.run("--plan", f"lab-{name}", *limit, "--", "python3", "-c", STEPS, bundle=image)
    assert (last["exit_code"], last["findings"]) == (0, [])
    assert last["payload"]["steps"] == 300
    assert last["payload"]["begun"] > 0


@pytest.mark.slow
@pytest.mark.needs("openpbs")
@pytest.mark.timeout(600)
def test_pbs_gives_each_node_the_gpus_that_a_job_requests(site: Site, image: str, kind: str) -> None:
    if kind != "pbs":
        pytest.skip("Slurm's and Grid Engine's words have golden scripts")
    more = ["--plan", "lab-pbs", "--nodes", "2"]
    site.run(*more, "--gpus", "1", "--", "true", bundle=image)
    job = site.alice(f"cat $(ls -td {WORKSPACE}/jobs/* | head -n 1)/job_id").strip()
    shown = site.alice(f"qstat -x -f {job}").replace("\n\t", "")
    assert "Resource_List.ngpus = 2" in shown
    [placed] = [line for line in shown.splitlines() if line.strip().startswith("exec_vnode = ")]
    assert placed.count(":ngpus=1") == 2
    said = site.cli("run", *site.options, image, *more, "--gpus", "3", "--", "true", code=3).stderr
    assert "3 GPUs per node are asked for, but a node of batch of lab-pbs has 2" in said
