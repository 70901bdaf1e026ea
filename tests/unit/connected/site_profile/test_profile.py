import json
from pathlib import Path

import pytest
import yaml

from deployer.connected.site_profile import model
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.plan import make_plan, make_plans
from deployer.connected.site_profile.profile import load
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.site import memory_copies
from deployer.contract.site.choose import choose
from deployer.contract.site.plan import Plan
from deployer.contract.site.speed import ExpectedNetwork, Speed

CURATED = sorted(path.stem for path in profiles.CURATED.glob("*.yaml"))


@pytest.mark.parametrize("name", CURATED)
def test_curated_profiles_are_valid(name: str) -> None:
    assert load(name).name == name


def test_the_checked_in_schema_is_the_models() -> None:
    text = (profiles.CURATED / "schema.json").read_text()
    assert json.loads(text) == profiles.schema(), "run: deployer profile schema > site_profiles/schema.json"


def lab(tmp_path: Path, **changes: object) -> str:
    record = yaml.safe_load((profiles.CURATED / "lab.yaml").read_text()) | changes
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(record))
    return str(path)


def test_all_errors_at_once_with_a_guess(tmp_path: Path) -> None:
    path = lab(tmp_path, workspce="/x", format=2, fabric={"kind": "token-ring", "provider": "tcp"})
    with pytest.raises(UsageError) as caught:
        load(path)
    message = "\n".join(caught.value.lines())
    assert "workspce: unknown key, perhaps you meant 'workspace'" in message
    assert "format: " in message
    assert "fabric.kind: " in message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mpi": {}}, "partitions.batch.mpi"),
        ({"scheduler": {"kind": "slurm", "pmi": ["pmix"]}}, "partitions.batch.pmi"),
        ({"runtimes": {}, "policy": {"runtimes": ["apptainer"]}}, "no runtime"),
    ],
)
def test_references_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], reason: str
) -> None:
    monkeypatch.setattr(model, "supported", lambda _: True)  # else check refuses
    with pytest.raises(UsageError, match=reason):
        load(lab(tmp_path, **changes))


def test_references_and_other_errors_come_together_each_with_its_line(tmp_path: Path) -> None:
    text = (profiles.CURATED / "lab.yaml").read_text()
    path = tmp_path / "site.yaml"
    path.write_text(text.replace("mpi: intel-2021.15", "mpi: mpich").replace("format: 1", "format: one"))
    with pytest.raises(UsageError) as caught:
        load(str(path))
    at = text.splitlines().index("    mpi: intel-2021.15") + 1
    first, second = caught.value.details
    assert first.startswith(f"{path}:2: format: ")
    assert second == f"{path}:{at}: partitions.batch.mpi: 'mpich' is not in mpi of the profile; known: intel-2021.15"


def test_an_unknown_site_lists_the_known() -> None:
    with pytest.raises(UsageError, match="'labb'") as caught:
        load("labb")
    assert "lab" in caught.value.hint


@pytest.mark.parametrize("text", ["a: [1", "- a\n- b\n", ""])
def test_broken_yaml(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"x\.yaml"):
        load(str(tmp_path / "x.yaml"))


def test_the_plan_binds_the_hosts_mpi_on_the_same_path() -> None:
    plan = make_plan(load("lab"), "tiny:1.0")
    assert plan.mpi
    assert [(bind.source, bind.target) for bind in plan.binds] == [(plan.mpi.prefix, plan.mpi.prefix)]
    first = plan.environment["LD_LIBRARY_PATH"].split(":")[0]
    assert plan.mpi.library.startswith(first + "/")
    assert plan.environment["FI_PROVIDER"] == "tcp"
    assert {option.runtime for option in plan.containers} == {"charliecloud"}
    assert plan.limits.max_nodes == 2  # all that the partition has


def test_a_queue_with_two_kinds_of_nodes_is_not_limited_to_those_of_one(tmp_path: Path) -> None:
    batch = yaml.safe_load((profiles.CURATED / "lab.yaml").read_text())["partitions"]["batch"]
    profile = load(lab(tmp_path, partitions={"batch": {**batch, "nodes": 100}, "fat": {**batch, "nodes": 50}}))
    assert [plan.limits.max_nodes for plan in make_plans(profile, "tiny:1.0")] == [100, 50]
    fat = {**batch, "nodes": 50, "queue": "batch"}
    profile = load(lab(tmp_path, partitions={"batch": {**batch, "nodes": 100}, "fat": fat}))
    assert [plan.limits.max_nodes for plan in make_plans(profile, "tiny:1.0")] == [None, None]
    assert make_plan(profile.selected(["fat"], None), "tiny:1.0").limits.max_nodes is None
    fat["max_nodes"] = 120
    profile = load(lab(tmp_path, partitions={"batch": {**batch, "nodes": 100}, "fat": fat}))
    assert [plan.limits.max_nodes for plan in make_plans(profile, "tiny:1.0")] == [None, 120]


