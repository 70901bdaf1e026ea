"""The definitions that are too heavy for the smoke tier, from build to a job on two nodes of each site. By hand."""

import re

import pytest

from tests.integration.conftest import SITES, Cli, Site
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
        said = site.cli("doctor", *site.options, name, timeout=900).stdout
        assert re.search(
            rf"^ok +horovod +Horovod 0.28.1 with {framework} \S+: allreduce over 2 ranks is right", said, re.MULTILINE
        )
    finally:
        built("remove", *site.options, name)
