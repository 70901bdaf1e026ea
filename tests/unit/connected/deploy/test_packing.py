"""check and rehearse read a definition as they read its bundle, which is the one that deploy makes."""

from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop import rehearse
from deployer.cli.laptop.main import main
from deployer.connected.deploy.packing import bundle_of
from deployer.connected.image.definition.definition import load
from deployer.connected.rehearse.ask import ways
from deployer.connected.site_profile import profile as profiles
from deployer.contract.base.errors import UsageError
from deployer.contract.rehearsal.rehearsal import JobEnding, Rehearsal
from tests import tars

DEFINITION = """\
name: small
version: "1"
base: {archive: base.tar}
mpi: []
jobs: {main: {command: [/bin/hello]}}
"""
OUTCOME = Rehearsal("b:1", "sha256:0", "main", "", 1, "0", 1, 1, (), JobEnding("done", 0, None, 1.0))


@pytest.fixture
def definition(tmp_path: Path, own_folders: None) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "base.tar").write_bytes(tars.layer({"bin": None, "bin/hello": b"x", "deployer": None}.items()))
    (folder / "bundle.yaml").write_text(DEFINITION)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["small", "small/bundle.yaml"])
def test_check_takes_a_definition(
    form: str, definition: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(definition.parent)
    words = [form, "--site", "lab", "--accept", "link.program"]
    assert main(["check", *words]) == 0
    said = capsys.readouterr()
    assert "WARN: small:1 on lab, partition batch" in said.out
    assert f"next: deployer deploy {form} lab --accept=link.program" in said.err
    bundle = bundle_of(load(definition), profiles.load("lab"))
    before = bundle.stat()
    assert main(["check", *words, "--json"]) == 0
    assert (bundle.stat().st_ino, bundle.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert main(["check", form, "--site", "lab", "--accept", "pins.image"]) == 3  # a code of lint


@pytest.mark.thorough
@pytest.mark.parametrize(("site", "following"), [([], "check {} --site SITE"), (["--site", "lab"], "deploy {} lab")])
def test_rehearse_takes_a_definition(
    site: list[str],
    following: str,
    definition: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[str] = []

    def rehearsed(request: Any, *_: object) -> ways.Judged:
        seen.append(request.bundle)
        return ways.Judged(OUTCOME, definition, ways.NAMESPACES)

    monkeypatch.setattr(rehearse, "rehearsed", rehearsed)
    assert main(["rehearse", str(definition), *site]) == 0
    profile = profiles.load("lab") if site else None
    assert seen == [str(bundle_of(load(definition), profile))]
    assert f"next: deployer {following.format(definition)}\n" in capsys.readouterr().err


def test_a_folder_without_a_definition_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path), "--site", "lab"]) == UsageError.exit_code
    assert "there is no bundle.yaml" in capsys.readouterr().err
