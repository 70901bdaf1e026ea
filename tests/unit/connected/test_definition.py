import json
from pathlib import Path

import pytest

from deployer.connected.definition import load
from deployer.contract.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]

MINIMAL = """\
name: small
version: "1.0"
base: {debian: bookworm}
jobs:
  first: {command: [python3, x.py]}
  second: {command: ["true"], nodes: 4, time: "1-00:00:00"}
"""


def write(folder: Path, text: str, name: str = "small") -> Path:
    place = folder / name
    place.mkdir()
    (place / "bundle.yaml").write_text(text)
    (place / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\n")
    return place


def message_of(path: Path | str) -> str:
    with pytest.raises(UsageError) as caught:
        load(path)
    return "\n".join(caught.value.lines())


@pytest.mark.parametrize("name", ["hello-mpi", "digits-horovod"])
def test_the_definitions_in_the_repository_are_valid(name: str) -> None:
    definition = load(ROOT / "bundles" / name)
    assert definition.name == name
    assert definition.app_folder == ROOT / "bundles" / name / "app"
    assert definition.tag == f"deployer/{name}:{definition.version}"


def test_a_folder_and_its_file_are_the_same_definition(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL)
    assert load(place) == load(place / "bundle.yaml") == load(str(place))
    assert load(place).folder == place


def test_defaults_and_the_order_of_jobs(tmp_path: Path) -> None:
    definition = load(write(tmp_path, MINIMAL))
    assert list(definition.jobs) == ["first", "second"]
    first = definition.jobs["first"]
    assert (first.nodes, first.ranks_per_node, first.threads, first.time) == (1, 1, 1, "01:00:00")
    assert definition.jobs["second"].time == "1-00:00:00"
    assert definition.mpi == ["mpich-abi"]
    assert definition.app_folder is None


def test_jobs_go_into_a_manifest_as_json(tmp_path: Path) -> None:
    job = load(write(tmp_path, MINIMAL)).jobs["second"].model_dump()
    assert json.loads(json.dumps(job)) == {
        "command": ["true"], "nodes": 4, "ranks_per_node": 1, "threads": 1, "time": "1-00:00:00",
    }  # fmt: skip


def test_an_unknown_key_gets_a_guess(tmp_path: Path) -> None:
    said = message_of(write(tmp_path, MINIMAL.replace("nodes: 4", "node: 4")))
    assert "jobs.second.node: unknown key, perhaps you meant 'nodes'" in said


def test_all_errors_come_at_once_each_with_its_place(tmp_path: Path) -> None:
    text = (
        'name: Not A Name\nversion: "1"\nbase: {debian: potato}\nmpi: [lam]\njobs: {x: {command: [],\n  time: soon}}\n'
    )
    said = message_of(write(tmp_path, text))
    shown = said.replace(str(tmp_path), "").splitlines()
    assert shown[0] == "deployer: error: /small/bundle.yaml has 5 errors"
    for place in ("1: name", "3: base.debian", "4: mpi.0", "5: jobs.x.command", "6: jobs.x.time"):
        assert any(text.startswith(f"  /small/bundle.yaml:{place}: ") for text in shown)
    assert "'soon' is not [D-]HH:MM:SS" in said


def test_broken_yaml_names_the_file_and_the_line(tmp_path: Path) -> None:
    said = message_of(write(tmp_path, "name: small\nversion: [1\nbase: x\n"))
    assert "bundle.yaml:3: not valid YAML: while parsing a flow sequence expected ',' or ']'" in said


def test_a_version_without_quotes_is_explained(tmp_path: Path) -> None:
    assert "with quotes" in message_of(write(tmp_path, MINIMAL.replace('"1.0"', "1.10")))


def test_an_unknown_definition_names_those_that_exist(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL)
    said = message_of(tmp_path / "smal")
    assert "there is no definition" in said
    assert str(tmp_path / "small") in said
    assert str(tmp_path / "small") in message_of(tmp_path)


def test_files_that_it_names_must_be_there(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL + "app: code\ndockerfile: Other\n")
    said = message_of(place)
    assert "bundle.yaml:7: app: there is no folder" in said
    assert "bundle.yaml:8: dockerfile: there is no file" in said


def test_only_the_quoted_app_or_the_folder_app_is_the_app(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL + "app: code\n")
    (place / "code").mkdir()
    (place / "app").mkdir()
    assert load(place).app_folder == place / "code"
