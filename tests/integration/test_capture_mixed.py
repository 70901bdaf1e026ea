"""capture HOST of a site with five partitions and three kinds of nodes: each field is what Slurm was told."""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.plan import make_plan
from deployer.contract.base.json_records import Record
from deployer.contract.site import layout
from deployer.contract.site.plan import MPICH_ABI, Plan
from deployer.site.capture import node
from deployer.site.capture.tools import Tools
from deployer.site.jobs.schedulers.interface import JobRequest
from deployer.site.jobs.schedulers.slurm import Slurm
from deployer.site.run.job_script.submission import SubmissionOptions, ask
from tests import mixed
from tests.integration.conftest import Cli
from tests.lab import Lab, record_gridengine, record_pbs, roots

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first run makes the nodes' root
#: Facts of a node that only its kernel shows.
_KERNEL = {"numa_domains", "memory_total_mb", "cpu"}


@pytest.fixture(params=["bookworm", "trixie", "sid"])
def site(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Yield a lab of Slurm 22.05, 24.11 or the newest one."""
    root = Path("/") if request.param == "bookworm" else roots.node(request.param)
    lab = Lab(f"pytest-{os.getpid()}-mixed", root=root, mixed=True, say=lambda line: None)
    try:
        lab.up(nodes=len(mixed.NODES))
        yield lab
    finally:
        lab.down(purge=True)


def test_a_captured_profile_is_the_truth_and_jobs_get_what_it_says(cli: Cli, site: Lab, tmp_path: Path) -> None:
    output = tmp_path / "site.yaml"
    cli("capture", "login1", "--ssh-config", str(site.ssh_config), "-o", str(output))
    profile = profiles.load(str(output))
    assert next(iter(profile.partitions)) == "batch"
    assert set(profile.partitions) == set(mixed.TRUTH)
    for name, expected in mixed.TRUTH.items():
        found = profile.partitions[name].model_dump(mode="json", exclude_defaults=True)
        node = {key: value for key, value in found["node"].items() if key not in _KERNEL}
        assert node == expected["node"], name
        others = {key: value for key, value in expected.items() if key != "node"}
        assert {key: found.get(key) for key in _asked()} == {key: others.get(key) for key in _asked()}, name
    assert any(mixed.CLOSED in note for note in profile.notes)
    job = _submitted(site, make_plan(profile, "tiny:1", [MPICH_ABI], "accelerated"))
    assert re.search(r"TresPerNode=gres[:/]gpu:a100:4", job)
    assert "mem=15000M" in job
    assert "OverSubscribe=NO" in job
    assert "mem=4000M" in _submitted(site, make_plan(profile, "tiny:1", [MPICH_ABI], "batch"))  # 2 of 4 CPUs


def _asked() -> set[str]:
    return {key for each in mixed.TRUTH.values() for key in each if key != "node"}


def _submitted(site: Lab, plan: Plan) -> str:
    """Submit what a job of 2 ranks requests, and return what Slurm gave it."""
    laid_out = layout.lay_out(1, 2, 1, plan.node)
    asked = ask(plan, SubmissionOptions(), 1, "00:05:00", {})
    memory = plan.node.memory_mb if asked.exclusive else plan.node.memory_mb // 2
    request = JobRequest(
        "x", "/tmp", "/dev/null", 1, 2, laid_out.asked_cpus, "00:05:00", 300, memory, **asked._asdict()
    )
    words = " ".join(Slurm().directives(request))
    number = site.sh("login1", "alice", f"sbatch --parsable {words} --wrap 'sleep 20'").check("submit").stdout.strip()
    shown = site.sh("login1", "alice", f"sleep 2; scontrol --oneliner show job {shlex.quote(number)}").stdout
    site.sh("login1", "alice", f"scancel {number}")
    assert re.search(r"JobState=(RUNNING|COMPLETED|CONFIGURING)", shown), shown
    return shown


def _captured(start: Callable[[Lab], None], nodes: int, name: str) -> Record:
    """Return what a capture with a job in each partition finds on a lab with another batch system than Slurm."""
    lab = Lab(f"pytest-{os.getpid()}-{name}", root=Path("/"), say=lambda line: None)
    try:
        lab.up(nodes=nodes)
        start(lab)
        (lab.home / "alice" / "deployer.pyz").write_bytes(make_pyz())
        # The lab's Slurm is hidden from the login node and from the jobs.
        hide = "mkdir bin && printf '#!/bin/sh\\nexit 1\\n' >bin/sinfo && chmod +x bin/sinfo"
        lab.sh("login1", "alice", hide + " && echo 'PATH=$HOME/bin:$PATH' >.bash_profile").check("hide Slurm")
        command = "python3 deployer.pyz capture --partitions all -o captured.json"
        lab.sh("login1", "alice", ["bash", "-lc", command], timeout=300).check("capture")
        return json.loads((lab.home / "alice" / "captured.json").read_text())
    finally:
        lab.down(purge=True)


def test_a_captured_grid_engine_is_the_truth() -> None:
    record = _captured(record_gridengine.start, 2, "queues")
    assert record["scheduler"].items() >= {"kind": "gridengine", "version": "8.1.9", "gpu_request": "gpu"}.items()
    assert set(record["partitions"]) == set(mixed.OF_GRID_ENGINE)
    here = node.node(Tools())
    for name, expected in mixed.OF_GRID_ENGINE.items():
        found = record["partitions"][name]
        own = {key: here[key] for key in ("sockets", "cores", "threads_per_core")}  # Grid Engine has no others
        assert {**found["node"], **expected["node"], **own} == found["node"], name
        assert {key: found.get(key) for key in ("nodes", "max_time", "parallel_environment")} == {
            key: expected.get(key) for key in ("nodes", "max_time", "parallel_environment")
        }


@pytest.mark.needs("openpbs")
def test_a_captured_pbs_is_the_truth() -> None:
    record = _captured(record_pbs.start, len(mixed.NODES), "pbs")
    assert record["scheduler"].items() >= {"kind": "pbs", "version": "23.06.06"}.items()
    assert list(record["partitions"]) == list(mixed.OF_PBS)
    assert set(mixed.PBS_CLOSED) <= set(record["notes"])
    here = node.node(Tools())
    for name, expected in mixed.OF_PBS.items():
        found = record["partitions"][name]
        assert found["node"] == {**here, **expected["node"]}, name  # each job ran, on a node with the captured shape
        asked = {key for each in mixed.OF_PBS.values() for key in each if key != "node"}
        assert {key: found.get(key) for key in asked} == {key: expected.get(key) for key in asked}, name
