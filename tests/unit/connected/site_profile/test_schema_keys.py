"""Keys of the schema, what they mean for the plan, and the errors for wrong values."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.plan import make_plan
from deployer.contract.base.errors import Refused, Unknown, UsageError
from deployer.contract.site import plan as plans
from deployer.contract.site.plan import Batch, GpuRequest, Plan

Changes = dict[str, Any]


def site(tmp_path: Path, changes: Changes, batch: Changes) -> str:
    """Return the path of the lab's profile with other values at its top and in its partition."""
    record = yaml.safe_load((profiles.CURATED / "lab.yaml").read_text())
    record["partitions"]["batch"].update(batch)
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump({**record, **changes}))
    return str(path)


def plan(tmp_path: Path, changes: Changes | None = None, **batch: Any) -> Plan:
    return make_plan(profiles.load(site(tmp_path, changes or {}, batch)), "tiny:1.0", ["mpich-abi"])


def test_the_batch_systems_facts_are_in_the_plan(tmp_path: Path) -> None:
    node = {"sockets": 1, "cores": 64, "threads_per_core": 2, "memory_mb": 9000, "gpus": {"count": 4, "type": "a100"}}
    made = plan(
        tmp_path, queue="normal", qos="long", cluster="one", constraint="gpu&nvme", account_suffix="-gpu",
        gpu_request="gpus-per-node", node=node,
    )  # fmt: skip
    gpus = GpuRequest("gpus-per-node", 4, "a100")
    assert made.batch == Batch("normal", "long", "one", "gpu&nvme", "-gpu", (), gpus)
    assert (made.partition, made.queue) == ("batch", "normal")
    assert plans.read(json.dumps(made.record()).encode(), "it") == made


def test_gpus_are_requested_only_with_a_word_for_it_and_a_number(tmp_path: Path) -> None:
    node = {"sockets": 1, "cores": 64, "threads_per_core": 2, "memory_mb": 9000, "gpus": {"count": 4}}
    with pytest.raises(Unknown, match=r"lacks partitions\.batch\.gpu_request"):
        plan(tmp_path, node=node)
    assert plan(tmp_path, node=node, gpu_request="none").batch.gpus is None
    assert plan(tmp_path, node=node, directives=["--gres=gpu:4"]).batch.gpus is None
    scheduler = {"kind": "slurm", "pmi": ["pmi2"], "gpu_request": "gres"}
    assert plan(tmp_path, {"scheduler": scheduler}, node=node).batch.gpus == GpuRequest("gres", 4)
    assert plan(tmp_path, {"scheduler": scheduler}).batch.gpus is None
    assert plan(tmp_path, gpu_request="gres").batch.gpus == GpuRequest("gres", 0)  # jobs of this partition can
    different = {**node, "gpus": {}}  # nodes with and without GPUs
    assert plan(tmp_path, {"scheduler": scheduler}, node=different).batch.gpus == GpuRequest("gres", 0)
    assert (
        plan(tmp_path, {"scheduler": {"kind": "local"}}, node=node, pmi=None, launcher="mpiexec.hydra").batch.gpus
        is None
    )


def test_whole_nodes_and_memory_are_in_the_plan(tmp_path: Path) -> None:
    made = plan(tmp_path, exclusive=True, request_memory=True)
    assert (made.batch.exclusive, made.batch.request_memory) == (True, True)
    assert plans.read(json.dumps(made.record()).encode(), "it") == made
    assert plan(tmp_path).batch == Batch()


def test_setup_of_the_whole_site_comes_before_that_of_the_partition(tmp_path: Path) -> None:
    top = {"scripts": ["/etc/a.sh"], "module_paths": ["/opt/a"], "modules": ["a"], "devices": ["/dev/kfd"]}
    made = plan(tmp_path, top, scripts=["/etc/b.sh"], module_paths=["/opt/b"], modules=["b"])
    assert (made.scripts, made.module_paths) == (("/etc/a.sh", "/etc/b.sh"), ("/opt/a", "/opt/b"))
    assert made.modules == ["a", "b", "intel-mpi/2021.15"]
    assert made.devices == ("/dev/kfd",)


def test_modules_and_arguments_are_those_of_the_runtime(tmp_path: Path) -> None:
    runtimes = {
        "charliecloud": {"version": "0.38", "module": ["container", "charliecloud"], "arguments": ["--no-passwd"]},
        "apptainer": {"version": "1.4.0", "module": "apptainer"},
    }
    made = plan(tmp_path, {"runtimes": runtimes, "policy": {"runtimes": ["charliecloud", "apptainer"]}})
    own = {option.runtime: (option.modules, option.arguments) for option in made.start_options}
    assert own["charliecloud"] == (("container", "charliecloud"), ("--no-passwd",))
    assert own["apptainer"] == (("apptainer",), ())
    assert made.modules_of("apptainer") == ["intel-mpi/2021.15", "apptainer"]


