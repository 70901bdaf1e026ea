"""Decisions over a capture: a valid profile with a reason for each, and nothing that the capture knows."""

import json
from pathlib import Path

import pytest
import yaml

from deployer.connected.site_profile import decisions
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.decisions import Access, Decision
from deployer.connected.site_profile.plan import make_plan
from deployer.contract.base.errors import Unknown
from deployer.contract.site.plan import MPICH_ABI

NODE = {"sockets": 1, "cores": 4, "threads_per_core": 1, "memory_mb": 4000}
SOURCE = {"kind": "captured", "where": "login1", "date": "2026-11-22"}
CAPTURE = {
    "format": 1,
    "name": "here",
    "source": SOURCE,
    "login": {"host": "login1.internal", "filesystems": {"/work": {"size_mb": 2048, "shared": True}}},
    "scheduler": {"kind": "slurm", "pmi": ["pmi2"]},
    "mpi": {name: {"family": "intel", "prefix": f"/opt/{name}"} for name in ("first", "second")},
    "partitions": {
        "seen": {"node": NODE, "source": SOURCE, "user_namespaces": True, "runtimes": {"charliecloud": {}}},
        "on": {"node": NODE, "source": SOURCE, "user_namespaces": True},
    },
}


def captured(folder: Path, **changes: object) -> profiles.Profile:
    (folder / "site-captured.json").write_text(json.dumps({**CAPTURE, **changes}))
    return profiles.load(str(folder / "site-captured.json"))


def written(folder: Path, found: list[Decision], access: Access) -> Path:
    path = folder / "site.yaml"
    path.write_text(decisions.text("here", "./site-captured.json", access, found, "What people decide"))
    return path


def test_each_decision_is_valid_and_has_its_reason(tmp_path: Path) -> None:
    access = Access("alice@login.example.org", "/usr/libexec/platform-python")
    found = decisions.decide(captured(tmp_path), access)
    assert {each.key: each.value for each in found} == {
        "workspace": "~/deployer",
        "policy.runtimes": ["charliecloud"],
        "partitions.seen.mpi": "first",
        "partitions.on.mpi": "first",
    }
    assert found[0].why == "a folder of all nodes with room for images; found: /work (2 GiB)"
    assert "found: first, second" in found[2].why
    path = written(tmp_path, found, access)
    profile = profiles.load(str(path))
    assert profile.login.host == "alice@login.example.org"
    assert profile.login.python == ["/usr/libexec/platform-python", "python3"]
    assert profile.partition("on")[1].mpi == ["first"]  # a key that YAML reads as true unless it is quoted
    text = path.read_text()
    assert text.count("# decide: ") == len(found)
    assert set(yaml.safe_load(text)) == {"format", "name", "extends", "login", "workspace", "policy", "partitions"}


@pytest.mark.parametrize(("namespaces", "runtime"), [(True, "charliecloud"), (False, "udocker"), (None, "udocker")])
def test_without_a_runtime_a_bundle_brings_one(tmp_path: Path, namespaces: bool | None, runtime: str) -> None:
    partitions = {"batch": {"node": NODE, "source": SOURCE, "user_namespaces": namespaces}}
    found = decisions.decide(captured(tmp_path, partitions=partitions), Access("login1", "python3"))
    assert [each.value for each in found if each.key == "policy.runtimes"] == [[runtime]]


def test_gpus_that_the_batch_system_does_not_count_are_a_question(tmp_path: Path) -> None:
    node = {**NODE, "gpus": {"kind": "nvidia", "count": 4}}
    partitions = {
        "counted": {"node": node, "source": SOURCE, "gpu_request": "gres"},
        "none": {"node": NODE, "source": SOURCE},
        "seen": {"node": node, "source": SOURCE},
    }
    access = Access("login1", "python3")
    profile = captured(tmp_path, mpi={}, partitions=partitions)
    (*others, found) = decisions.decide(profile, access)
    assert (found.key, found.value) == ("partitions.seen.gpu_request", "none")
    assert "the word with which jobs request them" in found.why
    undecided = profiles.load(str(written(tmp_path, others, access)))
    with pytest.raises(Unknown, match=r"lacks partitions\.seen\.gpu_request"):
        make_plan(undecided, "x:1", [MPICH_ABI], "seen")
    make_plan(undecided, "x:1", [MPICH_ABI], "none")
    make_plan(profiles.load(str(written(tmp_path, [*others, found], access))), "x:1", [MPICH_ABI], "seen")


def test_what_nobody_knows_is_an_example_that_says_so(tmp_path: Path) -> None:
    profile = captured(tmp_path, scheduler={"kind": "slurm"})
    access = Access("login1", "python3", "/project/x")
    path = written(tmp_path, decisions.decide(profile, access), access)
    missing = decisions.lacking(profiles.load(str(path)))
    assert "partitions.seen.pmi" in [each.key for each in missing] or "scheduler.pmi" in [each.key for each in missing]
    assert all(each.why.startswith("an example, not a fact: ") for each in missing)
    profile = profiles.load(str(written(tmp_path, [*decisions.decide(profile, access), *missing], access)))
    assert (decisions.lacking(profile), profile.workspace) == ([], "/project/x")


def test_a_site_without_a_batch_system_gets_an_example_of_each_fact(tmp_path: Path) -> None:
    profile = captured(tmp_path, scheduler=None, partitions={}, mpi={})
    access = Access("login1", "python3")
    found = decisions.decide(profile, access)
    missing = decisions.lacking(profiles.load(str(written(tmp_path, found, access))))
    assert "partitions" in [each.key for each in missing]
    assert max(len(each.place) for each in missing) > 1
    made = profiles.load(str(written(tmp_path, [*found, *missing], access)))
    assert (decisions.lacking(made), list(made.partitions)) == ([], ["NAME"])
