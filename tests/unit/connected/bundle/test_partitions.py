"""One bundle for every partition of a site: its plans, and which of them a job uses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployer.cli.laptop import main
from deployer.connected.bundle import architectures
from deployer.connected.bundle import pack as packing
from deployer.connected.check import check as checking
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.profile import Profile
from deployer.contract.base.errors import Refused, Unknown, UsageError
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.plan_update import PlanUpdate
from deployer.contract.site.plan import Plan
from deployer.site.install.install import install
from deployer.site.run import run
from deployer.site.run.job_script.submission import SubmissionOptions
from deployer.site.run.prepare.request import RunRequest
from deployer.site.storage.store import InstalledImage, Store
from tests.unit.connected.bundle.test_pack import contents

NODE = {"sockets": 2, "cores": 8, "threads_per_core": 1, "memory_mb": 9000}
#: gpu differs in MPI, and knows no request for its GPUs; fat lacks the shape of its nodes.
PARTITIONS: dict[str, Any] = {
    "gpu": {"node": NODE, "queue": "normal", "constraint": "gpu", "launcher": "srun", "pmi": "pmi2"},
    "fat": {"launcher": "srun", "pmi": "pmi2"},
    "mpich": {"node": NODE, "mpi": ["mpich", "intel-2021.15"], "launcher": "srun", "pmi": "pmi2"},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    record = yaml.safe_load((profiles.CURATED / "lab.yaml").read_text())
    record["partitions"].update(PARTITIONS)
    record["mpi"]["mpich"] = {"family": "mpich", "prefix": "/opt/mpich"}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(record, sort_keys=False))
    return tmp_path / "site.yaml"


@pytest.fixture
def profile(path: Path) -> Profile:
    return profiles.load(str(path))


def packed(tmp_path: Path, profile: Profile, said: list[str]) -> packing.Packed:
    jobs = [Job("hello", ["tool"], 1, 1, 1, "00:05:00")]
    return packing.pack(contents()._replace(jobs=jobs), [profile], tmp_path / "b.tar", say=said.append)


def installed(tmp_path: Path, profile: Profile) -> tuple[Store, InstalledImage]:
    store = Store(str(tmp_path / "root"))
    image = install(str(packed(tmp_path, profile, []).path), store).image
    Path(store.tool).write_bytes(b"")
    return store, image


def test_each_partition_that_can_run_the_bundle_has_a_plan(tmp_path: Path, profile: Profile) -> None:
    said: list[str] = []
    found = packed(tmp_path, profile, said)
    assert [name for name, _ in found.named_plans()] == ["lab", "lab:gpu", "lab:mpich"]
    assert list(found.record()["plans"]) == ["lab", "lab:gpu", "lab:mpich"]
    (line,) = [line for line in said if line.startswith("no plan")]
    assert line == "no plan for partition fat of lab: the profile of lab lacks partitions.fat.node"
    members = [member.name for member in found.manifest.members if "plans" in member.name]
    prefix = "deployer/plans/lab"
    assert members == [f"{prefix}.json", f"{prefix}/gpu.json", f"{prefix}/mpich.json"]
    assert {"/opt/intel/mpi/2021.15", "/opt/mpich"} <= set(found.manifest.mount_points)


def test_one_that_no_partition_can_run_is_refused_with_the_first_reason(tmp_path: Path, profile: Profile) -> None:
    with pytest.raises(Unknown, match=r"lacks partitions\.fat\.node"):
        packed(tmp_path, profile.selected(["fat"], None), [])


def test_run_uses_the_plan_of_the_partition(tmp_path: Path, profile: Profile) -> None:
    store, image = installed(tmp_path, profile)
    assert image.sites() == ["lab"]
    plan = image.plan
    assert (plan().partition, plan("lab", "gpu").partition, plan(None, "mpich").partition) == ("batch", "gpu", "mpich")
    mpi = plan("lab", "mpich").mpi
    assert mpi.prefix == "/opt/mpich"
    for other in ("unknown", "../lab", "gpu/../gpu", ""):
        assert plan("lab", other).partition == "batch"

    def script(partition: str | None) -> str:
        options = SubmissionOptions(partition=partition)
        request = RunRequest("tiny", options=options, force=True)
        return run.show_script(run.prepare(store, request))

    assert "#SBATCH --partition=batch\n" in script(None)
    found = script("gpu")
    assert "#SBATCH --partition=normal\n#SBATCH --constraint=gpu\n" in found
    assert "intel-mpi" not in found
    assert "#SBATCH --partition=other\n" in script("other")  # the user vouches for equal nodes
    refused = request("fat")
    with pytest.raises(Refused, match=r"no plan for partition fat of lab: the profile of lab lacks"):
        run.prepare(store, refused)


def request(partition: str | None, force: bool = False) -> RunRequest:
    options = SubmissionOptions(partition=partition)
    return RunRequest("tiny", options=options, force=force)


@pytest.mark.thorough
def test_a_partition_has_the_batch_systems_name_too(tmp_path: Path, profile: Profile) -> None:
    _, image = installed(tmp_path, profile)
    assert image.plan("lab", "normal").partition == "gpu"
    record = profile.model_dump(mode="json")
    record["partitions"]["mpich"]["queue"] = "normal"
    (tmp_path / "two").mkdir()
    _, image = installed(tmp_path / "two", Profile.model_validate(record))
    with pytest.raises(UsageError, match="several plans for normal of lab") as caught:
        image.plan("lab", "normal")
    assert caught.value.hint == "give one of these: --partition gpu or mpich"


def test_a_partition_that_pack_left_out_is_refused(tmp_path: Path, profile: Profile) -> None:
    said: list[str] = []
    packed(tmp_path, profile.selected(["batch"], None), said)
    assert not [line for line in said if line.startswith("no plan")]
    store, image = installed(tmp_path, profile.selected(["batch"], None))
    for name in ("gpu", "normal"):
        with pytest.raises(Refused, match=f"no plan for partition {name} of lab: it was left out by --site lab:batch"):
            run.prepare(store, request(name))
    assert image.plan("lab", "gpu").partition == "batch"  # only with --force


def test_a_partition_with_another_processor_is_left_out_for_that_reason(tmp_path: Path, profile: Profile) -> None:
    record = profile.model_dump(mode="json")
    record["partitions"]["gpu"]["architecture"] = "aarch64"
    asked = Profile.model_validate(record).selected(["batch", "gpu"], None)
    own = architectures.fitting(asked, "x86_64")
    assert own is not None
    _, image = installed(tmp_path, own)
    another, option = "its processor is not x86_64, which this bundle is for", "it was left out by --site lab:batch,gpu"
    assert image.plan("lab").without == {"gpu": another, "normal": another, "fat": option, "mpich": option}


def update(image: InstalledImage, *plans: Plan) -> None:
    Path(image.newer_plan("lab")).parent.mkdir(exist_ok=True)
    Path(image.newer_plan("lab")).write_text(PlanUpdate(image.receipt.digest, "tiny:1.0", 9, list(plans)).text())


def test_a_newer_reason_against_a_partition_counts(tmp_path: Path, profile: Profile) -> None:
    store, image = installed(tmp_path, profile)
    newer = image.plan("lab", "mpich")._replace(without={"gpu": "it was drained", "batch": "it is gone"})
    update(image, newer)
    for name, reason in (("gpu", "drained"), ("normal", "drained"), ("batch", "gone"), (None, "gone")):
        with pytest.raises(Refused, match=reason):
            run.prepare(store, request(name))
    run.prepare(store, request("mpich", force=True))
    update(image, image.plan("lab", "gpu")._replace(modules=["new"]))
    with pytest.raises(Refused, match="fat of lab"):  # the bundle's reason stays
        run.prepare(store, request("fat"))


def test_a_newer_plan_replaces_that_of_its_partition_only(tmp_path: Path, profile: Profile) -> None:
    _, image = installed(tmp_path, profile)
    newer = image.plan("lab", "gpu")._replace(modules=["new"])
    Path(image.newer_plan("lab")).parent.mkdir()
    Path(image.newer_plan("lab")).write_text(PlanUpdate(image.receipt.digest, "tiny:1.0", 9, [newer]).text())
    assert image.plan("lab", "gpu").modules == ["new"]
    assert [image.plan("lab", name).partition for name in (None, "mpich")] == ["batch", "mpich"]


def test_check_judges_each_partition(
    tmp_path: Path, path: Path, profile: Profile, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = str(packed(tmp_path, profile, []).path)
    opened = checking.opened
    times: list[str] = []
    monkeypatch.setattr(checking, "opened", lambda path: times.append(path) or opened(path))
    verdicts = checking.check_all(bundle, profile)
    assert times == [bundle]
    assert [each.partition for each in verdicts] == ["batch", "gpu", "fat", "mpich"]
    assert verdicts[2].checked.verdict == "UNKNOWN"
    main.main(["check", bundle, "--site", str(path), "--no-cache", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert (record["partition"], [each["partition"] for each in record["others"]]) == ("batch", ["gpu", "fat", "mpich"])
    main.main(["check", bundle, "--site", str(path), "--no-cache", "--partition", "mpich", "--mpi", "intel-2021.15"])
    said = capsys.readouterr().out
    assert "tiny:1.0 on lab, partition mpich" in said
    assert "with Intel(R) MPI Library" in said
    assert "gpu" not in said


def test_partitions_and_mpi_can_be_selected(profile: Profile) -> None:
    chosen = profile.selected(["mpich", "gpu"], "intel-2021.15")
    assert {name: each.mpi for name, each in chosen.partitions.items()} == {"mpich": ["intel-2021.15"], "gpu": []}
    with pytest.raises(UsageError, match="no partition of lab has the MPI 'cray'"):
        profile.selected([], "cray")
    with pytest.raises(UsageError, match="no partition 'nono'"):
        profile.selected(["nono"], None)


def test_pack_takes_sites_with_partitions(tmp_path: Path, path: Path) -> None:
    from deployer.cli.laptop import pack

    assert pack._site(f"{path}:gpu,fat") == (str(path), ["gpu", "fat"])
    assert pack._site("lab") == ("lab", [])
    assert pack._site("ssh:me@login1") == ("ssh:me@login1", [])
    assert pack._site("ssh:login1:gpu,fat") == ("ssh:login1", ["gpu", "fat"])
    odd = tmp_path / "a:b.yaml"
    odd.touch()
    assert pack._site(str(odd)) == (str(odd), [])
