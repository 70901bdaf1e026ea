"""scripts/release: what it refuses, and the documents of a release. The package stage makes one with --check."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """# Changelog

## [Unreleased]

- later

## [0.2.0] - 2026-11-24

- new

## [0.1.0] - 2026-01-01

- old
"""


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, in a repository with the tags v0.2.0, v0.3.0 (a wrong one) and v0.4.0 (without a section)."""
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts/release.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "deployer").mkdir()
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    _git(tmp_path, "init", "-q")
    for tag, version in (("v0.2.0", "0.2.0"), ("v0.3.0", "0.2.1"), ("v0.4.0", "0.4.0")):
        (tmp_path / "deployer/__init__.py").write_text(f'__version__ = "{version}"\n')
        _git(tmp_path, "add", ".")
        _git(tmp_path, "commit", "-qm", tag)
        _git(tmp_path, "tag", tag)
    return module


def _git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["v9"], "there is no tag v9"),
        (["HEAD"], "there is no tag HEAD"),
        (["v0.3.0"], "the tag v0.3.0 has the version 0.2.1"),
        (["v0.4.0"], r"CHANGELOG.md of v0.4.0 has no section \[0.4.0\]"),
        (["v0.2.0"], "there is no key"),
    ],
)
def test_a_release_needs_a_tag_of_its_version_and_a_key(
    release: ModuleType, monkeypatch: pytest.MonkeyPatch, words: list[str], problem: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["release", *words, "--key", "no-such-key"])
    with pytest.raises(SystemExit, match=problem):
        release.main()


def test_a_key_that_cannot_sign_is_one_error(release: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("not a key\n")
    (tmp_path / "SHA256SUMS").write_text("")
    with pytest.raises(SystemExit, match="ssh-keygen -q -Y sign failed"):
        release.sign(tmp_path, tmp_path / "key")


def test_notes_are_the_section_of_the_version(release: ModuleType) -> None:
    assert release._notes(CHANGELOG, "0.2.0") == "# deployer 0.2.0\n\n- new\n"


@pytest.mark.thorough
def test_the_bill_of_materials_is_cyclonedx(release: ModuleType) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # five seconds of import

    text = release._json(release._sbom(ROOT, "0.2.0"))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert '"pkg:pypi/pydantic@' in text


@pytest.mark.parametrize(
    ("wheel", "python", "problem"),
    [
        ("a-1-cp312-cp312-manylinux_2_17_{machine}.whl", "false", "false is not Python 3.10 or newer"),
        ("a-1-cp312-cp312-manylinux_2_17_{machine}.whl", "no-such-python", "no-such-python is not Python 3.10"),
        ("a-1-cp312-cp312-macosx_12_0_{machine}.whl", sys.executable, "these files are not for Linux on"),
        ("a-1-cp312-cp312-manylinux_2_17_other.whl", sys.executable, "these files are not for Linux on"),
    ],
)
def test_the_offline_file_of_another_platform_or_an_old_python(
    tmp_path: Path, wheel: str, python: str, problem: str
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / wheel.format(machine=os.uname().machine)).write_text("")
    script = tmp_path / "install"
    script.write_bytes((ROOT / "scripts/offline-install").read_bytes())
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": python}
    done = subprocess.run(["sh", str(script)], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"deployer: error: {problem}")
    assert done.stderr.count("\n") == 2
    assert not (tmp_path / ".local").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("platform", ["linux-x86_64", "linux-aarch64", "macos-arm64", "macos-x86_64"])
def test_a_dependency_without_a_wheel_stops_a_release(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    """In this index, ``one`` has a wheel for all of them and ``two`` for Linux alone; ``three`` is for macOS only."""
    wheels = tmp_path / "index"
    wheels.mkdir()
    tags = ("manylinux_2_17_x86_64", "manylinux_2_17_aarch64", "macosx_10_9_universal2", "macosx_11_0_arm64")
    made = [_wheel(wheels, "one", tag) for tag in tags]
    made += [_wheel(wheels, "two", tag) for tag in tags[:2]]
    made += [_wheel(wheels, "three", "macosx_11_0_universal2")]
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(release, "CACHE", tmp_path / "cache")
    pins = [(f"{name}==1{marker}", tuple(hashes)) for name, marker, hashes in _pins(made)]
    mine = release.PLATFORMS[platform]
    found = {path.name.partition("-")[0] for path in release._wheels(pins[::2], mine, ["3.12"]).iterdir()}
    assert found == {"one", *(["three"] if "macos" in platform else [])}
    if "linux" in platform:
        assert release._wheels(pins, mine, ["3.12"]).is_dir()
        return
    with pytest.raises(SystemExit, match=f"no wheel of a dependency for darwin on {mine.machine}, Python 3.12"):
        release._wheels(pins, mine, ["3.12"])


def _pins(made: list[tuple[str, str]]) -> list[tuple[str, str, list[str]]]:
    markers = {"one": "", "two": "", "three": " ; sys_platform == 'darwin'"}
    return [(name, marker, [digest for each, digest in made if each == name]) for name, marker in markers.items()]


def _wheel(folder: Path, name: str, tag: str) -> tuple[str, str]:
    """Write an empty wheel; return its package and its hash."""
    path = folder / f"{name}-1-cp312-cp312-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(f"{name}-1.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: cp312-cp312-{tag}\n")
        archive.writestr(f"{name}-1.dist-info/RECORD", "")
    return name, f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
