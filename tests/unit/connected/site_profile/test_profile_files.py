"""What a profile extends, where its values come from, and the file of facts."""

import hashlib
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import age, load, merged, resolve
from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError, Unknown, UsageError
from deployer.contract.elf.dynamic import Dynamic, Facts
from deployer.contract.site import facts

LIBRARY = Facts(
    Dynamic(62, None, "libmpi.so.12", ["libc.so.6"], [], ["$ORIGIN"], {"libc.so.6": ["GLIBC_2.17"]}, [], True, "ab12"),
    ["MPI_Init"],
    ["MPI_Init", "MPI_Send"],
)


def write(folder: Path, name: str, record: dict[str, Any]) -> Path:
    path = folder / name
    path.write_text(
        yaml.safe_dump(record, sort_keys=False) if name.endswith(".yaml") else json.dumps(record, indent=1, default=str)
    )
    return path


def base() -> dict[str, Any]:
    record = yaml.safe_load((profiles.CURATED / "lab.yaml").read_text())
    assert isinstance(record, dict)
    return record


def test_a_profile_over_another_says_only_what_differs(tmp_path: Path) -> None:
    write(
        tmp_path, "captured.json", {**base(), "source": {"kind": "captured", "where": "login1", "date": "2026-01-02"}}
    )
    over = {
        "format": 1,
        "extends": "captured.json",
        "workspace": "/scratch/$USER",
        "scheduler": {"pmi": ["pmix", "pmi2"]},
    }
    over["partitions"] = {"batch": {"pmi": "pmix", "mpi": None}, "fat": {"nodes": 3, "pmi": "pmi2"}}
    found = resolve(str(write(tmp_path, "site.yaml", over)))
    assert found.profile.name == "lab"
    assert found.profile.workspace == "/scratch/$USER"
    assert found.profile.scheduler is not None
    assert (found.profile.scheduler.version, found.profile.scheduler.pmi) == ("22.05", ["pmix", "pmi2"])
    assert list(found.profile.partitions) == ["batch", "fat"]
    assert found.profile.partitions["batch"].mpi == []  # null takes away what the other says
    assert found.profile.partitions["batch"].nodes == 2
    assert found.layers.at(("workspace",)) == (tmp_path / "site.yaml", 3)
    assert found.layers.at(("scheduler", "version"))[0] == tmp_path / "captured.json"
    assert found.layers.at(("scheduler", "pmi", "0"))[0] == tmp_path / "site.yaml"
    assert [path.name for path in found.paths] == ["site.yaml", "captured.json"]


def test_an_error_is_told_with_the_file_that_has_it(tmp_path: Path) -> None:
    write(tmp_path, "captured.json", {**base(), "workspace": 7})
    path = write(tmp_path, "site.yaml", {"format": 1, "extends": "captured.json", "glibc": 2.36})
    with pytest.raises(UsageError) as caught:
        load(str(path))
    first, second = caught.value.details
    assert first.startswith(f"{tmp_path / 'captured.json'}:")
    assert "workspace" in first
    assert second.startswith(f"{path}:3: glibc: ")


@pytest.mark.parametrize("names", [["a.yaml"], ["a.yaml", "b.yaml"], ["a.yaml", "b.yaml", "./a.yaml"]])
def test_a_circle_is_refused(tmp_path: Path, names: list[str]) -> None:
    for name, base_name in zip(names, [*names[1:], names[0]], strict=True):
        write(tmp_path, name, {"format": 1, "extends": base_name if "/" in base_name else f"./{base_name}"})
    with pytest.raises(UsageError, match="is circular"):
        load(str(tmp_path / "a.yaml"))


def test_a_curated_profile_can_be_extended(tmp_path: Path) -> None:
    path = write(tmp_path, "own.yaml", {"format": 1, "name": "own", "extends": "lab", "workspace": "/fast"})
    assert (load(str(path)).name, load(str(path)).workspace) == ("own", "/fast")


