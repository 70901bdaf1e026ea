"""The real job: TensorFlow, ITEX and Horovod on two nodes with the host's Intel MPI."""

from pathlib import Path

import pytest

from tests.integration.conftest import Cli, Site
from tests.lab import Lab


@pytest.mark.timeout(2400)
def test_digits_are_learned_on_two_nodes(built: Cli, site: Site, lab: Lab, tmp_path: Path) -> None:
    bundle = tmp_path / "digits.tar"
    built("build", "bundles/digits-horovod", timeout=1800)
    built("pack", "bundles/digits-horovod", "--site", "lab", "-o", bundle)
    built("push", bundle, "lab", "--ssh-config", lab.ssh_config)
    try:
        layout = ["--nodes", "2", "--ranks-per-node", "1", "--threads", "1"]
        built("run", *site.options, "digits-horovod", *layout, "--wait", timeout=900)
        result = site.result()
    finally:
        built("remove", *site.options, "digits-horovod")
    assert result["world_size"] == 2
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
    payload = result["payload"]
    assert payload["val_accuracy"] >= 0.95
    assert payload["itex_active"]
    assert payload["world_size"] == 2
    assert all(epoch["seconds"] > 0 and 0 < epoch["accuracy"] <= 1 for epoch in payload["epochs"])
