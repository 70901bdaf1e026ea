"""conda: environments that rattler solved and conda-pack packed, in images of a real engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conda_channel import MICROMAMBA, PLACEHOLDER, package
from tests.conftest import ROOT
from tests.integration.conftest import Cli

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.needs("root", "docker", "mmdebstrap")]

DEFINITION = """\
name: pytest-conda
version: "1"
base: {{debian: bookworm, include: [python3]}}
conda: {file}
mpi: []
jobs: {{only: {{command: [tool]}}}}
"""
#: conda-unpack runs with the environment's own Python, which here starts the base's.
PYTHON = {"bin/python": '#!/bin/sh\nexec /usr/bin/python3 "$@"\n'}
TOOL = {
    "bin/tool": f"#!/bin/sh\necho tool of {PLACEHOLDER}\n",
    "lib/binary": f"\0{PLACEHOLDER}/share\0",
    "etc/conda/activate.d/tool.sh": "export TOOL=1\n",
}


class Conda:
    """The programs on the laptop, a channel and environments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.channel, self.bin = folder, folder / "channel", folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.python = folder / "venv/bin/python"
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "--requirement", ROOT / "tests/lab/conda.txt"], check=True, timeout=800)
        self.bin.mkdir()
        (self.bin / "micromamba").write_text(f"#!{self.python}\n{MICROMAMBA}")
        (self.bin / "conda-pack").symlink_to(folder / "venv/bin/conda-pack")
        (self.bin / "micromamba").chmod(0o755)
        package(self.channel, "python", PYTHON)
        package(self.channel, "tool", TOOL, ["python"])
        package(self.channel, "tool", TOOL, subdir="linux-aarch64")

    def file(self, name: str, *wanted: str) -> Path:
        """Write an environment file."""
        path = self.folder / name
        lines = ["channels:", f"  - {self.channel.as_uri()}", "dependencies:", *(f"  - {spec}" for spec in wanted)]
        path.write_text("\n".join(lines) + "\n")
        return path

    def packed(self, name: str, platform: str = "linux-64") -> Path:
        """Make an environment and pack it as its user would."""
        prefix, archive = self.folder / name, self.folder / f"{name}.tar.gz"
        file = self.file(f"{name}.yml", "tool")
        words = ["create", f"--file={file}", f"--prefix={prefix}", f"--platform={platform}"]
        subprocess.run([self.bin / "micromamba", *words], check=True)
        subprocess.run([self.bin / "conda-pack", "--quiet", "--prefix", prefix, "--output", archive], check=True)
        return archive


@pytest.fixture(scope="module")
def conda(tmp_path_factory: pytest.TempPathFactory) -> Conda:
    return Conda(tmp_path_factory.mktemp("conda"))


@pytest.fixture
def laptop(environment: dict[str, str], engine: Any, conda: Conda, tmp_path: Path) -> Cli:
    own = {"DOCKER_HOST": engine.docker_host, "PATH": f"{conda.bin}:{environment['PATH']}"}
    caches = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "cache" / "deployer").mkdir(parents=True)
    shared = Path(environment.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "deployer" / "bases"
    (tmp_path / "cache" / "deployer" / "bases").symlink_to(shared)
    return Cli({**environment, **own, **caches})


def defined(folder: Path, file: Path, dockerfile: str = "") -> Path:
    place = folder / "definition"
    place.mkdir()
    (place / file.name).write_bytes(file.read_bytes())
    (place / "bundle.yaml").write_text(DEFINITION.format(file=file.name))
    if dockerfile:
        (place / "Dockerfile").write_text(dockerfile)
    return place


def contents(laptop: Cli, place: Path, tmp_path: Path) -> tuple[str, str, list[str]]:
    """Build and pack; return what the tool prints, its prefix in a binary, and the packages of conda in the SBOM."""
    laptop("build", place)
    image = ["docker", "run", "--rm", "--network=none", "deployer/pytest-conda:1"]
    said, binary = (
        subprocess.check_output([*image, *words], env=laptop.environment).strip(b"\0").decode()
        for words in (["tool"], ["cat", "/opt/conda/lib/binary"])
    )
    laptop("pack", place, "-o", tmp_path / "b.tar")
    sbom = json.loads(laptop("inspect", "--sbom", tmp_path / "b.tar").stdout)
    purls = [each.get("purl", "") for each in sbom["components"]]
    return said, binary, sorted(purl.partition("?")[0] for purl in purls if purl.startswith("pkg:conda/"))


WANTED = ("tool of /opt/conda\n", "/opt/conda/share", ["pkg:conda/python@1.2", "pkg:conda/tool@1.2"])


@pytest.mark.timeout(900)
def test_a_packed_environment_is_unpacked_at_its_place(conda: Conda, laptop: Cli, tmp_path: Path) -> None:
    place = defined(tmp_path, conda.packed("mine"), "ARG BASE\nFROM ${BASE}\nRUN tool >/said\nCOPY . /context\n")
    assert contents(laptop, place, tmp_path) == WANTED
    listed = laptop("inspect", "--files", tmp_path / "b.tar").stdout
    assert " /said\n" in listed
    assert "/context/mine.tar.gz" not in listed  # it is not sent a second time
    assert laptop("build", place, "--json").stdout.count('"cached": 2') == 1
    # Another environment is another image.
    (place / "mine.tar.gz").write_bytes(conda.packed("other").read_bytes())
    laptop("pack", place, "-o", tmp_path / "c.tar", code=3)


@pytest.mark.timeout(900)
def test_an_environment_file_is_solved_and_packed_once(conda: Conda, laptop: Cli, tmp_path: Path) -> None:
    place = defined(tmp_path, conda.file("environment.yml", "tool"))
    assert contents(laptop, place, tmp_path) == WANTED
    made = list((tmp_path / "cache/deployer/conda").iterdir())
    assert len(made) == 1
    laptop("build", place)
    assert list((tmp_path / "cache/deployer/conda").iterdir()) == made


@pytest.mark.timeout(900)
def test_what_cannot_be_an_environment_of_the_image(conda: Conda, laptop: Cli, tmp_path: Path) -> None:
    place = defined(tmp_path, conda.file("environment.yml", "tool >9"))
    error = laptop("build", place, code=2).stderr
    assert f"micromamba cannot make an environment of {place}/environment.yml: " in error
    assert "Could not solve for environment specs" in error
    assert not list((tmp_path / "cache/deployer/conda").iterdir())
    foreign = conda.packed("foreign", "linux-aarch64")
    (place / "environment.yml").unlink()
    (place / "bundle.yaml").write_text(DEFINITION.format(file=foreign.name))
    (place / foreign.name).write_bytes(foreign.read_bytes())
    assert "foreign.tar.gz is for linux-aarch64, and the base for linux-64" in laptop("build", place, code=2).stderr
