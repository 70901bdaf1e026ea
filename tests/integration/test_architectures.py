"""One definition for two processors: a bundle for each, and both run at once.

The nodes of the second lab appear to be aarch64; qemu runs what is for it (``tests.lab.foreign``).
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import Cli, Site
from tests.lab import Lab, foreign

pytestmark = pytest.mark.slow

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
def bundles(cli: Cli, folder: Path) -> dict[str, Path]:
    """Return the bundle of each lab, by the name of its profile, built and packed without an engine."""
    sites = ["--site", str(folder / "own.yaml"), "--site", str(folder / "arm.yaml")]
    cli("build", folder, *sites, timeout=1800)
    cli("pack", folder, *sites, "-o", folder / "two.tar")
    return {"own": folder / f"two-{os.uname().machine}.tar", "arm": folder / f"two-{MACHINE}.tar"}


def _run(cli: Cli, bundle: Path, profile: Path, lab: Lab) -> dict[str, Any]:
    cli("push", bundle, profile, "--ssh-config", lab.ssh_config)
    cli("run", "--site", profile, "--ssh-config", lab.ssh_config, "two", "--wait", timeout=900)
    result = Site(cli, lab).result()
    assert result["exit_code"] == 0
    assert result["world_size"] == 2
    assert {rank["host_mpi_identity"] == rank["mpi_identity"] for rank in result["ranks"]} == {True}
    payload: dict[str, Any] = result["payload"]
    return payload


def test_each_site_gets_and_runs_its_own(cli: Cli, bundles: dict[str, Path], lab: Lab, arm: Lab, folder: Path) -> None:
    own, other = folder / "own.yaml", folder / "arm.yaml"
    assert _run(cli, bundles["own"], own, lab) == {"sum": 3, "size": 2, "machine": os.uname().machine}
    assert _run(cli, bundles["arm"], other, arm) == {"sum": 3, "size": 2, "machine": MACHINE}
    again = json.loads(cli("push", bundles["arm"], other, "--ssh-config", arm.ssh_config, "--json").stdout)
    assert again["sent"] == 0


@pytest.mark.usefixtures("bundles")
def test_a_changed_line_sends_only_itself(cli: Cli, arm: Lab, folder: Path) -> None:
    (folder / "app" / "add.py").write_text(PROGRAM + "# changed\n")
    profile = str(folder / "arm.yaml")
    cli("pack", folder, "--site", folder / "own.yaml", "--site", profile, "-o", folder / "new.tar")
    new = folder / f"new-{MACHINE}.tar"
    pushed = json.loads(cli("push", new, profile, "--ssh-config", arm.ssh_config, "--json").stdout)
    assert 0 < pushed["sent"] < 100_000


def test_a_bundle_for_another_processor_is_refused_before_anything_is_sent(
    cli: Cli, bundles: dict[str, Path], folder: Path
) -> None:
    assert "has no plan for lab-arm" in cli("push", bundles["own"], folder / "arm.yaml", code=3).stderr
