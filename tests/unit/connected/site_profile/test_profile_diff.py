"""profile diff: each field of the schema is compared, and what is said of plans is so."""

import copy
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from deployer.cli.laptop import main
from deployer.connected.site_profile import drift
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.machine import Machine
from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import Profile
from deployer.contract.base.errors import DeployerError

SOURCE = {"kind": "captured", "where": "login1", "date": "2026-01-01"}
LIBRARY = {
    "dynamic": {
        "machine": 62, "interpreter": None, "soname": "libx.so.1", "needed": [], "rpath": [], "runpath": [],
        "versions": {}, "defines": [], "now": False, "build_id": "aa",
    },
    "imports": [], "exports": [],
}  # fmt: skip
MACHINE = {
    "architecture": "x86_64",
    "os": "SLES 15.3",
    "kernel": "5.3",
    "page_size": 4096,
    "glibc": "2.31",
    "libzstd": "1.5.0",
    "pythons": {"/usr/bin/python3": "3.6.15"},
    "user_namespaces": True,
    "fuse": True,
    "runtimes": {
        "charliecloud": {
            "version": "0.31", "module": "charliecloud", "arguments": ["-W"], "setuid": False, "starts": True,
            "squashfs": "fuse", "sif": "fuse", "failure": "why",
        },
    },
    "launchers": ["srun"],
    "fabric": {
        "kind": "omni-path", "provider": "psm2", "providers": ["psm2", "tcp"], "devices": ["hfi1_0"],
        "libraries": {"libpsm2.so.2": "/usr/lib64/libpsm2.so.2"}, "environment": {"NCCL_CROSS_NIC": "1"},
        "source": SOURCE,
    },
    "network": {
        "expected": {way: {"latency_us": 1.9, "bandwidth_mb_s": 23900} for way in ("mpi", "tcp")},
        "limit": 0.4, "source": SOURCE,
    },
    "devices": ["/dev/kfd"],
    "driver": {
        "kind": "nvidia", "version": "550.54", "libraries": {"libcuda.so.1": "/usr/lib64/libcuda.so.1"},
        "smi": "/usr/bin/nvidia-smi", "source": SOURCE,
    },
    "filesystems": {
        "/scratch": {
            "type": "lustre", "shared": True, "size_mb": 1000000, "inodes": 1000000, "quota_mb": 500000,
            "quota_inodes": 500000, "purge_days": 30, "source": SOURCE,
        },
        "/tmp": {"type": "tmpfs", "shared": False, "size_mb": 50000},
    },
    "files": {"/usr/lib64/libpsm2.so.2": LIBRARY, "/usr/lib64/libcuda.so.1": LIBRARY},
    "links": {"/usr/lib64/libcuda.so": "libcuda.so.1"},
}  # fmt: skip
NODE = {
    "sockets": 2, "cores": 48, "threads_per_core": 2, "numa_domains": 2, "cpus": 96, "memory_mb": 90000,
    "memory_total_mb": 96000, "cpu": {"model": "Platinum 8174", "flags": ["avx2", "avx512f"]},
    "gpus": {
        "kind": "nvidia", "model": "V100", "type": "v100", "count": 4, "memory_mb": 16000, "capability": "7.0",
        "target": "gfx90a",
    },
    "affinity": [{"numa_domain": 0}],
}  # fmt: skip
MPI = {
    "family": "intel", "version": "2021.15", "prefix": "/opt/intel/mpi", "library": "lib/release/libmpi.so.12",
    "libraries": ["lib/release", "libfabric/lib"], "providers": "libfabric/lib/prov", "binds": ["/opt/intel/more"],
    "folders": {"OPAL_SYSCONFDIR": "/etc/openmpi"},
    "module": "intel-mpi", "launcher": "bin/mpiexec.hydra", "environment": {"I_MPI_DEBUG": "0"}, "says": "Intel(R) MPI",
    "soname": "libmpi.so.12", "identity": "build-id:aa", "files": {"lib/release/libmpi.so.12": LIBRARY},
    "links": {"lib/libmpi.so": "release/libmpi.so.12"}, "source": SOURCE,
}  # fmt: skip
#: Every field of the schema is in it; what is at the top holds in the one partition.
WHOLE: dict[str, Any] = {
    "format": 1,
    "name": "lab",
    "extends": "other",
    "description": "a site",
    "source": SOURCE,
    "facts": {"file": "lab.facts.json", "sha256": "a" * 64},
    "notes": ["a note"],
    "launch": "outside",
    "workspace": "/work",
    "scheduler": {
        "kind": "slurm", "version": "22.05", "pmi": ["pmi2", "pmix"], "account": "pr1",
        "gpu_request": "gres", "storage": [], "source": SOURCE,
    },
    "policy": {"runtimes": ["charliecloud", "udocker"], "account": True, "source": SOURCE},
    "scripts": ["/etc/site.sh"],
    "module_paths": ["/opt/modules"],
    "modules": ["slurm_setup"],
    "mounts": ["/lustre/all"],
    "mpi": {"intel-2021.15": MPI, "mpich": {"family": "mpich", "prefix": "/opt/mpich"}},
    **MACHINE,
    "login": {
        **MACHINE, "host": "login1", "transfer": "data1", "inbox": "/inbox/$USER", "python": ["python3", "python3.9"],
        "mksquashfs": True, "reaches_nodes": True, "source": SOURCE,
    },
    "partitions": {
        "batch": {
            "nodes": 100, "max_nodes": 16, "max_time": "48:00:00", "node": NODE, "mpi": "intel-2021.15",
            "queue": "normal", "qos": "long", "cluster": "one", "constraint": "cpu", "account": "pr2",
            "account_suffix": "-cpu", "gpu_request": "gres", "storage": [], "scripts": ["/etc/batch.sh"],
            "module_paths": ["/opt/more"],
            "launch": "outside",
            "launcher": "srun", "pmi": "pmi2", "modules": ["stack"], "environment": {"I_MPI_PIN": "1"},
            "directives": ["--constraint=cpu"], "mounts": ["/lustre/batch"], "source": SOURCE,
            "parallel_environment": "mpi", "hosts": ["cn1"], "exclusive": True, "request_memory": True,
        },
        "fat": {"node": NODE},
    },
}  # fmt: skip

