"""scripts/release: what it refuses, and the documents of a release. The package stage makes one with --check."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

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


def test_the_bill_of_materials_is_cyclonedx(release: ModuleType) -> None:
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
