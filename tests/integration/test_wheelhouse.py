"""The wheelhouse with real engines: from requirements to an import on two nodes, and again without any network."""

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Cli, Site

pytestmark = [pytest.mark.integration, pytest.mark.needs("root", "docker")]

# hello-mpi's image is small, has a Python, and can run a job with the lab's MPI.
BUNDLE = """\
name: hello-wheels
version: "1"
base: {debian: bookworm, include: [python3]}
python: {requirements: requirements.txt}
jobs:
  say:
    command: [python3, -c, "import os, markupsafe._speedups as m, tqdm; print('found', m.__file__, os.getcwd())"]
    nodes: 2
    workdir: /usr/lib
"""
DOCKERFILE = "ARG BASE\nFROM deployer/hello-mpi:1.0.0\n"
CONNECTS = "RUN python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 5)\"\n"
REQUIREMENTS = "markupsafe==3.0.2  # binary\ntqdm==4.66.5  # pure\n"


@dataclasses.dataclass(frozen=True)
class Wheels:
    """A definition of this test's own, and a cache of wheels of its own."""

    cli: Cli
    folder: Path

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def build(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Build; an index that does not answer is asked again."""
        for patient in (True, True, False):
            try:
                return self.cli("build", self.folder, "--quiet", "--json", *words, code=code)
            except AssertionError as error:
                if not (patient and str(error).startswith("exit 5")):
                    raise
        raise AssertionError("not reached")

    def pack(self, output: Path) -> Path:
        self.cli("pack", self.folder, "--site", "lab", "-o", output)
        return output


@pytest.fixture(scope="module")
def wheels(built: Cli, tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    top = tmp_path_factory.mktemp("wheels")
    folder = top / "hello-wheels"
    folder.mkdir()
    cli = dataclasses.replace(built, environment={**built.environment, "XDG_CACHE_HOME": str(top / "cache")})
    made = Wheels(cli, folder)
    for name, text in (("bundle.yaml", BUNDLE), ("Dockerfile", DOCKERFILE), ("requirements.txt", REQUIREMENTS)):
        made.write(name, text)
    made.build()
    return made


def test_a_wheelhouse_is_imported_on_the_site_and_one_requirement_ships_one_wheel(
    wheels: Wheels, site: Site, tmp_path: Path
) -> None:
    assert "# of the image: " not in wheels.read("python.lock")
    first = wheels.pack(tmp_path / "first.tar")
    wheels.cli("push", first, "lab", "--ssh-config", site.lab.ssh_config)
    code = "import markupsafe._speedups as native, tqdm; print(native.__file__, tqdm.__version__)"
    said = site.tool("exec", "hello-wheels", "--", "python3", "-c", f'"{code}"')
    assert said.startswith("/deployer/wheels/lib/markupsafe/_speedups.cpython-311-x86_64-linux-gnu.so 4.66.5")
    assert "4.66.5" in site.tool("exec", "hello-wheels", "--", "tqdm", "--version")
    folder = site.alice("ls -d deployer/images/*/wheels").split()[-1]
    assert int(site.alice(f"find {folder}/ -name '*.cpython-311.pyc' | wc -l")) > 20  # compiled once, at install
    site.cli("run", *site.options, "hello-wheels", "--wait")
    log = site.cli("logs", *site.options).stdout
    native = re.escape("/deployer/wheels/lib/markupsafe/_speedups.cpython-311-x86_64-linux-gnu.so")
    assert len(re.findall(f"found {native} /usr/lib$", log, re.MULTILINE)) == 2
    # Another release of one package: the layer and the other wheel are at the site already.
    wheels.write("requirements.txt", REQUIREMENTS.replace("4.66.5", "4.66.6"))
    wheels.build()
    second = wheels.pack(tmp_path / "second.tar")
    difference = json.loads(wheels.cli("diff", first, second, "--json").stdout)
    changed = [path for kind in ("added", "removed", "changed") for path in difference[kind]]
    wheel_names = [f"deployer/wheels/tqdm-4.66.{patch}-py3-none-any.whl" for patch in (5, 6)]
    own = [f"deployer/{name}" for name in ("definition/python.lock", "definition/python/requirements.txt")]
    ours = ["deployer/overlays/wheels.tar", "deployer/provenance.json", "deployer/sbom.cdx.json"]
    assert sorted(changed) == [*own, *ours, *wheel_names]
    done = wheels.cli("push", second, "lab", "--ssh-config", site.lab.ssh_config, "--json")
    sent = json.loads(done.stdout)["sent"]
    print(f"one changed requirement: {sent} bytes of {second.stat().st_size} sent")
    assert sent < 78_326 + 60_000  # the wheel, and a new manifest
    assert "4.66.6" in site.tool("exec", "hello-wheels", "--", "tqdm", "--version")
    wheels.write("requirements.txt", REQUIREMENTS)
    wheels.build()


def test_offline_in_a_namespace_without_any_route_gives_the_same(wheels: Wheels) -> None:
    online, lock = json.loads(wheels.build().stdout)["image"], wheels.read("python.lock")

    def offline(*words: str) -> subprocess.CompletedProcess[str]:
        deployer = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "deployer"
        command = ["unshare", "--net", deployer, "build", wheels.folder, "--offline", "--quiet", *words]
        return subprocess.run(
            command, env=wheels.cli.environment, capture_output=True, text=True, timeout=120, check=False
        )

    done = offline("--json", "--locked")
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["image"], wheels.read("python.lock")) == (online, lock)
    # A step that was never run has no network, and the error says why.
    wheels.write("Dockerfile", DOCKERFILE + CONNECTS)
    done = offline()
    wheels.write("Dockerfile", DOCKERFILE)
    assert done.returncode == 1
    assert "Network is unreachable" in done.stderr
    assert "hint: --offline: a step that is not in the engine's cache runs without network" in done.stderr


@pytest.mark.slow
def test_bad_wheels_and_requirements(wheels: Wheels, tmp_path: Path) -> None:
    wheels.write("requirements.txt", REQUIREMENTS)
    wheels.build()
    # A wheel of the cache that was changed: refused offline and by pack, fetched again by a build.
    (kept,) = (Path(wheels.cli.environment["XDG_CACHE_HOME"]) / "deployer" / "wheels").glob("*/tqdm-4.66.5-*.whl")
    good = kept.read_bytes()
    kept.write_bytes(good[:-1] + b"x")
    assert "digest of the lock" in wheels.cli("build", wheels.folder, "--offline", code=4).stderr
    assert "digest of the lock" in wheels.cli("pack", wheels.folder, "-o", tmp_path / "b.tar", code=4).stderr
    wheels.build()
    assert kept.read_bytes() == good
    lock = wheels.read("python.lock")
    for asked, reason in (
        ("tqdm==0.0.0.1", "there is no version of tqdm==0.0.0.1"),
        ("jinja2==3.1.2\nmarkupsafe<2", "jinja2==3.1.2 depends on markupsafe>=2.0"),
        ("horovod==0.28.1", "horovod is available only as source: build it in the Dockerfile"),
    ):
        wheels.write("requirements.txt", asked + "\n")
        assert reason in wheels.build(code=2).stderr
    assert "is not up to date: the requirements changed" in wheels.build("--locked", code=3).stderr
    assert wheels.read("python.lock") == lock
    wheels.write("requirements.txt", REQUIREMENTS)
    wheels.build("--locked")
