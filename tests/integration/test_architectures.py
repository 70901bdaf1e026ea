"""One definition for two processors: one file, from which each site gets its own bundle, and both run at once.

The nodes of the second lab appear to be aarch64; qemu runs what is for it (``tests.lab.foreign``).
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import Cli, Site
from tests.lab import Lab, foreign

MACHINE = "aarch64"
VERSION = foreign.MPICH_VERSION
#: Adds the ranks by the site's MPI, of the MPICH ABI on both sites.
PROGRAM = """\
import ctypes, json, os
mpi = ctypes.CDLL("libmpi.so.12", ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
size, rank, total, world = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), 0x44000000
mpi.MPI_Comm_size(world, ctypes.byref(size))
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Allreduce(ctypes.byref(ctypes.c_int(rank.value + 1)), ctypes.byref(total), 1, 0x4C000405, 0x58000003, world)
if rank.value == 0:
    with open(os.environ["DEPLOYER_RESULT"], "w") as stream:
        json.dump({"sum": total.value, "size": size.value, "machine": os.uname().machine}, stream)
mpi.MPI_Finalize()
"""


@pytest.fixture(scope="module")
def arm() -> Iterator[Lab]:
    """Yield a lab of aarch64 nodes, up; it is taken down at the end."""
    lab = foreign.lab(f"pytest-arm-{os.getpid()}", MACHINE)
    try:
        lab.up()
        yield lab
    finally:
        lab.down(purge=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the definition, and the profile of the second lab."""
    place = tmp_path_factory.mktemp("two")
    (place / "app").mkdir()
    (place / "app" / "add.py").write_text(PROGRAM)
    definition = {
        "name": "two",
        "version": "1.0.0",
        "base": {"debian": "bookworm", "include": ["python3"]},
        "mpi": ["mpich-abi"],
        "jobs": {"add": {"command": ["python3", "/deployer/app/add.py"], "nodes": 2}},
    }
    (place / "bundle.yaml").write_text(yaml.safe_dump(definition))
    mpi = {
        "family": "mpich", "version": VERSION, "prefix": f"/opt/mpich/{VERSION}", "library": "lib/libmpi.so.12",
        "libraries": ["lib"], "module": f"mpich/{VERSION}", "says": f"MPICH Version: {VERSION}",
    }  # fmt: skip
    profile = {
        "format": 1, "name": "lab-arm", "extends": "lab", "architecture": MACHINE, "mpi": {"mpich": mpi},
        "login": {"python": ["python3"]}, "partitions": {"batch": {"mpi": "mpich"}},
    }  # fmt: skip
    (place / "arm.yaml").write_text(yaml.safe_dump(profile))
    own = {"format": 1, "name": "lab-own", "extends": "lab", "architecture": os.uname().machine}
    (place / "own.yaml").write_text(yaml.safe_dump(own))
    return place


@pytest.fixture(scope="module")
def bundle(cli: Cli, folder: Path) -> Path:
    """Return one file for both labs, built and packed without an engine."""
    sites = ["--site", str(folder / "own.yaml"), "--site", str(folder / "arm.yaml")]
    cli("build", folder, *sites, timeout=1800)
    cli("pack", folder, *sites, "-o", folder / "two.tar")
    return folder / "two.tar"


@pytest.mark.needs("skopeo")
def test_other_tools_read_it_as_an_index_of_images(bundle: Path) -> None:
    for name in ("amd64", "arm64"):
        words = ["skopeo", "inspect", "--override-arch", name, f"oci-archive:{bundle}"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        assert json.loads(done.stdout)["Architecture"] == name


def _run(cli: Cli, bundle: Path, profile: str, lab: Lab) -> dict[str, Any]:
    pushed = json.loads(cli("push", bundle, profile, "--ssh-config", lab.ssh_config, "--json").stdout)
    assert 0 < pushed["sent"] < 0.7 * bundle.stat().st_size  # only its own
    cli("run", "--site", profile, "--ssh-config", lab.ssh_config, "two", "--wait", timeout=900)
    result = Site(cli, lab).result()
    assert result["exit_code"] == 0
    assert result["world_size"] == 2
    assert {rank["host_mpi_identity"] == rank["mpi_identity"] for rank in result["ranks"]} == {True}
    payload: dict[str, Any] = result["payload"]
    return payload


def test_each_site_gets_and_runs_its_own(cli: Cli, bundle: Path, lab: Lab, arm: Lab, folder: Path) -> None:
    assert _run(cli, bundle, str(folder / "own.yaml"), lab) == {"sum": 3, "size": 2, "machine": os.uname().machine}
    profile = str(folder / "arm.yaml")
    assert _run(cli, bundle, profile, arm) == {"sum": 3, "size": 2, "machine": MACHINE}
    again = json.loads(cli("push", bundle, profile, "--ssh-config", arm.ssh_config, "--json").stdout)
    assert again["sent"] == 0


@pytest.mark.slow
def test_a_changed_line_sends_only_itself(cli: Cli, bundle: Path, arm: Lab, folder: Path) -> None:
    (folder / "app" / "add.py").write_text(PROGRAM + "# changed\n")
    profile, new = str(folder / "arm.yaml"), folder / "new.tar"
    cli("pack", folder, "--site", folder / "own.yaml", "--site", profile, "-o", new)
    pushed = json.loads(cli("push", new, profile, "--ssh-config", arm.ssh_config, "--json").stdout)
    assert 0 < pushed["sent"] < 100_000


def test_a_site_whose_processor_the_file_lacks_is_named_before_anything_is_sent(
    cli: Cli, bundle: Path, folder: Path
) -> None:
    other = yaml.safe_load((folder / "arm.yaml").read_text())
    other.update(name="lab-power", architecture="ppc64le")
    (folder / "power.yaml").write_text(yaml.safe_dump(other))
    said = cli("push", bundle, folder / "power.yaml", code=2).stderr
    assert "has bundles for x86_64 and aarch64" in said
    assert "choose one" in said
