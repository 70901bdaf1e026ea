"""The published 768-node job: the script for SuperMUC-NG says all that the published one says.

The profile is the one that docs/supermuc-ng.md shows, over the curated one. To renew the golden script:
DEPLOYER_GOLDEN=write, and read the diff.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.image.definition import definition
from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import load
from deployer.contract.base.errors import Refused
from deployer.contract.bundle.job import Job
from deployer.contract.site.plan import Plan
from deployer.site.run import run
from deployer.site.run.job_script import script
from deployer.site.run.prepare.request import RunRequest
from deployer.site.storage.store import Store
from tests import running as made

ROOT = Path(__file__).resolve().parents[4]
GOLDEN = ROOT / "tests" / "golden" / "supermuc-ng-768.sh"
TRAIN = ["python", "/deployer/app/train.py", "--intraop", "12", "--interop", "2"]
WORKSPACE = "/dss/pn12ab/di34cde/deployer"

#: What the published script says (Brayford and Vallecorsa), in the words of ours.
PUBLISHED = [
    "#SBATCH --nodes=768",
    "#SBATCH --ntasks-per-node=4",
    "#SBATCH --cpus-per-task=12",
    "#SBATCH --time=12:00:00",
    "#SBATCH --account=pn12ab",
    "module load slurm_setup ",
    "module load mpi.intel/2019 ",
    "module load charliecloud ",
    "-n 3072 -ppn 4",
    "--bind=/lrz/sys:/lrz/sys",
    "--set-env=KMP_AFFINITY=granularity=fine,compact,1,0",
    "--set-env=KMP_BLOCKTIME=0",
    "--set-env=OMP_NUM_THREADS=12",
    "export I_MPI_PIN_RESPECT_CPUSET=0",
    "export I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0",
    "-- python /deployer/app/train.py --intraop 12 --interop 2 ",
]


REQUEST = RunRequest("3dgan")
TRAINING = Job("train", TRAIN, 768, 4, 12, "12:00:00")


def store_of(plan: Plan, folder: Path, job: Job = TRAINING) -> Store:
    """Return a store with the image and a job of the training installed."""
    image = made.IMAGE._replace(env=["PATH=/usr/bin:/bin"], workdir="/")
    return made.store(folder / "root", plan=plan, jobs=[job], image=image, name="3dgan")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """Return the path of the profile that the document shows."""
    page = (ROOT / "docs" / "supermuc-ng.md").read_text()
    match = re.search(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert match
    path = tmp_path / "my-supermuc.yaml"
    path.write_text(match.group(1))
    return str(path)


@pytest.fixture
def plan(profile: str) -> Plan:
    return make_plan(load(profile), "3dgan:1.0", ["mpich-abi"])


Show = Callable[[RunRequest, Job], str]


@pytest.fixture
def show(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Return a function to the script that `run --dry-run` prints."""
    monkeypatch.setenv("PATH", str(made.program(tmp_path, "python3", "exit 0")).rpartition("/")[0])
    monkeypatch.setattr(script, "__version__", "VERSION")
    monkeypatch.setattr(run.jobfolder, "new_token", lambda: "1")

    def shown(request: RunRequest, job: Job) -> str:
        store = store_of(plan, tmp_path, job)
        Path(store.tool).write_bytes(make_pyz())
        found = run.show_script(run.prepare(store, request))
        return found.replace(str(tmp_path / "root"), WORKSPACE).replace(str(tmp_path), "/usr/bin")

    return shown


@pytest.fixture
def text(show: Show) -> str:
    """Return the script for the published job."""
    return show(REQUEST, TRAINING)


def is_golden(text: str, path: Path) -> bool:
    """Return whether a script is the checked-in one."""
    if os.environ.get("DEPLOYER_GOLDEN") == "write":
        path.write_text(text)
    assert path.exists(), "no golden script: run with DEPLOYER_GOLDEN=write and read it"
    return text == path.read_text()


def test_the_script_is_the_golden_one(text: str) -> None:
    assert is_golden(text, GOLDEN)


@pytest.mark.parametrize(
    ("ranks", "threads", "expected"),
    [
        (1, 48, ["--ntasks-per-node=1", "--cpus-per-task=48", "-n 4 -ppn 1"]),
        (2, 48, ["--ntasks-per-node=2", "--cpus-per-task=24", "-n 8 -ppn 2"]),
        (4, 12, ["--ntasks-per-node=4", "--cpus-per-task=12", "-n 16 -ppn 4"]),
    ],
)
def test_the_definition_in_the_published_layouts(show: Show, ranks: int, threads: int, expected: list[str]) -> None:
    """bundles/3dgan on 4 nodes: a rank with all cores, two with all hyperthreads, four with a quarter of the cores."""
    job = definition.load(ROOT / "bundles" / "3dgan").jobs["published"]
    text = show(
        REQUEST._replace(ranks_per_node=ranks, threads=threads),
        Job("published", job.command, job.nodes, job.ranks_per_node, job.threads, job.time),
    )
    words = ["#SBATCH --nodes=4", "--batch-size 128 --epochs 25", f"--set-env=OMP_NUM_THREADS={threads}", *expected]
    assert [word for word in words if word not in text] == []
    assert is_golden(text, GOLDEN.with_name(f"supermuc-ng-{ranks}x{threads}.sh"))


def test_it_says_what_the_published_one_says(text: str) -> None:
    assert [words for words in PUBLISHED if words not in text] == []
    loaded = re.findall(r"^module load (\S+)", text, re.MULTILINE)
    assert loaded == ["slurm_setup", "mpi.intel/2019", "charliecloud"]


def test_the_image_cannot_be_written_and_the_hosts_environment_stays_out(text: str) -> None:
    container = text[text.index("container=(") : text.index("launch=(")]
    assert "--unset-env=!(" in container
    assert not re.search(r"^ *(-w|--write)\b", container, re.MULTILINE)


def test_the_curated_profile_alone_does_not_guess(profile: str, plan: Plan) -> None:
    curated = make_plan(load("supermuc-ng"), "3dgan:1.0")
    assert (curated.workspace, curated.account) == ("$SCRATCH/deployer", None)
    assert make_plan(load(profile), "3dgan:1.0", partition="fat").node.memory_mb == 786432  # all, as none is known
    assert (plan.limits.max_nodes, plan.limits.account) == (792, True)


def test_more_than_an_island_and_more_memory_than_a_node_survives_are_refused(plan: Plan, tmp_path: Path) -> None:
    store = store_of(plan, tmp_path)
    with pytest.raises(Refused, match="793 nodes are asked for, but a job in general of my-supermuc may have 792"):
        run.prepare(store, REQUEST._replace(nodes=793))
    with pytest.raises(Refused, match=r"4 ranks per node x 20000 MiB = 80000 MiB, but a job may use 73432 MiB"):
        run.prepare(store, REQUEST._replace(memory_mb=20000))
