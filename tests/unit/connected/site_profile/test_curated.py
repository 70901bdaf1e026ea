"""Every profile that comes with deployer makes a plan and a job script; what nobody published stays unknown.

To renew the golden scripts: DEPLOYER_GOLDEN=write, and read the diff.
"""

import datetime as dt
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.site_profile import gaps
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.plan import make_plans
from deployer.connected.site_profile.profile import load
from deployer.connected.site_profile.summary import only_captured, summary
from deployer.contract.bundle.job import Job
from deployer.contract.site.plan import MPICH_ABI, OPENMPI
from deployer.site.run import run
from deployer.site.run.job_script import script
from deployer.site.run.job_script.submission import SubmissionOptions
from deployer.site.run.prepare import start_option
from deployer.site.run.prepare.request import RunRequest
from tests import running as made

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
CURATED = sorted(path.stem for path in profiles.CURATED.glob("*.yaml"))
#: The user's own values.
VARIABLES = {
    "SCRATCH": "/scratch/alice",
    "SCRATCHDIR": "/scratch/project/alice",
    "WORK": "/project/alice",
    "CINECA_SCRATCH": "/gpfs/scratch/alice",
    "MYSCRATCH": "/scratch/project/alice",
    "PAWSEY_PROJECT": "project",
    "PROJECT": "project",
    "USER": "alice",
}
REQUEST = RunRequest("hello")


def family(name: str) -> str:
    """Return the MPI family of a bundle that a site can run."""
    profile = load(name)
    partition = profile.partition()[1]
    if partition.mpi:
        return profile.mpi[partition.mpi[0]].abi
    offered = profile.scheduler.pmi if profile.scheduler else []
    of_pmix = "mpirun" in partition.launchers or "pspmix" in offered or partition.launcher == "pals"
    return OPENMPI if of_pmix else MPICH_ABI


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a folder whose path always has the same length: long lines of the script are folded by it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="d") as folder:
        yield Path(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CURATED)
def test_each_makes_a_plan_and_a_script(name: str, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in VARIABLES.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PATH", str(made.program(short, "python3", "exit 0")).rpartition("/")[0])
    monkeypatch.setattr(script, "__version__", "VERSION")
    monkeypatch.setattr(run.jobfolder, "new_token", lambda: "1")
    monkeypatch.setattr(start_option, "vetoes", lambda *_: {})  # this machine is not the site's
    plan = make_plans(load(name), "hello:1", [family(name)])[0]
    jobs = [Job("hello", ["python3", "x.py"], 1, 1, 2 if plan.node.cores > 1 else 1, "00:10:00")]
    store = made.store(short / "root", plan=plan, jobs=jobs)
    Path(store.tool).write_bytes(make_pyz())
    request = REQUEST._replace(options=SubmissionOptions(account="project") if plan.limits.account else REQUEST.options)
    text = run.show_script(run.prepare(store, request))
    text = text.replace(str(short / "root"), "WORKSPACE").replace(str(short), "/usr/bin")
    path = GOLDEN / f"site-{name}.sh"
    if os.environ.get("DEPLOYER_GOLDEN") == "write":
        path.write_text(text)
    assert path.exists(), "no golden script: run with DEPLOYER_GOLDEN=write and read it"
    assert text == path.read_text()


@pytest.mark.parametrize("name", CURATED)
def test_each_lacks_only_the_host_of_the_user(name: str) -> None:
    assert [gap.place for gap in gaps.find(load(name))] in ([], [("login", "host")])


def test_galileo_is_that_of_the_paper() -> None:
    profile = load("galileo")
    partition = profile.partition("gpu")[1]
    assert partition.node
    assert partition.node.gpus
    assert partition.fabric
    assert (partition.nodes, partition.node.sockets, partition.node.cores) == (15, 2, 16)
    assert (partition.node.gpus.model, partition.node.gpus.count, partition.fabric.kind) == (
        "Tesla K80",
        4,
        "infiniband",
    )


@pytest.mark.parametrize("name", ["alps-daint", "jupiter", "isambard-ai"])
def test_grace_hopper_nodes_are_those_of_the_documents(name: str) -> None:
    profile = load(name)
    assert profile.architecture == "aarch64"
    for partition in profile.partitions.values():
        node = partition.node
        assert node
        assert node.gpus
        assert (node.sockets, node.cores, node.threads_per_core) == (4, 288, 1)
        assert (node.gpus.count, node.gpus.capability) == (4, "9.0")
    assert profile.source.kind == "document"
    assert profile.description.endswith("nothing of it was run.")


def test_what_only_a_capture_can_tell_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = only_captured(load("ifca"))
    assert {"PMI types of srun", "partitions.gpu: sockets", "partitions.gpu: version of the GPU driver"} <= set(lacking)
    assert not any("memory for jobs" in each for each in only_captured(load("lab")))
    assert main(["profile", "show", "ifca"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "only a capture can tell: PMI types of srun, partitions.gpu: sockets" in shown
    assert "`push` to ifca needs one more fact; plans can be made" in shown


@pytest.mark.thorough
def test_the_list_shows_what_a_profile_describes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "list"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    today = dt.date.today()  # noqa: DTZ011
    assert (
        f"lab slurm 22.05; charliecloud, native; intel 2021.15; documented, {(today - dt.date(2026, 11, 20)).days} day"
        in shown
    )
    assert "ifca slurm; udocker; MPI of the image; documented, no date" in shown
    assert main(["profile", "list", "--json"]) == 0
    about: dict[str, Any] = json.loads(capsys.readouterr().out)["about"]
    assert about["ifca"]["runtimes"] == "udocker"


def test_the_age_is_that_of_the_oldest_facts() -> None:
    found = summary(load("stampede2"), dt.date(2022, 3, 10))
    assert (found.kind, found.days) == ("document", (dt.date(2022, 3, 10) - dt.date(2019, 7, 1)).days)
    assert str(found).endswith("documented, 983 days old")
