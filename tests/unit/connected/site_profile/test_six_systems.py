"""Six real systems, written in the schema from their public documents; the loader of before rejected each of them."""

from pathlib import Path

import pytest

from deployer.connected.site_profile import plan as planning
from deployer.connected.site_profile.profile import load
from deployer.contract.errors import Refused
from deployer.contract.plan import OPENMPI, Batch, GpuRequest, Plan
from deployer.site.run import placeholders

SITES = Path(__file__).parent / "sites"
NAMES = ["setonix", "gadi", "daint", "viper", "bianca", "farm22"]
#: The variables of a user's login shell there.
HAS = {
    "USER": "alice", "PROJECT": "ab12", "PAWSEY_PROJECT": "pawsey1", "MYSCRATCH": "/scratch/pawsey1/alice",
    "SCRATCH": "/capstor/scratch/cscs/alice", "HOME": "/home/alice",
}  # fmt: skip


def plans(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Plan]:
    """Return the plans of a site by partition, as the site completes them."""
    monkeypatch.setattr(planning, "_USABLE", {"slurm", "pbs", "lsf"})
    made = planning.make_plans(load(str(SITES / f"{name}.yaml")), "hello:1", [OPENMPI])
    assert not made[0].without
    return {plan.partition: placeholders.expanded(plan, HAS) for plan in made}


def test_each_is_there() -> None:
    assert sorted(path.stem for path in SITES.glob("*.yaml")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_partition_has_a_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = load(str(SITES / f"{name}.yaml"))
    found = plans(name, monkeypatch)
    assert list(found) == list(profile.partitions)
    assert not any("$" in bind.source for plan in found.values() for bind in plan.binds)


def test_setonix_has_an_account_of_its_own_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plans("setonix", monkeypatch)
    gpu = found["gpu"]
    assert (gpu.account, gpu.batch.account_suffix, gpu.batch.gpus) == ("pawsey1", "-gpu", GpuRequest("gres", 8))
    assert found["work"].batch == Batch()
    assert gpu.devices == ("/dev/kfd", "/dev/dri")
    assert gpu.environment["FI_PROVIDER"] == "cxi"
    assert gpu.modules_of("singularity") == ["singularity/3.11.4-slurm"]
    assert "/scratch/pawsey1" in {bind.target for bind in gpu.binds}


def test_gadi_requests_storage_and_chooses_among_mpis(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plans("gadi", monkeypatch)["gpuvolta"]
    assert found.batch.storage == ("scratch/ab12", "gdata/ab12")
    assert found.batch.gpus == GpuRequest("ngpus", 4)
    assert found.mpi
    assert found.mpi.family == "openmpi"
    intel = planning.make_plan(load(str(SITES / "gadi.yaml")), "hello:1", ["mpich-abi"], "normal").mpi
    assert intel
    assert intel.family == "intel"


def test_daint_is_aarch64_and_needs_another_runtime_than_the_kits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plans("daint", monkeypatch)["normal"]
    assert "podman" in {option.runtime for option in found.containers}
    assert not any("kit" in option.runtime for option in found.start_options)
    assert found.devices == ("nvidia.com/gpu=all",)
    assert found.batch.gpus == GpuRequest("gpus-per-node", 4)


def test_viper_and_bianca_have_two_kinds_of_nodes_in_one_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    viper, bianca = plans("viper", monkeypatch), plans("bianca", monkeypatch)
    assert [(plan.queue, plan.batch.constraint) for plan in viper.values()] == [("", None), ("", "apu")]
    assert [(plan.queue, plan.batch.constraint) for plan in bianca.values()] == [("node", None), ("node", "gpu")]
    assert load(str(SITES / "bianca.yaml")).login.inbox == "/proj/$PROJECT/nobackup/wharf/$USER/$USER-$PROJECT"


def test_farm22_has_lsfs_request_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plans("farm22", monkeypatch)["gpu-normal"].batch.gpus == GpuRequest("gpu", 1)


def test_a_batch_system_that_the_site_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_USABLE", {"slurm"})
    with pytest.raises(Refused, match="jobs on farm22 are submitted to lsf"):
        planning.make_plans(load(str(SITES / "farm22.yaml")), "hello:1", [OPENMPI])