@pytest.mark.parametrize(
    ("lower", "upper", "both"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": {"b": 1}}, {"a": [1]}, {"a": [1]}),
        ({"a": [1, 2]}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
    ],
)
def test_merging(lower: dict[str, Any], upper: dict[str, Any], both: dict[str, Any]) -> None:
    assert merged(lower, upper) == both


def test_facts_come_from_the_file_beside(tmp_path: Path) -> None:
    record = base()
    tree = {"files": {"lib/libmpi.so.12.0": LIBRARY.record()}, "links": {"lib/libmpi.so.12": "libmpi.so.12.0"}}
    system = {"files": {"/usr/lib/libpsm2.so.2": LIBRARY.record()}, "links": {}}
    data = json_records.dumps(
        facts.record(None, {"batch": system}, {"intel-2021.15": tree, "not-in-the-profile": tree})
    )
    (tmp_path / "x.facts.json").write_bytes(data)
    record["facts"] = {"file": "x.facts.json", "sha256": hashlib.sha256(data).hexdigest()}
    profile = load(str(write(tmp_path, "x.yaml", record)))
    assert profile.mpi["intel-2021.15"].files == {"lib/libmpi.so.12.0": LIBRARY}
    found = profile.site_files("batch")
    assert found.files == {
        "/opt/intel/mpi/2021.15/lib/libmpi.so.12.0": LIBRARY,
        "/usr/lib/libpsm2.so.2": LIBRARY,
    }
    assert found.links == {"/opt/intel/mpi/2021.15/lib/libmpi.so.12": "libmpi.so.12.0"}
    assert json.loads(profile.model_dump_json())["mpi"]["intel-2021.15"]["files"]["lib/libmpi.so.12.0"]["exports"]
    (tmp_path / "x.facts.json").write_bytes(data + b" ")
    with pytest.raises(IntegrityError, match=r"x\.facts\.json is not the file of facts"):
        load(str(tmp_path / "x.yaml"))


def test_garbage_in_facts_is_told_with_its_place(tmp_path: Path) -> None:
    record = base()
    record["mpi"]["intel-2021.15"]["files"] = {"lib/libmpi.so.12": {"dynamic": 7}}
    with pytest.raises(UsageError, match=r"files\.lib/libmpi\.so\.12.*'dynamic' is not of type dict"):
        load(str(write(tmp_path, "x.yaml", record)))


def test_a_partition_inherits_what_it_does_not_say(tmp_path: Path) -> None:
    record = base()
    record["partitions"]["new"] = {"pmi": "pmi2", "glibc": "2.41", "fabric": {"provider": "verbs"}}
    profile = load(str(write(tmp_path, "x.yaml", record)))
    name, chosen = profile.partition()
    assert (name, chosen.glibc, chosen.fabric) == ("batch", "2.36", profile.fabric)
    _, new = profile.partition("new")
    assert new.fabric is not None
    assert (new.glibc, new.fabric.provider, new.fabric.kind) == ("2.41", "verbs", None)
    assert list(new.runtimes) == ["charliecloud"]


@pytest.mark.parametrize(
    ("taken", "key"),
    [
        (("workspace",), "workspace"),
        (("scheduler",), "scheduler"),
        (("policy",), r"policy\.runtimes"),
        (("partitions", "batch", "node"), r"partitions\.batch\.node"),
        (("partitions", "batch", "node", "memory_mb"), r"partitions\.batch\.node\.memory_mb"),
    ],
)
def test_no_plan_is_made_of_guesses(tmp_path: Path, taken: tuple[str, ...], key: str) -> None:
    record = base()
    inner = record
    for word in taken[:-1]:
        inner = inner[word]
    del inner[taken[-1]]
    profile = load(str(write(tmp_path, "x.yaml", record)))
    with pytest.raises(Unknown, match=f"lacks {key}$"):
        make_plan(profile, "tiny:1.0")


def test_the_age_of_facts(tmp_path: Path) -> None:
    record = base()
    record["mpi"]["intel-2021.15"]["source"] = {"kind": "captured", "where": "login1", "date": date(2026, 1, 1)}
    found = age(load(str(write(tmp_path, "x.yaml", record))), date(2026, 11, 21))
    assert [(each.group, each.days) for each in found] == [("mpi.intel-2021.15", 324), ("profile", 1)]


def test_facts_of_no_date_have_no_age(tmp_path: Path) -> None:
    record = base()
    record["mpi"]["intel-2021.15"]["source"] = {"kind": "unverified", "where": "hearsay"}
    found = age(load(str(write(tmp_path, "x.yaml", record))), date(2026, 11, 21))
    assert [(each.group, each.days) for each in found] == [("mpi.intel-2021.15", None), ("profile", 1)]


def test_the_plan_for_supermuc_ng_binds_what_the_published_job_binds(tmp_path: Path) -> None:
    path = write(tmp_path, "own.yaml", {"format": 1, "extends": "supermuc-ng", "workspace": "~/scratch"})
    plan = make_plan(load(str(path)), "tiny:1")
    assert [(bind.source, bind.target) for bind in plan.binds] == [("/lrz/sys", "/lrz/sys")]
    assert plan.modules_of("charliecloud") == ["slurm_setup", "mpi.intel/2019", "charliecloud"]
    assert plan.environment["I_MPI_PIN_RESPECT_CPUSET"] == "0"
    assert plan.environment["FI_PROVIDER"] == "psm2"
    assert (plan.node.cores, plan.node.memory_mb) == (48, 73432)


def test_a_profile_of_a_hundred_megabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as stream:
        stream.truncate(100 * 1024 * 1024)
    with pytest.raises(UsageError, match="has more than the 1048576 bytes allowed"):
        load(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
        ),
        "a: &a [*a]\n",
        "[" * 700,
        "format: 1\nmpi: !!python/object/apply:os.system [true]\n",
    ],
)
def test_bombs_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bomb.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"bomb\.yaml"):
        load(str(tmp_path / "bomb.yaml"))
    over = write(tmp_path, "over.yaml", {"format": 1, "extends": "./bomb.yaml"})
    with pytest.raises(UsageError, match=r"bomb\.yaml"):
        load(str(over))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"schema": "deployer.plan"}', b"[" * 100000, b"\xff\xfe"])
