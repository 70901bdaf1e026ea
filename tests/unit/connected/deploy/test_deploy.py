"""deploy, with the fake ssh of test_remote between real sides; tests/integration has a real job."""

import json
from pathlib import Path

import pytest

from deployer.cli.laptop import deploy as command
from deployer.cli.laptop.main import main
from deployer.cli.site import common
from deployer.connected.build.init import init
from deployer.contract.errors import Refused, UsageError
from tests.unit.connected.transfer.test_remote import far

__all__ = ["far"]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "one").write_text("1")
    (folder / "bundle.yaml").write_text("name: digits\nversion: 1.0.0\ndata: {digits: {folder: data}}\n")
    return folder


def stages(text: str) -> dict[str, str]:
    return {stage["name"]: stage["state"] for stage in json.loads(text)["stages"]}


@pytest.mark.thorough
def test_only_changed_stages_are_done_again(far: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", str(data), "lab", "--json"]
    assert main([*words, "--dry-run"]) == 0
    assert stages(capsys.readouterr().out) == {"build": "unchanged", "pack": "would", "check": "would", "push": "would"}
    assert list(far.iterdir()) == []
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["job"], first["status"], Path(first["folder"]).is_dir()) == ("", None, True)
    assert main(words) == 0
    again = capsys.readouterr().out
    assert stages(again) == {"build": "unchanged", "pack": "unchanged", "push": "unchanged"}
    assert json.loads(again)["digest"] == first["digest"]
    (data / "data" / "one").write_text("2")
    assert main([*words, "--dry-run"]) == 0
    assert stages(capsys.readouterr().out)["pack"] == "would"
    assert main(words[:-1]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said] == [["build", "unchanged"], ["pack", "done"], ["push", "done"]]


def test_a_refusal_ends_it_with_its_code_and_remedy(
    tmp_path: Path, far: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    definition = init("model", "none", tmp_path).folder
    with (definition / "Dockerfile").open("a") as stream:
        stream.write("ENV HTTPS_PROXY=http://me:secret@proxy:80\n")
    assert main(["deploy", str(definition), "lab"]) == Refused.exit_code
    said = capsys.readouterr()
    assert said.out == ""
    assert "deployer: error: " in said.err
    assert "hint: " in said.err
    assert list(far.iterdir()) == []


def test_the_options_of_the_job_reach_the_site() -> None:
    parser = common.Parser(prog="deployer")
    command.add_parsers(parser.add_subparsers())
    words = [
        "deploy",
        "DEF",
        "lab",
        "train",
        "--nodes",
        "2",
        "--directive=--qos=test",
        "--directive",
        "x",
        "--user-site",
    ]
    args = parser.parse_args([*words, "--env", "A=b c", "--gpus", "4"])
    assert (args.site, args.job) == ("lab", "train")
    wanted = ["--nodes=2", "--gpus=4", "--directive=--qos=test", "--directive=x", "--env=A=b c", "--user-site"]
    assert command._job_words(args) == wanted
    assert command._job_words(parser.parse_args(["deploy", "DEF"])) == []


@pytest.mark.parametrize("option", ["--json", "--dry-run"])
def test_watch_excludes_what_ends(data: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert main(["deploy", str(data), "lab", "--watch", option]) == UsageError.exit_code
    assert f"cannot be used with {option}" in capsys.readouterr().err


def test_watch_goes_on_after_an_error_and_submits_no_bundle_twice(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: list[str] = []

    def once(args: object, submitted: str = "") -> command._Round:
        rounds.append(submitted)
        if len(rounds) == 1:
            raise UsageError("the first is wrong", "mend it")
        return command._Round(130 if len(rounds) == 4 else 0, "" if len(rounds) == 3 else f"digest {len(rounds)}")

    monkeypatch.setattr(command, "_once", once)
    monkeypatch.setattr("deployer.connected.deploy.watch.wait", lambda *_: ["app/train.py", "b"])
    assert main(["deploy", str(data), "lab", "--watch"]) == 130
    assert rounds == ["", "", "digest 2", "digest 2"]
    said = capsys.readouterr().err
    assert "deployer: error: the first is wrong\nhint: mend it" in said
    assert said.count("changed: app/train.py and 1 more") == 3
