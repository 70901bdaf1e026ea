"""The wheel is the whole program: what ``pip install .`` gives works without the checkout."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import deployer

ROOT = Path(__file__).resolve().parents[2]

# Building it takes seconds.
pytestmark = pytest.mark.thorough


def tracked(*folders: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, check=True).stdout
    return {name for name in listed.decode().split("\0") if name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, built without network by what .venv has."""
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    argv += ["--no-cache-dir", "--disable-pip-version-check"]
    subprocess.run([*argv, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_has_all_files_of_the_package_and_the_profiles(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("deployer/")}
    wanted = {
        name if name.startswith("deployer/") else f"deployer/{name}" for name in tracked("deployer", "site_profiles")
    }
    assert wanted <= names
    strays = {name for name in names - wanted if "__pycache__" in name or name.endswith(".pyc")}
    assert not strays


def test_the_distribution_is_not_the_other_deployer_of_the_package_index(wheel: Path) -> None:
    (name,) = [each for each in zipfile.ZipFile(wheel).namelist() if each.endswith(".dist-info/METADATA")]
    lines = zipfile.ZipFile(wheel).read(name).decode().splitlines()
    assert {"Name: deployer-hpc", f"Version: {deployer.__version__}"} <= set(lines)


def test_an_installed_wheel_is_a_complete_deployer(wheel: Path, tmp_path: Path) -> None:
    """In an empty environment; libraries come from .venv by a .pth file, since nothing is downloaded here."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    libraries = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    code = "import sys; from deployer.cli.laptop.main import main; sys.exit(main())"
    env = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{site}:{libraries}",
    }

    def deployer(*words: str) -> str:
        argv = [str(tmp_path / "venv/bin/python"), "-c", code, *words]
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = deployer("profile", "list")
    assert {line.split()[0] for line in listed.splitlines() if not line.startswith(" ")} >= {"lab", "supermuc-ng"}
    deployer("profile", "show", "lab")
    deployer("init", "trained", "--framework", "tensorflow")
    deployer("lint", "trained")
    deployer("pyz", "-o", "out.pyz")
    assert "What: " in deployer("explain", "mpi.family")
    assert deployer("profile", "schema") == (ROOT / "site_profiles/schema.json").read_text()
    asked = "import deployer; print(deployer.__file__)"
    argv = [str(tmp_path / "venv/bin/python"), "-c", asked]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(site))