def test_a_file_of_facts_that_is_none_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.facts.json").write_bytes(data)
    record = {**base(), "facts": {"file": "x.facts.json", "sha256": hashlib.sha256(data).hexdigest()}}
    with pytest.raises(UsageError, match=r"x\.facts\.json"):
        load(str(write(tmp_path, "x.yaml", record)))


def overlay(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text("format: 1\nname: mine\n" + text)
    with pytest.raises(UsageError) as caught:
        resolve(str(path))
    return "\n".join([caught.value.message, *caught.value.details, caught.value.hint])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: lab.jsn\n", "mine.yaml:3: extends: no site profile is called 'lab.jsn', perhaps you meant 'lab'"),
        ("extends: ./lab.yml\n", "mine.yaml:3: extends: there is no file "),
        (
            "extends: lab\npartitions:\n  batc: {max_nodes: 1}\n",
            "mine.yaml:5: partitions.batc: what it extends has no such entry, perhaps you meant 'batch'",
        ),
        (
            "extends: lab\nmpi:\n  intel-2021.16: {module: x}\n",
            "mine.yaml:5: mpi.intel-2021.16: what it extends has no such entry, perhaps you meant 'intel-2021.15'",
        ),
    ],
)
def test_an_overlay_that_misses_what_it_extends_is_questioned(tmp_path: Path, text: str, said: str) -> None:
    assert said in overlay(tmp_path, text)


def test_a_new_partition_of_an_overlay_may_be_called_like_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    node = "{sockets: 1, cores: 1, threads_per_core: 1, memory_mb: 1}"
    path.write_text(f"format: 1\nname: mine\nextends: lab\npartitions:\n  batch2: {{node: {node}}}\n")
    assert "batch2" in resolve(str(path)).profile.partitions
