"""Six real systems, written in the schema from their public documents; the loader of before rejected each of them."""

from pathlib import Path

import pytest
import yaml

from deployer.connected.site_profile import plan as planning
from deployer.connected.site_profile.profile import Profile, load
from deployer.contract.base import json_records
from deployer.contract.bundle.job import Job
from deployer.contract.site import plan as plans
from deployer.contract.site.plan import OPENMPI, Batch, GpuRequest, Plan
from deployer.site.run import run
from deployer.site.run.job_script.submission import SubmissionOptions
from deployer.site.run.prepare import placeholders, start_option
from deployer.site.run.prepare.request import RunRequest
from tests import running as made

SITES = Path(__file__).parent / "sites"
NAMES = ["setonix", "gadi", "daint", "viper", "bianca", "farm22"]
#: The variables of a user's login shell there.
HAS = {
    "USER": "alice", "PROJECT": "ab12", "PAWSEY_PROJECT": "pawsey1", "MYSCRATCH": "/scratch/pawsey1/alice",
    "SCRATCH": "/capstor/scratch/cscs/alice", "HOME": "/home/alice",
}  # fmt: skip


def plans_of(name: str) -> dict[str, Plan]:
    """Return the plans of a site by partition, as the site completes them."""
    made = planning.make_plans(load(str(SITES / f"{name}.yaml")), "hello:1", [OPENMPI])
    assert not made[0].without
    return {plan.partition: placeholders.expanded(plan, HAS) for plan in made}


def test_each_is_there() -> None:
    assert sorted(path.stem for path in SITES.glob("*.yaml")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_partition_has_a_plan(name: str) -> None:
    profile = load(str(SITES / f"{name}.yaml"))
    found = plans_of(name)
    assert list(found) == list(profile.partitions)
    assert not any("$" in bind.source for plan in found.values() for bind in plan.binds)


def test_setonix_has_an_account_of_its_own_for_gpus() -> None:
    found = plans_of("setonix")
    gpu = found["gpu"]
    assert (gpu.account, gpu.batch.account_suffix, gpu.batch.gpus) == ("pawsey1", "-gpu", GpuRequest("gres", 8))
    assert found["work"].batch == Batch()
    assert gpu.devices == ("/dev/kfd", "/dev/dri")
    assert (gpu.gpu_order, [place.domain for place in gpu.gpu_places]) == (
        "ROCR_VISIBLE_DEVICES",
        [3, 3, 1, 1, 0, 0, 2, 2],
    )
    assert "ROCR_VISIBLE_DEVICES" in gpu.pass_environment
    assert plans.read(json_records.dumps(gpu.record()), "it") == gpu
    assert gpu.environment["FI_PROVIDER"] == "cxi"
    assert gpu.modules_of("singularity") == ["singularity/4.1.0-slurm"]
    assert "/scratch/pawsey1" in {bind.target for bind in gpu.binds}


def test_intel_s_gpus_have_no_order_to_set() -> None:
    record = yaml.safe_load((SITES / "setonix.yaml").read_text())
    record["partitions"]["gpu"]["node"]["gpus"] = {"kind": "intel", "count": 8}
    plan = planning.make_plan(Profile.model_validate(record), "hello:1", [OPENMPI], "gpu")
    assert (plan.gpu_order, plan.gpu_places) == ("", ())
    assert "ZE_AFFINITY_MASK" in plan.pass_environment


def test_gadi_requests_storage_and_chooses_among_mpis() -> None:
    found = plans_of("gadi")["gpuvolta"]
    assert found.batch.storage == ("scratch/ab12", "gdata/ab12")
    assert found.batch.gpus == GpuRequest("ngpus", 4)
    assert found.mpi
    assert found.mpi.family == "openmpi"
    intel = planning.make_plan(load(str(SITES / "gadi.yaml")), "hello:1", ["mpich-abi"], "normal").mpi
    assert intel
    assert intel.family == "intel"


def test_daint_is_aarch64_and_needs_another_runtime_than_the_kits() -> None:
    found = plans_of("daint")["normal"]
    assert "podman" in {option.runtime for option in found.containers}
    assert not any("kit" in option.runtime for option in found.start_options)
    assert found.devices == ("nvidia.com/gpu=all",)
    assert found.batch.gpus == GpuRequest("gpus-per-node", 4)


def test_viper_and_bianca_have_two_kinds_of_nodes_in_one_queue() -> None:
    viper, bianca = plans_of("viper"), plans_of("bianca")
    assert [(plan.queue, plan.batch.constraint) for plan in viper.values()] == [("", None), ("", "apu")]
    assert [(plan.queue, plan.batch.constraint) for plan in bianca.values()] == [("node", None), ("node", "gpu")]
    assert load(str(SITES / "bianca.yaml")).login.inbox == "/proj/$PROJECT/nobackup/wharf/$USER/$USER-$PROJECT"


def test_farm22_has_lsfs_request_for_gpus() -> None:
    assert plans_of("farm22")["gpu"].batch.gpus == GpuRequest("gpu", 1)


@pytest.mark.parametrize(("directives", "ordered"), [((), True), (("--gres=gpu:4",), False)])
def test_a_job_of_all_gpus_has_them_in_the_order_of_its_ranks(
    directives: tuple[str, ...], ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_option, "vetoes", lambda *_: {})
    found = plans_of("setonix")["gpu"]
    store = made.store(tmp_path, plan=found, jobs=[Job("hello", ["python3", "x.py"], 2, 8, 8, "01:00:00")])
    Path(store.tool).write_bytes(b"")
    options = SubmissionOptions(directives=directives)
    text = run.show_script(run.prepare(store, RunRequest("hello", options=options)))
    assert ("ROCR_VISIBLE_DEVICES=4,5,2,3,6,7,0,1" in text) == ordered
    assert "#SBATCH --account=pawsey1-gpu\n" in text
    assert ("#SBATCH --gres=gpu:8\n" in text) == ordered
