"""What goes wrong on the way: one clear line, the documented exit code, and nothing left behind."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import ROOT, WORKSPACE, Cli, Site

Fault = Callable[..., None]


def says(done: object, *words: str) -> None:
    text = getattr(done, "stderr", done)
    for word in words:
        assert word in str(text)


def test_unknown_definition_and_site(cli: Cli, tmp_path: Path) -> None:
    says(cli("pack", "bundles/helo-mpi", "-o", tmp_path / "b.tar", code=2), "no definition", "hello-mpi")
    says(cli("push", tmp_path / "b.tar", "labb", code=2), "'labb'", "lab")


def test_broken_yaml(cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "bundles" / "hello-mpi", tmp_path / "broken")
    (tmp_path / "broken" / "bundle.yaml").write_text("name: [x\n")
    says(cli("build", tmp_path / "broken", code=2), "YAML", "bundle.yaml:2: ")


def test_no_engine(environment: dict[str, str]) -> None:
    cli = Cli({**environment, "DOCKER_HOST": "unix:///nowhere/docker.sock"})
    says(cli("build", "bundles/hello-mpi", code=7), "hint: ")


def test_wrong_key_and_changed_host_key(site: Site, bundle: Path, tmp_path: Path) -> None:
    text = site.lab.ssh_config.read_text()
    identity = next(line for line in text.splitlines() if "IdentityFile" in line)
    (tmp_path / "wrong").write_text(text.replace(identity, "  IdentityFile /nowhere"))
    says(site.cli("push", bundle, "lab", "--ssh-config", tmp_path / "wrong", code=5), "refused the login")
    says(site.cli("push", bundle, "lab", "--ssh-config", tmp_path / "none", code=2), "no ssh configuration")


def test_host_key_changed(site: Site, bundle: Path, fault: Fault) -> None:
    fault("new-hostkey")
    says(site.cli("push", bundle, "lab", "--ssh-config", site.lab.ssh_config, code=5), "host key", "ssh-keygen -R")


def test_login1_is_down(site: Site, bundle: Path, fault: Fault) -> None:
    fault("link-down", "laptop")
    says(site.cli("push", bundle, "lab", "--ssh-config", site.lab.ssh_config, code=5), "does not answer")


def test_no_space_on_login1(site: Site, bundle: Path, tmp_path: Path, fault: Fault) -> None:
    record = yaml.safe_load((ROOT / "site_profiles" / "lab.yaml").read_text())
    record["workspace"] = "/home/alice/scratch/deployer"
    (tmp_path / "full.yaml").write_text(yaml.safe_dump(record))
    push = ["push", bundle, tmp_path / "full.yaml", "--ssh-config", site.lab.ssh_config]
    site.alice("dd if=/dev/zero of=$HOME/scratch/fill bs=1M count=60 2>/dev/null; true")
    try:
        says(site.cli(*push, code=6), "free")
        assert (
            site.alice("ls $HOME/scratch/deployer/images $HOME/scratch/deployer/incoming | grep -c part; true").strip()
            == "0"
        )
    finally:
        site.alice("rm -rf $HOME/scratch/fill $HOME/scratch/deployer")


def test_a_corrupted_bundle(site: Site, bundle: Path, tmp_path: Path) -> None:
    broken = bytearray(bundle.read_bytes())
    broken[len(broken) // 2] ^= 1
    (tmp_path / "b.tar").write_bytes(broken)
    says(site.cli("push", tmp_path / "b.tar", "lab", "--ssh-config", site.lab.ssh_config, code=4), "digest")
    target = site.lab.home / "alice" / "broken.tar"
    target.write_bytes(broken)
    target.chmod(0o644)
    says(site.tool("install", "$HOME/broken.tar", "--root", "$HOME/other", code=4), "nothing was installed")
    assert site.alice("ls $HOME/other/images 2>/dev/null; true") == ""


def test_slurm_refuses_the_job(site: Site) -> None:
    before = site.alice(f"ls {WORKSPACE}/jobs 2>/dev/null; true")
    for asked, code in (("--nodes=3", "queue.nodes"), ("--partition=nope", "queue.partition")):
        done = site.cli("run", *site.options, "hello-mpi", "--plan", "lab", "--nodes", "2", asked, code=3)
        says(done, "deployer: error: ", "hint: ", f"({code})", f"more: deployer explain {code}")
    assert site.alice(f"ls {WORKSPACE}/jobs 2>/dev/null; true") == before


def test_a_layout_that_no_node_can_hold(site: Site) -> None:
    says(site.cli("run", *site.options, "hello-mpi", "--plan", "lab", "--threads", "64", code=3), "64")


@pytest.fixture
def hello_with(site: Site, built: Cli, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Yield a function that puts hello-mpi with another script on the site and returns its NAME:VERSION."""
    definition = tmp_path / "other"
    shutil.copytree(ROOT / "bundles" / "hello-mpi", definition)
    record = yaml.safe_load((definition / "bundle.yaml").read_text())
    record["version"] = "9.0.0"
    (definition / "bundle.yaml").write_text(yaml.safe_dump(record))

    def push(script: str) -> str:
        (definition / "app" / "hello.py").write_text(script)
        built("build", definition)
        built("pack", definition, "--site", "lab", "-o", tmp_path / "b.tar")
        built("push", tmp_path / "b.tar", "lab", "--ssh-config", site.lab.ssh_config)
        return "hello-mpi:9.0.0"

    yield push
    site.cli("remove", *site.options, "hello-mpi:9.0.0")


def test_the_training_script_raises(site: Site, hello_with: Callable[[str], str]) -> None:
    image = hello_with("raise ValueError('no such digit')\n")
    site.cli("run", *site.options, image, "--nodes", "2", "--wait", code=1)
    assert site.result()["exit_code"] == 1
    says(site.cli("logs", *site.options).stdout, "ValueError: no such digit")


def test_one_rank_raises(site: Site, hello_with: Callable[[str], str]) -> None:
    """Without `-m mpi4py` the other rank would wait in MPI_Finalize until the time limit."""
    image = hello_with(
        "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: raise ValueError('only here')\nMPI.COMM_WORLD.Barrier()\n"
    )
    site.cli("run", *site.options, image, "--nodes", "2", "--wait", code=1)
    result = site.result()
    assert result["exit_code"] != 0
    assert "payload.failed" in {finding["code"] for finding in result["findings"]}
    assert result["seconds"] < 200  # its limit is 300; MPI_Abort may cut the traceback short, so that is not asked for


@pytest.mark.slow
def test_the_time_limit(site: Site, hello_with: Callable[[str], str]) -> None:
    image = hello_with("import time\ntime.sleep(600)\n")
    site.cli("run", *site.options, image, "--nodes", "2", "--time", "00:01:00", "--wait", code=1)
    assert "TIMEOUT" in site.cli("status", *site.options).stdout
    assert {finding["code"] for finding in site.result()["findings"]} == {"job.time-limit"}
    for node in ("cn1", "cn2"):
        assert site.lab.sh(node, "root", "pgrep -u alice -f hello.py").stdout == ""


def test_nothing_was_installed_under_a_half_name(site: Site) -> None:
    assert site.alice(f"ls -A {WORKSPACE}/images | grep -c installing; true").strip() == "0"
    assert site.alice(f"ls -A {WORKSPACE}/incoming").strip() == ""
