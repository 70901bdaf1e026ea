"""The definitions that are too heavy for the smoke tier, from build to a job on two nodes of each site. By hand."""

import json
import re
from pathlib import Path

import pytest

from tests.integration.conftest import SITES, WORKSPACE, Cli, Site
from tests.lab import Lab

LIBRARIES = {"lab": "Intel(R) MPI Library 2021.15", "lab-openmpi": "Open MPI v5.0.11"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "framework", "expected"),
    [
        ("horovod-tensorflow-cpu", "tensorflow", {"network": "ResNet50", "parameters": 25636712, "itex_active": True}),
        ("horovod-pytorch", "torch", {"parameters": 38282}),
    ],
)
def test_a_definition_runs_on_both_sites(
    built: Cli,
    site: Site,
    lab: Lab,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    framework: str,
    expected: dict[str, object],
) -> None:
    bundle = tmp_path_factory.mktemp("definition") / f"{name}.tar"
    built("build", f"bundles/{name}", timeout=3000)
    built("pack", f"bundles/{name}", *SITES, "-o", bundle)
    assert bundle.stat().st_size <= 470e6
    built("push", bundle, "lab", "--ssh-config", lab.ssh_config)
    try:
        for profile, library in LIBRARIES.items():
            result = site.run("--nodes", "2", bundle=name, site=profile)
            assert (result["site"], result["world_size"], result["findings"]) == (profile, 2, [])
            for rank in result["ranks"]:
                assert rank["mpi_library"].startswith(library)
                assert rank["mpi_identity"] == rank["host_mpi_identity"]
                assert rank["mpi_seen_in"] == "payload"
            assert result["payload"].items() >= {"world_size": 2, **expected}.items()
        said = " ".join(site.cli("doctor", *site.options, name, timeout=900).stdout.split())  # its lines are wrapped
        assert re.search(rf" ok horovod Horovod 0.28.1 with {framework} \S+: allreduce over 2 ranks is right ", said)
    finally:
        built("remove", *site.options, name)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["pytorch-ddp", "jax-cpu", "lora"])
def test_ranks_without_mpi_train_together_on_both_sites(built: Cli, lab: Lab, tmp_path: Path, name: str) -> None:
    bundle = tmp_path / f"{name}.tar"
    built("build", f"bundles/{name}", timeout=900)
    built("pack", f"bundles/{name}", *SITES, "-o", bundle)
    built("push", bundle, "lab", "--ssh-config", lab.ssh_config)
    site = Site(built, lab)
    try:
        for profile in LIBRARIES:
            result = site.run("--nodes", "2", bundle=name, site=profile)
            assert (result["site"], result["exit_code"], result["findings"]) == (profile, 0, [])
            assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
            payload = result["payload"]
            assert payload.items() >= {"world_size": 2, "weights_equal": True}.items()
            if name == "lora":
                assert payload["losses"][-1] < payload["losses"][0] / 2
            else:
                assert payload["parameters"] == 151306
                assert payload["val_accuracy"] >= 0.95
    finally:
        built("remove", *site.options, name)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "profile", "lines"),
    [
        # Compiled in the Dockerfile; the lines of the largest message, from rank 0.
        ("netpipe", "lab", [r"^ *\d+: +\d+ bytes +\d+ times --> +[\d.]+ Mbps in +[\d.]+ usec$"]),
        # Debian's, which reads its input from stdin, and was built without an engine.
        (
            "lammps",
            "lab-openmpi",
            [r"2 by 1 by 1 MPI processor grid|1 by 1 by 2 MPI", r"^Created 4000 atoms", r"^Loop time of"],
        ),
    ],
)
def test_an_application_without_python_runs_on_two_nodes(
    built: Cli, cli: Cli, lab: Lab, tmp_path: Path, name: str, profile: str, lines: list[str]
) -> None:
    laptop = built if name == "netpipe" else Cli({**cli.environment, "DOCKER_HOST": "unix:///nonexistent"})
    bundle = tmp_path / f"{name}.tar"
    laptop("build", f"bundles/{name}", timeout=900)
    laptop("pack", f"bundles/{name}", "--site", profile, "-o", bundle)
    laptop("push", bundle, profile, "--ssh-config", lab.ssh_config)
    site = Site(laptop, lab)
    try:
        result = site.run("--nodes", "2", bundle=name, site=profile)
        assert (result["world_size"], result["exit_code"]) == (2, 0)
        assert {rank["mpi_library"].startswith(LIBRARIES[profile]) for rank in result["ranks"]} == {True}
        log = site.alice(f"cat $(ls -td {WORKSPACE}/jobs/* | head -n 1)/output.log")
        for line in lines:
            assert re.search(line, log, re.MULTILINE), log
    finally:
        laptop("remove", *site.options, name)


#: The published workloads: words that make them smaller, and what their results must say.
PUBLISHED = {
    "3dgan": (
        ["--showers", "8", "--batch-size", "2", "--epochs", "3"],
        {"parameters": {"generator": 872948, "discriminator": 73450}, "learning_rate": 0.002},
    ),
    "downscaling": (
        ["--days", "4", "--batch-size", "2", "--epochs", "3"],
        {"parameters": 1615671, "learning_rate": 2e-4},
    ),
    "cnn-benchmark": (
        ["--network", "AlexNet", "--batch-size", "2", "--iterations", "3", "--warm-up", "1", "--batches", "1"],
        {"network": "AlexNet", "parameters": 61838248},
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_published_workloads_run_from_one_image(
    built: Cli, site: Site, lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second and third bundle ship only their app; `-s` shows the bytes sent, and the report."""
    folders, sent = [], []
    for name, (words, expected) in PUBLISHED.items():
        bundle = tmp_path / f"{name}.tar"
        built("build", f"bundles/{name}", timeout=3000)
        built("pack", f"bundles/{name}", "--site", "lab", "-o", bundle)
        pushed = json.loads(built("push", bundle, "lab", "--ssh-config", lab.ssh_config, "--json").stdout)
        bundle.unlink()
        result = site.run("--nodes", "2", "--", *words, bundle=name)
        assert (result["world_size"], result["findings"]) == (2, [])
        payload = result["payload"]
        assert payload.items() >= {"world_size": 2, "itex_active": True, **expected}.items()
        if name != "cnn-benchmark":
            losses = [[value for key, value in epoch.items() if key.endswith("loss")] for epoch in payload["epochs"]]
            assert all(last < first for first, last in zip(losses[0], losses[-1], strict=True)), losses
        folders.append(site.alice(f"ls -td {WORKSPACE}/jobs/* | head -n 1").strip())
        with capsys.disabled():
            print(f"{name}: {pushed['sent']} bytes sent; {result['seconds']} s; {payload['measured']}")
        sent.append(pushed["sent"])
        assert name == "3dgan" or sent[-1] < sent[0] / 100
    try:
        said = site.tool("report", *folders)
        assert "3dgan: seconds per epoch" in said
        assert "AlexNet: images per second" in said
        over_ssh = built("report", *site.options, *(Path(each).name for each in folders), "--csv").stdout
        assert [line.split(",")[1] for line in over_ssh.splitlines()[1:]] == ["3dgan", "AlexNet", "downscaling"]
        with capsys.disabled():
            print(said)
    finally:
        for name in PUBLISHED:
            built("remove", *site.options, name)
