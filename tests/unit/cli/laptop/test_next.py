"""The command that follows: it is one that is not refused as printed."""

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployer.cli.laptop import capture, check, pack, rehearse
from deployer.cli.laptop import deploy as deploy_command
from deployer.cli.laptop.main import main
from deployer.cli.site import common
from deployer.cli.site import installs as site_installs
from deployer.contract.rules.verdict import RUN, Checked
from deployer.system import terminal
from tests import bundles, running

_FRONT = SimpleNamespace(prog="deployer")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEPLOYER_SITE", raising=False)


def bundle(folder: Path, accepted: list[str]) -> str:
    plan = running.PLAN._replace(checked=Checked(RUN, [], accepted))
    return str(bundles.write(folder / "b.tar", extra=[running.member(plan)]))


@pytest.mark.parametrize(
    ("name", "carried", "accepted", "said"),
    [
        ("lab", [], [], "push {} ssh:login1"),
        ("lab", ["pmi.unmet"], ["pmi.unmet"], "push {} ssh:login1"),
        ("lab", [], ["pmi.unmet"], "pack DEF --site ssh:login1 --accept=pmi.unmet -o {}"),
        ("other", [], [], "pack DEF --site ssh:login1 -o {}"),
    ],
)
def test_after_check(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    carried: list[str],
    accepted: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(check, "profile_of", lambda *_: pytest.fail("a second login"))
    path = bundle(tmp_path, carried)
    check.suggest_push(argparse.Namespace(front=_FRONT, ssh_config=None), path, "ssh:login1", name, accepted)
    assert capsys.readouterr().err == f"next: deployer {said.format(path)}\n"


def test_after_pack(capsys: pytest.CaptureFixture[str]) -> None:
    plans = [running.PLAN._replace(checked=Checked(RUN, [], []))]
    packed: Any = SimpleNamespace(manifest=SimpleNamespace(is_data=False), plans=plans, path=Path("b.tar"))
    pack._suggest(argparse.Namespace(front=_FRONT, site=["lab"]), packed)
    assert capsys.readouterr().err == "next: deployer push b.tar lab\n"


class _FakeDeploy:
    submitting = False

    def __init__(self, *_: object) -> None:
        self.stages = [SimpleNamespace(state="done")]

    def __enter__(self) -> "_FakeDeploy":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    definition = SimpleNamespace(is_data=True)

    def run(self) -> SimpleNamespace:
        return SimpleNamespace(job="tiny-1", job_id="77", seconds=1.0, digest="sha256:1")


def test_a_quiet_deploy_that_follows_nothing_prints_the_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_command, "Deploy", _FakeDeploy)
    monkeypatch.setattr(deploy_command, "_request", lambda _: None)
    args = argparse.Namespace(json=False, no_follow=True, job=None, array=None, sweep=None)
    monkeypatch.setattr(deploy_command, "site_options", lambda _: [])
    monkeypatch.setattr(common, "suggest", lambda *_: None)
    with terminal.manners(True, False):
        assert deploy_command._deploy(args) == 0
    assert capsys.readouterr().out == "job tiny-1 submitted as 77\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_a_rehearsal_explains_itself_unless_it_is_quiet(capsys: pytest.CaptureFixture[str], quiet: bool) -> None:
    found = [SimpleNamespace(finding=SimpleNamespace(code="rehearse.network"))]
    done: Any = SimpleNamespace(lines=lambda: ["verdict: RUN"], findings=found)
    with terminal.manners(quiet, False):
        rehearse.show(done)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "verdict: RUN"
    assert [line.split(":")[0] for line in said[1:]] == ([] if quiet else ["more"])


@pytest.mark.parametrize(
    ("decisions", "differences", "said"),
    [
        (["workspace"], [], "next: deployer profile validate s.yaml\n"),
        ([], ["mpi"], "next: deployer plan B.tar --site s.yaml -o B.plan\n"),
        ([], [], ""),
    ],
)
def test_after_capture(
    capsys: pytest.CaptureFixture[str], decisions: list[str], differences: list[str], said: str
) -> None:
    """Before the first bundle there is nothing to check. After a maintenance day, bundles need new plans."""
    done: Any = SimpleNamespace(decisions=decisions, differences=differences)
    capture._suggest(argparse.Namespace(front=_FRONT), done, "s.yaml")
    assert capsys.readouterr().err == said


def test_after_validate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "validate", "lab"]) == 0
    assert capsys.readouterr().err == "next: deployer pack DEF --site lab -o B.tar\n"


def test_pack_names_its_changes_in_words() -> None:
    changes = {"pyc_repaired": 548, "setuid": 13, "variables dropped": 1}
    expected = "548 times of compiled Python files corrected, 13 setuid and setgid bits removed, 1 variables dropped"
    assert pack.in_words(changes) == expected


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "next: deployer capture login1\n"),
        ("extends: lab\nworkspace: null\n", ""),
    ],
)
def test_after_validate_no_capture_is_suggested_for_what_a_person_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, said: str
) -> None:
    profile = tmp_path / "a.yaml"
    source = "source: {kind: document, where: a test}\nlogin: {host: login1}\n"
    profile.write_text(f"format: 1\nname: a\n{source}{lines}")
    assert main(["profile", "validate", str(profile)]) == 0
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("sites", "words"), [(["lab"], ""), (["lab", "other"], " --plan SITE")])
def test_after_an_installation_a_plan_is_named_if_there_are_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sites: list[str], words: str
) -> None:
    (image,) = running.store(tmp_path).installed()
    for site in sites:
        running.write(Path(image.folder, "plans", f"{site}.json"), running.PLAN._replace(site=site).record())
    front = SimpleNamespace(prog="deployer.pyz")
    site_installs._suggest(argparse.Namespace(front=front, root=None), image)
    assert capsys.readouterr().err == f"next: python3 deployer.pyz run hello:1{words}\n"
