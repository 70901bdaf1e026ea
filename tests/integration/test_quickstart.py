"""README's first command, with the small definition and a lab of the test's own."""

import json
import subprocess
from typing import Any

import pytest

from tests.integration.conftest import ROOT
from tests.lab import Lab

NAME = "pytest-quickstart"


def quickstart(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [ROOT / "scripts" / "quickstart", *words],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs("root", "docker", "slurm", "munge", "ssh", "charliecloud", "lmod")
@pytest.mark.timeout(700)
def test_the_quickstart_runs_and_goes_down(environment: dict[str, str], engine: Any) -> None:
    own = {**environment, "QUICKSTART_LAB": NAME, "DOCKER_HOST": engine.docker_host}
    try:
        said = quickstart(own, "hello-mpi")
        assert "Intel(R) MPI Library" in said
        assert "in all" in said
        result = json.loads((ROOT / ".deployer" / "quickstart" / "hello-mpi-job" / "result.json").read_text())
        assert result["world_size"] == 2
    finally:
        assert "the lab is down" in quickstart(own, "--down")
        Lab(NAME).down(purge=True)