def test_the_plan_for_open_mpi() -> None:
    plan = make_plan(load("lab-openmpi"), "tiny:1.0", ["mpich-abi", "openmpi"])
    assert plan.mpi
    assert (plan.abi, plan.mpi.library) == ("openmpi", "/opt/openmpi/5.0.11/lib/libmpi.so.40")
    assert plan.environment["OPAL_PREFIX"] == plan.mpi.prefix
    assert plan.environment["MPI4PY_MPIABI"] == "openmpi"
    assert {"OMPI_*", "PMIX_*"} <= set(plan.pass_environment)
    assert {(option.pmi, option.join) for option in plan.start_options} == {("pmix", True)}
    assert make_plan(load("lab"), "tiny:1.0", ["mpich-abi", "openmpi"]).abi == "mpich-abi"


def test_the_images_own_mpich_needs_ranks_that_share_a_container(tmp_path: Path) -> None:
    def joins(path: str, abi: str = "mpich-abi") -> set[bool]:
        options = make_plan(load(path), "tiny:1.0", [abi]).start_options
        return {option.join for option in options if option.runtime == "charliecloud"}

    assert joins("lab") == {False}  # Intel's does not
    batch = load("lab").model_dump(mode="json", exclude_unset=True)["partitions"]["batch"]
    assert joins(lab(tmp_path, partitions={"batch": {**batch, "mpi": None}})) == {True}
    assert joins("lab", "none") == {False}  # such ranks may end before others have joined them


@pytest.mark.parametrize("setuid", [False, True])
def test_a_setuid_runtime_does_not_prevent_memory_copies(tmp_path: Path, setuid: bool) -> None:
    policy, runtimes = {"runtimes": ["apptainer"]}, {"apptainer": {"version": "1.4.5", "setuid": setuid}}
    batch = load("lab").model_dump(mode="json", exclude_unset=True)["partitions"]["batch"]
    path = lab(tmp_path, policy=policy, runtimes=runtimes, partitions={"batch": {**batch, "mpi": None}})
    plan = make_plan(load(path), "tiny:1.0", ["openmpi"])
    assert {option.runtime for option in plan.containers} == {"apptainer"}
    assert bool(memory_copies.reasons(plan)) is not setuid


def test_the_plan_takes_the_speed_of_the_network_from_the_profile(tmp_path: Path) -> None:
    source = {"kind": "document", "where": "a page", "date": "2026-01-01"}
    expected = {"mpi": {"latency_us": 2, "bandwidth_mb_s": 9000}}
    network = {"expected": expected, "limit": 0.4, "source": source}
    plan = make_plan(load(lab(tmp_path, network=network)), "tiny:1.0", ["mpich-abi"])
    assert plan.network == ExpectedNetwork(Speed(2.0, 9000.0), None, 0.4, "the profile")
    assert make_plan(load("lab"), "tiny:1.0", ["mpich-abi"]).network is None


def test_a_bundle_without_programs_for_the_sites_mpi_is_refused() -> None:
    with pytest.raises(Refused, match=r"Open MPI v5.*libmpi\.so\.40.*mpich-abi only") as caught:
        make_plan(load("lab-openmpi"), "tiny:1.0", ["mpich-abi"])
    for site in ("lab", "lab-openmpi"):
        plan = make_plan(load(site), "tiny:1.0", ["none"])
        assert (plan.mpi, plan.abi, plan.host) == (None, "none", ())
        assert not any("mpi" in bind.source for bind in plan.binds)
        assert {(option.launcher, option.pmi) for option in plan.containers} == {("srun", "none")}
    assert "add openmpi to mpi" in caught.value.hint
    assert make_plan(load("lab-openmpi"), "tiny:1.0").abi == "openmpi"  # nobody said what the bundle's programs need


def test_the_library_is_the_familys_where_the_profile_names_none(tmp_path: Path) -> None:
    record = yaml.safe_load((profiles.CURATED / "lab-openmpi.yaml").read_text())
    del record["mpi"]["openmpi-5.0.11"]["library"]
    plan = make_plan(
        load(lab(tmp_path, mpi=record["mpi"], partitions=record["partitions"], scheduler=record["scheduler"])), "t:1"
    )
    assert plan.mpi
    assert plan.mpi.library == "/opt/openmpi/5.0.11/lib/libmpi.so.40"


def test_a_site_where_the_images_own_mpi_is_meant(tmp_path: Path) -> None:
    record = yaml.safe_load((profiles.CURATED / "lab.yaml").read_text())
    record["partitions"]["batch"]["mpi"] = None
    path = lab(tmp_path, partitions=record["partitions"])
    plan = make_plan(load(path), "tiny:1.0")
    assert (plan.mpi, plan.binds, plan.modules, plan.abi) == (None, [], [], None)
    assert make_plan(load(path), "tiny:1.0", ["openmpi", "mpich-abi"]).abi == "openmpi"  # the image's own is the first
    assert "LD_LIBRARY_PATH" not in plan.environment


def test_an_unknown_partition() -> None:
    with pytest.raises(UsageError, match="fat") as caught:
        make_plan(load("lab"), "tiny:1.0", partition="fat")
    assert "batch" in caught.value.hint


