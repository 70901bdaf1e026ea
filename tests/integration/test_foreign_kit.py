"""The kit for aarch64, made here by a cross compiler and tested under emulation of programs.

Such emulation has neither ptrace nor user namespaces, so nothing is started in a container here: docs/status.md.
"""

import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from deployer.contract.bundle.manifest import KIT_PREFIX
from deployer.contract.elf.machines import AARCH64, HEADER_SIZE, of_elf
from tests.integration.conftest import Cli

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.needs("root", "mmdebstrap", "aarch64-compiler", "aarch64-emulation", "squashfs"),
]

SITE = {
    "format": 1, "name": "grace", "workspace": "/scratch/me", "architecture": "aarch64",
    "source": {"kind": "document", "where": "a test", "date": "2026-11-28"},
    "scheduler": {"kind": "slurm"}, "policy": {"runtimes": ["charliecloud", "udocker"]},
    "partitions": {"batch": {"pmi": "none", "fuse": True, "node": {
        "sockets": 1, "cores": 2, "threads_per_core": 1, "memory_mb": 1000}}},
}  # fmt: skip


def _profile(folder: Path, architecture: str) -> Path:
    path = folder / f"{architecture}.yaml"
    path.write_text(yaml.safe_dump({**SITE, "architecture": architecture}))
    return path


@pytest.fixture(scope="module")
def bundle(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of a small aarch64 image for a site with aarch64 nodes and without any program of the kit."""
    folder = tmp_path_factory.mktemp("grace")
    (folder / "root/usr/bin").mkdir(parents=True)
    compiler = ["aarch64-linux-gnu-gcc", "-static", "-xc", "-", "-o", folder / "root/usr/bin/tool"]
    subprocess.run(compiler, input=b"int main(void) { return 0; }", check=True, timeout=60)
    image = ("--rootfs", folder / "root", "--name", "grace", "--version", "1")
    site = ("--site", _profile(folder, "aarch64"), "--kit", "squashfs-tools")
    cli("pack", *image, *site, "-o", folder / "b.tar", timeout=800)
    return folder / "b.tar"


@pytest.fixture(scope="module")
def unpacked(bundle: Path) -> Path:
    """Return the folder with the bundle's kit."""
    with tarfile.open(bundle) as tar:
        own = [member for member in tar if member.name.startswith(KIT_PREFIX)]
        tar.extractall(bundle.parent, own, filter="data")
    return bundle.parent / KIT_PREFIX


@pytest.mark.timeout(900)
def test_every_program_of_the_kit_is_for_the_nodes(cli: Cli, bundle: Path, unpacked: Path) -> None:
    found = {}
    for path in unpacked.rglob("*"):
        own = of_elf(path.read_bytes()[:HEADER_SIZE]) if path.is_file() else None
        if own:
            found[path.name] = own
    assert {"ch-run", "ld-linux-aarch64.so.1", "libc.so.6", "proot", "mksquashfs"} <= set(found)
    assert set(found.values()) == {AARCH64}
    sbom = json.loads(cli("inspect", bundle, "--sbom").stdout)
    urls = [each.get("purl", "") for each in sbom["components"]]
    assert "pkg:deb/debian/charliecloud-runtime@0.31-1?arch=arm64&distro=debian-12" in urls


def test_what_emulation_can_start_starts(unpacked: Path, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, env={"USER": "x"})
        return done.stdout + done.stderr

    assert "0.31" in run(str(unpacked / "charliecloud/run"), "--version")
    assert "built-in accelerators" in run(str(unpacked / "proot"), "--version")
    run(str(unpacked / "mksquashfs"), str(unpacked), str(tmp_path / "k"), "-comp", "zstd", "-no-progress")
    assert "squashfs-root/charliecloud/ch-run" in run("/usr/bin/unsquashfs", "-l", str(tmp_path / "k"))


def test_the_readme_states_what_was_not_tested(unpacked: Path) -> None:
    text = (unpacked / "README.udocker").read_text()
    assert ("it reads /deployer/canary on each node" in text) == (os.uname().machine != "aarch64")


def test_nodes_of_another_processor_refuse_it(cli: Cli, bundle: Path, tmp_path: Path) -> None:
    said = cli("check", bundle, "--site", _profile(tmp_path, "x86_64"), code=3).stdout
    assert "node.architecture" in said
