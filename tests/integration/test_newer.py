"""A site that nobody curated: captured, a plan for each MPI and launcher that it has, each checked, and run.

``scripts/newer`` gives the lab's nodes another Debian suite: then these are its Slurm, Charliecloud, Python, C library,
with options, words and formats of their own.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import WORKSPACE, Cli, Site
from tests.integration.test_launchers import SUM
from tests.lab import versions
from tests.lab.cluster import SUITE_VARIABLE

pytestmark = pytest.mark.slow

NAME = "newer"
INTEL, OPENMPI = "/opt/intel/mpi/2021.15", "/opt/openmpi/5.0.11"
#: Plans: prefix of the MPI, launcher, PMI, and what the library says of itself. Without a launcher one is chosen.
PLANS = {
    "intel-srun": (INTEL, "srun", "pmi2", "Intel(R) MPI Library 2021.15"),
    "intel-hydra": (INTEL, "mpiexec.hydra", None, "Intel(R) MPI Library 2021.15"),
    "openmpi-srun": (OPENMPI, "srun", "pmix", "Open MPI v5.0.11"),
    "openmpi-mpirun": (OPENMPI, "mpirun", None, "Open MPI v5.0.11"),
    "intel-chosen": (INTEL, None, None, "Intel(R) MPI Library 2021.15"),
    "openmpi-chosen": (OPENMPI, None, None, "Open MPI v5.0.11"),
}
#: Programs, and the packages that bring them.
PROGRAMS = {"Slurm": "slurm-client", "Charliecloud": "charliecloud", "glibc": "libc6"}


@pytest.fixture(scope="module")
def profiles(captured: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a profile for each plan that the site's srun allows: the capture, and a few decisions."""
    folder = tmp_path_factory.mktemp("newer")
    found = json.loads(captured.read_text())
    named = {mpi["prefix"]: name for name, mpi in found["mpi"].items()}
    made = {}
    for name, (prefix, launcher, pmi, _) in PLANS.items():
        if pmi and pmi not in found["scheduler"]["pmi"]:
            continue
        record: dict[str, Any] = {
            "format": 1,
            "name": name,
            "extends": str(captured),
            "workspace": "~/deployer",
            "login": {"host": "login1"},
            "policy": {"runtimes": ["charliecloud"]},
            "partitions": {"batch": {"mpi": named[prefix], "launcher": launcher, "pmi": pmi}},
        }
        made[name] = folder / f"{name}.json"
        made[name].write_text(json.dumps(record))
    return made


@pytest.fixture(scope="module")
def packed(site: Site, profiles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return hello-mpi without its job, with all the plans, which is on the site, as SquashFS too."""
    bundle = tmp_path_factory.mktemp("newer") / "newer.tar"
    named = ["--image", "deployer/hello-mpi:1.0.0", "--name", NAME, "--version", "1"]
    site.cli("pack", *named, *(word for path in profiles.values() for word in ("--site", path)), "-o", bundle)
    site.cli("push", bundle, "lab", "--without-plan", "--ssh-config", site.lab.ssh_config)
    site.tool("install", f"{WORKSPACE}/bundles/{NAME}-1.tar", "--squashfs")
    return bundle


@pytest.mark.skipif(not os.environ.get(SUITE_VARIABLE), reason="the nodes are of this machine's suite")
def test_the_programs_are_the_suites(site: Site) -> None:
    """What runs on the nodes has the versions of the packages in their root, and none has this machine's."""
    there, here = (_packages(Path(root)) for root in (site.lab.definition().site.root, "/"))
    said = versions.versions(site.lab)
    for program, package in PROGRAMS.items():
        assert _upstream(there[package]).startswith(said[program]), program
        assert not _upstream(here[package]).startswith(said[program]), program
    site_python = site.alice("""python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])'""").strip()
    assert _upstream(there["python3"]).startswith(site_python)
    job_says = site.alice("srun -N2 -l sh -c 'srun --version; ch-run --version; python3 --version' </dev/null 2>&1")
    assert {line.split(": ", 1)[0] for line in job_says.splitlines()} == {"0", "1"}
    assert job_says.count(said["Slurm"]) == job_says.count(said["Python"]) == 2


@pytest.mark.parametrize("name", PLANS)
def test_a_captured_site_runs_what_check_says(
    site: Site, packed: Path, profiles: dict[str, Path], cli: Cli, name: str
) -> None:
    offered(profiles, name)
    checked = json.loads(cli("check", packed, "--site", profiles[name], "--json").stdout)
    # A note: a library of the newer site, which the MPI can do without, needs a newer C++ library than the image's.
    assert (checked["verdict"], {each["severity"] for each in checked["findings"]} - {"note"}) == ("RUN", set())
    result = site.run("--plan", name, "--nodes", "2", "--", "python3", "-c", SUM, bundle=NAME)
    assert (result["site"], result["world_size"], result["exit_code"], result["findings"]) == (name, 2, 0, [])
    assert [(rank["rank"], rank["host"]) for rank in result["ranks"]] == [(0, "cn1"), (1, "cn2")]
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith(PLANS[name][3])
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
        assert rank["mpi_seen_in"] == "payload"
    assert result["payload"]["sum"] == 3


@pytest.mark.parametrize("staging", ["folder", "memory", "squashfs"])
@pytest.mark.parametrize("name", [name for name in PLANS if PLANS[name][1]])
def test_each_launcher_starts_ranks_in_each_form_of_the_image(
    site: Site, packed: Path, profiles: dict[str, Path], name: str, staging: str
) -> None:
    offered(profiles, name)
    words = ["--plan", name, "--nodes", "2", "--staging", staging, "--", "python3", "-c", SUM]
    result = site.run(*words, bundle=NAME)
    assert (result["variant"], result["world_size"]) == (f"charliecloud-{staging}", 2)
    assert (result["exit_code"], result["findings"], result["payload"]["sum"]) == (0, [], 3)
    for node in ("cn1", "cn2"):
        assert site.lab.sh(node, "root", "ls -A /dev/shm; pgrep -u alice").stdout == ""


def offered(profiles: dict[str, Path], name: str) -> None:
    if name not in profiles:  # Slurm 26.05 of Debian's sid came without its plugin for PMIx
        pytest.skip(f"the site's srun offers no {PLANS[name][2]}")


def _packages(root: Path) -> dict[str, str]:
    """Return the packages of a root filesystem, with their versions."""
    entries = (root / "var/lib/dpkg/status").read_text().split("\n\n")
    fields = [dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line) for entry in entries]
    return {entry["Package"]: entry["Version"] for entry in fields if entry.get("Status", "").endswith(" installed")}


def _upstream(version: str) -> str:
    return version.partition(":")[2] or version