Keys = tuple[str, ...]
#: Values that a field's type alone does not give.
OTHERS: dict[str, Any] = {
    "hosts": ["cn1", "cn2"],
    "sha256": "b" * 64,
    "max_time": "24:00:00",
    "identity": "build-id:bb",
    "date": "2026-02-02",
    "mpi": "mpich",
    "pmi": "pmix",
    "name": "lab-2",
    "target": "gfx1030",
    "gpu_request": "gpus-per-node",
    "directives": ["--constraint=gpu"],
    "devices": ["nvidia.com/gpu=all"],
    "affinity": [{"numa_domain": 1, "gpus": [0, 1, 2, 3]}],
    "arguments": ["--no-mount=hostfs"],
}


def models_of(annotation: Any) -> tuple[str, Any]:
    """Return how a field holds a model (``one``, ``named``), and the model; else ``leaf`` and its plain type."""
    if get_origin(annotation) in (Union, types.UnionType):
        (inner,) = (each for each in get_args(annotation) if each is not type(None))
        return models_of(inner)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "one", annotation
    if get_origin(annotation) is dict and models_of(get_args(annotation)[1])[0] == "one":
        return "named", get_args(annotation)[1]
    return "leaf", annotation


def fields(model: type[BaseModel], record: dict[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield each field of the schema that holds no model: its place in ``record``, and its type."""
    for name, field in model.model_fields.items():
        how, inner = models_of(field.annotation)
        if name not in record:
            assert model is not Profile, f"{name} is not in WHOLE"
            continue  # of a second partition, MPI or file system
        if how == "one":
            yield from fields(inner, record[name], (*above, name))
        elif how == "named":
            for key, value in record[name].items():
                yield from fields(inner, value, (*above, name, key))
        else:
            yield (*above, name), inner


def other(keys: Keys, annotation: Any, value: Any) -> Any:
    """Return another value that the field may have; None where there is but one."""
    if keys[-2:] == ("gpus", "count"):
        return None  # the node's affinity lists each of its GPUs
    if get_origin(annotation) is Literal:
        return next((each for each in get_args(annotation) if each != value), None)
    if isinstance(value, list) and not isinstance(OTHERS.get(keys[-1], ""), str):
        return OTHERS[keys[-1]]
    if isinstance(value, list):
        return [*value, "/another"] if keys[-1] != "runtimes" else [value[1], value[0]]
    if isinstance(value, dict):
        first = next(iter(value))
        if keys[-1] == "files":
            return {**value, first: {**LIBRARY, "imports": ["MPI_Init"]}}
        return {**value, first: value[first] + "x"}
    if keys[-1] in OTHERS and isinstance(value, str) and keys != ("login", "name"):
        return OTHERS[keys[-1]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value / 2
    return value + 1 if isinstance(value, int) else value + "x"


def put(keys: Keys, value: Any) -> dict[str, Any]:
    """Return WHOLE with another value at a place; None takes the field away."""
    record = copy.deepcopy(WHOLE)
    inner = record
    for key in keys[:-1]:
        inner = inner[key]
    if value is None:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    return record


def plan_of(profile: Profile) -> Any:
    """Return a plan of the profile, or why there is none."""
    try:
        return make_plan(profile, "hello:1")
    except DeployerError as error:
        return error.message


BEFORE = Profile.model_validate(WHOLE)
FIELDS = [(keys, annotation) for keys, annotation in fields(Profile, WHOLE)]


def value_at(keys: Keys) -> Any:
    inner: Any = WHOLE
    for key in keys:
        inner = inner[key]
    return inner


def changes() -> Iterator[tuple[Keys, dict[str, Any]]]:
    """Yield each field with a profile in which it has another value, and one in which it is left out."""
    for keys, annotation in FIELDS:
        if keys[-1] == "storage":
            continue  # the sample has Slurm, which knows no such request: see below
        for value in (other(keys, annotation, value_at(keys)), None):
            record = put(keys, value)
            try:
                Profile.model_validate(record)
            except ValueError:
                assert value is None, f"{'.'.join(keys)}: {value!r} is no other value"  # a field that there must be
            else:
                yield keys, record


def test_the_sample_has_every_field_of_the_schema() -> None:
    def walk(model: type[BaseModel], record: dict[str, Any], where: str) -> None:
        # What is at the top holds in partitions, so they need not have it.
        own = set(model.model_fields) - (set(Machine.model_fields) if where.startswith("partitions") else set())
        assert own <= set(record), f"{where}: {sorted(own - set(record))}"
        for name in own:
            how, inner = models_of(model.model_fields[name].annotation)
            if how == "one":
                walk(inner, record[name], f"{where}{name}.")
            elif how == "named":
                walk(inner, next(iter(record[name].values())), f"{where}{name}.")

    walk(Profile, WHOLE, "")


def test_what_holds_for_all_partitions_is_the_models() -> None:
    assert set(drift.SHARED) == set(Machine.model_fields)


@pytest.mark.thorough
def test_each_field_is_reported_with_what_it_means_for_plans() -> None:
    before, plan = profiles.comparable(BEFORE), plan_of(BEFORE)
    for keys, record in changes():
        after = Profile.model_validate(record)
        found = drift.between(before, profiles.comparable(after))
        where = ".".join(keys)
        assert found, f"{where}: not reported"
        # Each is of this field, or of what is in it; a fact of all is reported in each partition.
        assert all(keys[-1] in each.place for each in found), f"{where}: {[each.place for each in found]}"
        assert all((each.severity, each.meaning) != drift.UNKNOWN for each in found), f"{where}: what does it mean?"
        if plan_of(after) != plan:
            said = [each.meaning for each in found]
            assert any("make new plans" in meaning for meaning in said), f"{where}: plans change, and it says {said}"


def test_other_storage_of_a_pbs_changes_plans() -> None:
    short = {"format": 1, "name": "x", "source": SOURCE}
    one, two = (
        profiles.comparable(Profile.model_validate({**short, "scheduler": {"kind": "pbs", "storage": [each]}}))
        for each in ("scratch/ab12", "gdata/ab12")
    )
    found = drift.between(one, two)
    assert {(each.place, each.kind) for each in found} == {("scheduler.storage", "gone"), ("scheduler.storage", "new")}
    assert all("make new plans" in each.meaning for each in found)


@pytest.mark.parametrize(
    ("after", "place", "word"),
    [
        (put(("policy",), {"runtimes": ["udocker"]}), "policy.runtimes", "make new plans"),
        (put(("policy", "account"), None), "policy.account", "make new plans"),
        (put(("workspace",), "/other"), "workspace", "make new plans"),
        (put(("scheduler", "account"), "pr2"), "scheduler.account", "make new plans"),
        (put(("partitions", "batch", "max_nodes"), None), "partitions.batch.max_nodes", "make new plans"),
        (put(("partitions", "batch", "launcher"), "mpirun"), "partitions.batch.launcher", "make new plans"),
        (put(("partitions", "batch", "environment"), {}), "partitions.batch.environment", "make new plans"),
        (put(("partitions", "batch", "mpi"), "mpich"), "partitions.batch.mpi", "another MPI"),
        (put(("description",), "other words"), "description", "documentation only"),
        (put(("policy", "runtimes"), ["udocker", "charliecloud"]), "policy.runtimes", "make new plans"),  # the order
        (put(("login", "python"), ["python3.9", "python3"]), "login.python", "make new plans"),
        (put(("modules",), ["slurm_setup", "slurm_setup"]), "modules", "make new plans"),
    ],
)
def test_what_was_forgotten(after: dict[str, Any], place: str, word: str) -> None:
    found = drift.between(profiles.comparable(BEFORE), profiles.comparable(Profile.model_validate(after)))
    assert {each.place.split(".I_MPI")[0] for each in found} >= {place}
    assert any(word in each.meaning for each in found)


def test_the_default_partition_is_the_first() -> None:
    after = put(("partitions",), dict(reversed(WHOLE["partitions"].items())))
    (found,) = drift.between(profiles.comparable(BEFORE), profiles.comparable(Profile.model_validate(after)))
    assert (found.place, found.was, found.now) == ("partitions", "batch", "fat")
    assert "default" in found.meaning


def test_a_new_partition_and_a_new_mpi_change_no_plan() -> None:
    for group in ("partitions", "mpi"):
        after = put((group,), {**WHOLE[group], "new": next(iter(WHOLE[group].values()))})
        (found,) = drift.between(profiles.comparable(BEFORE), profiles.comparable(Profile.model_validate(after)))
        assert (found.place, found.kind, found.severity) == (f"{group}.new", drift.NEW, "note")


def test_a_default_that_is_written_down_is_no_difference() -> None:
    short = {"format": 1, "name": "x", "source": SOURCE}
    long = {**short, "login": {"python": ["python3"]}, "mpi": {}, "description": ""}
    one, two = (profiles.comparable(Profile.model_validate(each)) for each in (short, long))
    assert drift.between(one, two) == []


def test_a_profile_without_partitions_is_compared_too() -> None:
    short = {"format": 1, "name": "x", "source": SOURCE, "glibc": "2.31"}
    one, two = (profiles.comparable(Profile.model_validate(each)) for each in (short, {**short, "glibc": "2.36"}))
    assert [each.place for each in drift.between(one, two)] == ["glibc"]


def test_diff_prints_what_each_difference_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, policy in (("a", {"runtimes": ["udocker"]}), ("b", {"runtimes": ["udocker"], "account": True})):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"format": 1, "name": "x", "source": SOURCE, "policy": policy}))
        paths.append(str(path))
    assert main.main(["profile", "diff", *paths]) == 0
    said = capsys.readouterr().out
    assert "new      policy.account: True" in said
    assert "make new plans" in said
    assert "1 difference\n" in said
