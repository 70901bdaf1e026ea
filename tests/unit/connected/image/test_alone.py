"""Definitions that are their base alone, on a machine without a Docker engine."""

import hashlib
import json
from pathlib import Path

import pytest

from deployer.cli.laptop import main as command
from deployer.connected.image.bases import base as bases
from deployer.connected.image.definition import settings
from deployer.contract.base.errors import IntegrityError, MissingTool, Refused
from tests import tars

ROOT = tars.layer([("etc/marker", b"it"), ("bin/tool", b"\x7fELF")])


pytestmark = pytest.mark.usefixtures("own_folders", "no_pip")


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no settings of pip: each build would start it for them."""
    monkeypatch.setattr(settings, "_pip_config", lambda _: "")


def define(tmp_path: Path, base: str, more: str = "") -> str:
    folder = tmp_path / "solver"
    folder.mkdir()
    job = "jobs: {run: {command: [/bin/tool]}}\n"
    (folder / "bundle.yaml").write_text(f'name: solver\nversion: "1"\nbase: {{{base}}}\n{more}{job}')
    return str(folder)


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = command.main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.thorough
def test_an_archive_is_built_and_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "root.tar").write_bytes(ROOT)
    digest = hashlib.sha256(ROOT).hexdigest()
    definition = define(tmp_path, f"archive: ../root.tar, sha256: {digest}")
    code, said, _ = called(capsys, "build", definition)
    assert code == 0
    assert said.startswith("built solver:1 without Docker: ")
    assert f"image {definition}/../root.tar, sha256:{digest}\n" in said
    assert called(capsys, "pack", definition, "-o", str(tmp_path / "b.tar"))[0] == 0
    assert "/etc/marker" in called(capsys, "inspect", "--files", str(tmp_path / "b.tar"))[1]
    (tmp_path / "root.tar").write_bytes(ROOT + bytes(512))
    for words in (["build", definition], ["pack", definition, "-o", str(tmp_path / "other.tar")]):
        code, _, said = called(capsys, *words)
        assert code == IntegrityError.exit_code
        assert "root.tar is not the base that the definition names" in said
    assert not (tmp_path / "other.tar").exists()


@pytest.mark.thorough
def test_a_debian_base_is_made_once_and_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make(base: bases.Base, _: object, tarball: Path, say: object) -> None:
        made.append(base.include)
        tarball.parent.mkdir(parents=True)
        tarball.write_bytes(ROOT)

    monkeypatch.setattr(bases, "_make", make)
    monkeypatch.setattr(bases, "base_key", lambda base: "+".join(base.include))
    definition = define(tmp_path, "debian: bookworm, include: [solver]")
    code, _, said = called(capsys, "pack", definition, "-o", str(tmp_path / "b.tar"))
    assert (code, made) == (Refused.exit_code, [])
    assert "cannot pack solver:1: it is not built" in said
    assert f"build it: deployer build {definition}" in said
    for _ in range(2):
        code, said, _ = called(capsys, "build", definition, "--json")
        assert (code, json.loads(said)["tag"]) == (0, "")
    assert made == [["solver"]]
    assert called(capsys, "pack", definition, "-o", str(tmp_path / "b.tar"))[0] == 0


@pytest.mark.parametrize("base", ["image: a@sha256:" + "0" * 64, "archive: ../root.tar"])
def test_what_needs_the_engine_asks_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], base: str) -> None:
    (tmp_path / "root.tar").write_bytes(ROOT)
    definition = define(tmp_path, base, "python: {requirements: bundle.yaml}\n" if "archive" in base else "")
    for words in (["build", definition], ["pack", definition, "-o", str(tmp_path / "b.tar")]):
        code, _, said = called(capsys, *words)
        assert code == MissingTool.exit_code
        assert "no Docker engine answers" in said
        copied = f"skopeo copy docker://a@sha256:{'0' * 64} docker-archive:{definition}/base.tar"
        assert (f"{copied}, and write `base: {{archive: base.tar}}`" in said) == ("archive" not in base)


def test_a_program_that_finds_no_mmdebstrap_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, said = called(capsys, "build", define(tmp_path, "debian: bookworm"))
    assert code == MissingTool.exit_code
    assert "apt-get install mmdebstrap" in said


def test_what_commands_download_is_refused_by_build_and_pack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "root.tar").write_bytes(ROOT)
    definition = define(tmp_path, "archive: ../root.tar")
    bundle = Path(definition, "bundle.yaml")
    bundle.write_text(bundle.read_text().replace("[/bin/tool]", "[sh, -c, pip install x]"))
    for words in (["build", definition], ["pack", definition, "-o", str(tmp_path / "b.tar")]):
        code, _, said = called(capsys, *words)
        assert (code, "network.run-time" in said) == (Refused.exit_code, True)
