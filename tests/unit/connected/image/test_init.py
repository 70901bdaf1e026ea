"""init writes definitions that work as they stand, whole or not at all."""

import json
import re
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.image import init as initialising
from deployer.connected.image.definition.definition import load
from deployer.connected.image.init import init
from deployer.connected.image.lint import lint
from deployer.contract.base.errors import DeployerError, UsageError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_folders: None) -> None:
    monkeypatch.chdir(tmp_path)


#: With Python, and packages beside the image.
ROOT = Path(__file__).parents[4]
PYTHON = [kind for kind in initialising.KINDS if kind != "compiled"]


@pytest.mark.parametrize("framework", PYTHON)
def test_a_new_definition_is_valid_and_lints_clean(framework: str, tmp_path: Path) -> None:
    made = init("my-model", framework, tmp_path)
    definition = load(made.folder)
    assert (definition.name, definition.folder) == ("my-model", tmp_path / "my-model")
    assert definition.framework == (framework if framework in ("tensorflow", "pytorch") else None)
    assert definition.app_folder is not None
    assert lint.lint(definition).findings == []
    assert sorted(path for path in made.folder.rglob("*") if path.is_file()) == sorted(made.files)
    job = next(iter(definition.jobs.values()))
    assert (definition.app_folder / Path(job.command[-1]).name).is_file()


def test_a_program_of_one_s_own_is_compiled_and_reads_its_input(tmp_path: Path) -> None:
    made = init("my-solver", "compiled", tmp_path)
    definition = load(made.folder)
    assert lint.lint(definition).findings == []
    assert definition.needs_engine
    assert definition.app_folder is not None
    (job,) = definition.jobs.values()
    assert (job.command, job.stdin) == (["solver"], "/deployer/app/input.txt")
    assert {path.name for path in made.files} == {
        "Dockerfile", "bundle.yaml", "input.txt", "requirements.txt", "solver.c"
    }  # fmt: skip


@pytest.mark.parametrize("framework", PYTHON)
def test_a_template_shows_how_packages_are_added(framework: str, tmp_path: Path) -> None:
    file = init("my-model", framework, tmp_path).folder / "bundle.yaml"
    text = file.read_text()
    assert re.findall(r"\n(?:# )?python: {requirements: packages.txt}\n", text)
    file.write_text(text.replace("\n# python:", "\npython:"))
    definition = load(file.parent)
    asked = (file.parent / definition.python.requirements).read_text()
    assert "python.requirements" in asked or framework in asked
    (file.parent / "packages.txt").write_text(asked.replace("# tqdm", "tqdm"))
    assert lint.lint(load(file.parent)).findings == []


def test_it_stands_with_the_others_where_there_are_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "schema.json").touch()
    assert main(["init", "first", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["folder"] == "bundles/first"
    text = Path("bundles/first/bundle.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=../schema.json\n")
    assert sorted(record["files"]) == sorted(str(path) for path in Path("bundles/first").rglob("*") if path.is_file())


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine", "--dry-run"]) == 0
    assert "would write mine/bundle.yaml" in capsys.readouterr().out
    assert not Path("mine").exists()
    assert main(["init", "mine"]) == 0
    said = capsys.readouterr()
    assert "wrote mine/Dockerfile" in said.out
    assert said.err == "next: deployer lint mine\n"
    Path("mine/bundle.yaml").write_text("my own")
    assert main(["init", "mine", "--framework", "tensorflow"]) == 2
    assert "deployer: error: mine already exists" in capsys.readouterr().err
    assert Path("mine/bundle.yaml").read_text() == "my own"


@pytest.mark.parametrize("name", ["Mine", "../mine", "a b", "", "-x", "a/b", "x" * 101])
def test_a_name_that_no_bundle_may_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="invalid name for a definition"):
        init(name, "none", tmp_path)


def test_a_disk_that_gives_out_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DeployerError, match="No space left"):
        init("mine", "none", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", initialising.KINDS)
def test_what_a_template_installs_has_hashes(kind: str) -> None:
    template = initialising.TEMPLATES / kind
    installs = [line for line in (template / "Dockerfile").read_text().splitlines() if "pip install " in line]
    assert all(" --require-hashes " in line for line in installs)
    assert bool(installs) is (template / "requirements.txt").exists()
    if installs:
        lines = (template / "requirements.txt").read_text().replace("\\\n", "").splitlines()
        assert not [line for line in lines if "==" in line and "--hash=sha256:" not in line]


def test_lora_is_the_template_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "schema.json").touch()
    for path in init("lora", "transformers", tmp_path).files:
        text = path.read_text().replace("version: 0.1.0", "version: 1.0.0")
        assert text == (ROOT / path.relative_to(tmp_path)).read_text()


def test_every_template_is_for_a_choice() -> None:
    found = {path.name for path in initialising.TEMPLATES.iterdir() if path.is_dir()}
    assert found == {*initialising.KINDS, "image"}  # the last is of --from-image


@pytest.mark.parametrize("framework", ["pytorch-ddp", "transformers", "lightning", "jax"])
def test_a_training_without_mpi_is_distributed_over_two_nodes(framework: str, tmp_path: Path) -> None:
    definition = load(init("my-model", framework, tmp_path).folder)
    (job,) = definition.jobs.values()
    assert (definition.families, job.nodes, job.ranks_per_node) == (["none"], 2, 1)
