"""The real job: TensorFlow, ITEX and Horovod on two nodes, one bundle for a site of Intel MPI and one of Open MPI, and
for sites that allow one other runtime each."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.contract.site.runtime_table import RUNTIMES
from tests.integration.conftest import SITES, Cli, Site, image_folder
from tests.lab import Lab, apptainer

LAYOUT = ("--nodes", "2", "--ranks-per-node", "1", "--threads", "1")
#: Runtimes of sites that are like the lab apart from them.
OTHERS = ("apptainer", "podman", "charliecloud-kit", "udocker")


def _like_the_lab(folder: Path, runtime: str) -> Path:
    """Return the profile of a site that allows one runtime, and lacks its own if the bundle's kit has it."""
    known = RUNTIMES[runtime]
    record = {
        "format": 1,
        "name": f"lab-{runtime}",
        "extends": "lab",
        "policy": {"runtimes": [known.policy_name]},
        "runtimes": {"charliecloud": None, **({} if known.carried else {runtime: {}})},
    }
    path = folder / f"{record['name']}.json"
    path.write_text(json.dumps(record))
    return path


@pytest.fixture(scope="module")
def digits(built: Cli, site: Site, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield the lab with digits-horovod on it, pushed once for both sites."""
    folder = tmp_path_factory.mktemp("digits")
    bundle = folder / "digits.tar"
    others = [word for runtime in OTHERS for word in ("--site", _like_the_lab(folder, runtime))]
    built("build", "bundles/digits-horovod", timeout=1800)
    built("pack", "bundles/digits-horovod", *SITES, *others, "-o", bundle)
    built("push", bundle, "lab", "--ssh-config", lab.ssh_config)
    yield site
    built("remove", *site.options, "digits-horovod")


@pytest.mark.timeout(2400)
def test_digits_are_learned_on_two_nodes(digits: Site) -> None:
    result = digits.run(*LAYOUT, bundle="digits-horovod")
    assert (result["site"], result["world_size"], result["findings"]) == ("lab", 2, [])
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
        assert rank["mpi_seen_in"] == "payload"
        assert rank["itex"]["library"].startswith("libitex_cpu_internal_")  # which, the CPU decides
    payload = result["payload"]
    assert payload["val_accuracy"] >= 0.95
    assert payload["itex_active"]
    assert payload["threads"] == [1, 1]  # as the layout says; 0 is TensorFlow's own choice, all cores of the node
    assert payload["world_size"] == 2
    assert all(epoch["seconds"] > 0 and 0 < epoch["accuracy"] <= 1 for epoch in payload["epochs"])


def test_the_same_bundle_trains_on_open_mpi(digits: Site) -> None:
    result = digits.run(*LAYOUT, "--", "--epochs", "2", bundle="digits-horovod", site="lab-openmpi")
    assert (result["site"], result["world_size"], result["findings"]) == ("lab-openmpi", 2, [])
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Open MPI v5.0.11")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
        assert rank["mpi_seen_in"] == "payload"
    payload = result["payload"]
    assert (payload["world_size"], len(payload["epochs"])) == (2, 2)
    assert payload["epochs"][1]["loss"] < payload["epochs"][0]["loss"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("runtime", OTHERS)
def test_the_same_bundle_trains_with_each_runtime(digits: Site, runtime: str) -> None:
    """`-s` shows a row for docs/runtimes.md."""
    apptainer.install(digits.lab)
    try:
        result = digits.run(*LAYOUT, "--plan", f"lab-{runtime}", bundle="digits-horovod")
    finally:
        apptainer.remove(digits.lab)
    assert (result["runtime"], result["world_size"], result["findings"]) == (runtime, 2, [])
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
        assert rank["mpi_seen_in"] == "payload"
        assert rank["itex"]["library"].startswith("libitex_cpu_internal_")
    payload = result["payload"]
    assert payload["val_accuracy"] >= 0.95
    epochs = sum(epoch["seconds"] for epoch in payload["epochs"])
    print(f"| `{runtime}` | {payload['val_accuracy']:.4f} | {epochs:.1f} | {result['seconds']} |")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_jobs_of_slurm_continue_a_training_to_the_same_accuracy(digits: Site) -> None:
    """Each job is warned as soon as its MPI has run for a while, so at rest there are about three, under load many."""
    epochs = ["--", "--epochs", "60"]
    whole = digits.run(*LAYOUT, *epochs, bundle="digits-horovod")["payload"]
    limit = ["--time", "00:03:00", "--warn", "175", "--again", "70"]
    last = digits.run(*LAYOUT, *limit, *epochs, bundle="digits-horovod")
    assert (last["exit_code"], last["findings"]) == (0, [])
    continued = last["payload"]
    assert 0 < continued["continued_from"] < 60
    assert [epoch["epoch"] for epoch in continued["epochs"]] == list(range(1, 61))
    assert abs(continued["val_accuracy"] - whole["val_accuracy"]) < 0.02


@pytest.mark.slow
def test_a_payload_without_intels_extension_is_ended(digits: Site) -> None:
    """TensorFlow's plug-ins are covered by an empty folder; `-s` shows the seconds, for docs/evidence/benchmarks.md."""
    rootfs = image_folder(digits, "digits-horovod") / "rootfs"
    (plugins,) = rootfs.glob("usr/local/lib/python3*/*-packages/tensorflow-plugins")
    bind = f"/var/tmp/none:/{plugins.relative_to(rootfs)}"
    for node in ("login1", "cn1", "cn2"):
        digits.lab.sh(node, "root", "mkdir -p /var/tmp/none")
    result = digits.run(*LAYOUT, "--bind", bind, bundle="digits-horovod", code=1)
    assert [finding["code"] for finding in result["findings"]] == ["itex.inactive"]
    assert (result["exit_code"], result["payload"]) == (3, None)
    print(f"| `itex.inactive` | {result['seconds']} | {result['exit_code']} |")


@pytest.mark.slow
def test_doctor_proves_horovod(digits: Site) -> None:
    said = " ".join(digits.cli("doctor", *digits.options, "digits-horovod").stdout.split())  # its lines are wrapped
    assert " ok horovod Horovod 0.28.1 with tensorflow 2.15.1: allreduce over 2 ranks is right " in said