def test_of_several_mpis_the_first_that_the_bundle_can_use_is_chosen(tmp_path: Path) -> None:
    mpi = {
        "intel": {"family": "intel", "prefix": "/opt/intel"},
        "openmpi": {"family": "openmpi", "prefix": "/opt/openmpi"},
        "mpich": {"family": "mpich", "prefix": "/opt/mpich"},
    }
    scheduler = {"kind": "slurm", "pmi": ["pmi2", "pmix"]}
    path = site(tmp_path, {"mpi": mpi, "scheduler": scheduler}, {"mpi": ["openmpi", "intel", "mpich"]})
    record = yaml.safe_load(Path(path).read_text())
    del record["partitions"]["batch"]["pmi"], record["partitions"]["batch"]["launcher"]
    Path(path).write_text(yaml.safe_dump(record))
    profile = profiles.load(path)

    def chosen(abis: list[str], name: str | None = None) -> tuple[str, str]:
        made = make_plan(profile.selected([], name), "tiny:1.0", abis)
        assert made.mpi
        return made.mpi.prefix, made.start_options[0].pmi

    assert chosen(["mpich-abi"]) == ("/opt/intel", "pmi2")
    assert chosen(["mpich-abi", "openmpi"]) == ("/opt/openmpi", "pmix")
    assert chosen(["mpich-abi"], "mpich") == ("/opt/mpich", "pmi2")
    with pytest.raises(Refused, match="of the family openmpi"):
        chosen(["mpich-abi"], "openmpi")
    with pytest.raises(UsageError, match="has the MPI 'cray'"):
        chosen(["mpich-abi"], "cray")


def test_mounts_with_placeholders_wait_for_the_site(tmp_path: Path) -> None:
    made = plan(tmp_path, {"mounts": ["/lustre/all", "$SCRATCH"]}, mounts=["/scratch/$PROJECT"])
    assert made.mounts == ("$SCRATCH", "/scratch/$PROJECT")
    assert "/lustre/all" in {bind.target for bind in made.binds}
    assert not any("$" in bind.target for bind in made.binds)


@pytest.mark.parametrize(
    ("changes", "batch", "message"),
    [
        ({"workspace": "scratch"}, {}, "workspace: 'scratch' is not valid: it must be an absolute path, or one that"),
        ({"workspace": "/x/${A-b}"}, {}, "workspace: /x/${A-b}: a $ is not followed by a variable's name"),
        ({"mounts": ["/usr"]}, {}, "mounts.0: invalid mount point: '/usr'"),
        ({"mounts": ["/tmp/$USER"]}, {}, "mounts.0: invalid mount point: '/tmp/x'"),
        ({}, {"module_path": ["/x"]}, "unknown key, perhaps you meant 'module_paths'"),
        ({"qos": "x"}, {}, "unknown key here: 'qos' belongs under partitions.NAME"),
        ({}, {"gpu_request": "ngpus"}, "partitions.batch.gpu_request: slurm knows gres and gpus-per-node, not 'ngpus'"),
        ({"scheduler": {"kind": "slurm", "storage": ["a/b"]}}, {}, "scheduler.storage: only pbs has such a request"),
        ({"devices": ["/etc/passwd"]}, {}, "devices.0: '/etc/passwd' is not valid: it must be a path below /dev"),
        ({"architecture": "x86"}, {}, "architecture: must be 'x86_64', 'aarch64'"),
        ({}, {"queue": "a b"}, "partitions.batch.queue: 'a b' is not valid"),
        ({}, {"mpi": ["intel-2021.15", "nono"]}, "partitions.batch.mpi: 'nono' is not in mpi of the profile"),
        ({"runtimes": {"charliecloud": {"arguments": ["/image"]}}}, {}, "arguments.0: '/image' is not valid"),
        *[
            (
                {"runtimes": {"apptainer": {"arguments": ["-W", word]}}},
                {},
                f"arguments.1: {word!r} is not valid: use mounts",
            )
            for word in ("--bind=/etc:/etc", "-B/etc", "-v", "--pass=*", "--set-env=A=1", "--nv", "--", "--env-file=/x")
        ],
        ({}, {"node": {"affinity": [{"numa_domain": 0}] * 2}}, "node.affinity: a NUMA domain is listed twice"),
        (
            {},
            {"node": {"gpus": {"count": 2}, "affinity": [{"numa_domain": 0, "gpus": [0]}]}},
            "each of the node's GPUs",
        ),
        ({}, {"node": {"gpus": {"target": "mi250"}}}, "gpus.target: 'mi250' is not valid"),
    ],
)
def test_wrong_values_are_named_with_their_line(tmp_path: Path, changes: Changes, batch: Changes, message: str) -> None:
    path = site(tmp_path, changes, batch)
    with pytest.raises(UsageError) as error:
        profiles.load(path)
    said = [line for line in error.value.lines() if message in line]
    assert said, error.value.lines()
    assert f"{path}:" in said[0]