def test_the_choice_of_runtimes_follows_policy_and_facts(tmp_path: Path) -> None:
    def plan(policy: list[str], **facts: object) -> Plan:
        return make_plan(load(lab(tmp_path, policy={"runtimes": policy}, **facts)), "tiny:1.0")

    both = plan(["charliecloud", "udocker"])
    assert list(dict.fromkeys(option.runtime for option in both.start_options)) == ["charliecloud", "udocker"]
    assert both.against == {}
    forbidden = plan(["charliecloud", "udocker"], user_namespaces=False)
    assert choose(forbidden, 1, {}).start_option.runtime == "udocker"
    with pytest.raises(Refused, match="the nodes have no user namespaces"):
        choose(plan(["charliecloud"], user_namespaces=False), 1, {})
    assert plan(["udocker"], runtimes={}).start_options[0].name == "udocker-folder"


ABSENT = {"charliecloud": "it is not on the nodes, according to the profile"}


@pytest.mark.parametrize(
    ("runtimes", "facts", "expected", "against"),
    [
        ({"charliecloud": {"version": "0.31"}}, {}, ["charliecloud", "udocker"], {}),
        ({"charliecloud": {"version": "0.38"}}, {}, ["charliecloud", "udocker"], {}),
        ({"charliecloud": {}}, {}, ["charliecloud", "charliecloud-kit", "udocker"], {}),
        ({}, {}, ["charliecloud-kit", "udocker"], ABSENT),
        (
            {},
            {"architecture": "ppc64le"},
            [],
            {**ABSENT, **dict.fromkeys(("charliecloud-kit", "udocker"), "no bundle can bring it for ppc64le")},
        ),
        ({}, {"architecture": "aarch64"}, ["charliecloud-kit", "udocker"], ABSENT),
        (
            {"charliecloud": {"version": "0.26"}},
            {"architecture": "x86_64"},
            ["charliecloud", "charliecloud-kit", "udocker"],
            {"charliecloud": "ch-run 0.26 is too old: deployer uses 0.31 or newer"},
        ),
        (
            {},
            {"user_namespaces": False},
            ["charliecloud-kit", "udocker"],
            dict.fromkeys(("charliecloud", "charliecloud-kit"), "the nodes have no user namespaces"),
        ),
    ],
)
@pytest.mark.parametrize("policy", [["charliecloud", "udocker"], ["udocker", "charliecloud"]])
def test_the_kits_ch_run_comes_after_the_sites_and_before_udocker(
    tmp_path: Path,
    policy: list[str],
    runtimes: dict[str, object],
    facts: dict[str, object],
    expected: list[str],
    against: dict[str, str],
) -> None:
    profile = load(lab(tmp_path, policy={"runtimes": policy}, runtimes=runtimes, **facts))
    found = make_plan(profile, "tiny:1.0")
    assert list(dict.fromkeys(option.runtime for option in found.start_options)) == expected
    assert found.against == against
    assert {option.staging for option in found.start_options if option.runtime == "charliecloud-kit"} <= {
        "folder",
        "memory",
        "squashfs",
        "mounted",
    }


def test_the_order_and_why_each_was_passed_over(tmp_path: Path) -> None:
    policy = {"runtimes": ["docker", "apptainer", "charliecloud", "udocker", "native"]}
    made = make_plan(load(lab(tmp_path, policy=policy)), "tiny:1.0")
    own = ["charliecloud", "udocker"]
    assert made.order[: len(own)] == [(name, None) for name in own]
    assert dict(made.order[len(own) :]) == made.against
    assert made.against["apptainer"] == ABSENT["charliecloud"]
    assert made.against["docker"].startswith("deployer cannot use it: a service starts its containers")
    assert made.tries.startswith(
        "runtimes that a job tries, in this order: charliecloud, udocker; passed over: docker ("
    )
    reason = choose(made, 1, {}).reason
    assert "skipped: docker (deployer cannot use it: " in reason
    assert "apptainer (it is not on the nodes" in reason
    with pytest.raises(Refused, match=r"docker \(deployer cannot use it"):
        choose(made, 1, {"charliecloud": "x", "udocker": "y"})


def test_without_a_container_only_where_the_policy_names_it(tmp_path: Path) -> None:
    def names(*policy: str) -> list[str]:
        plan = make_plan(load(lab(tmp_path, policy={"runtimes": list(policy)})), "tiny:1.0")
        return list(dict.fromkeys(option.name for option in plan.start_options))

    assert names("native", "charliecloud")[-1] == "native-folder"  # whatever the order
    assert names("native", "charliecloud")[0] == "charliecloud-folder"
    assert "native-folder" not in names("charliecloud")
    with pytest.raises(UsageError, match="no runtime that the policy allows is on the site: native"):
        load(lab(tmp_path, policy={"runtimes": ["native"]}))
    with pytest.raises(UsageError, match="native"):  # it is no program that a site could have
        load(lab(tmp_path, runtimes={"native": {}}))
