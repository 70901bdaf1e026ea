"""push --plan on the laptop; the far side is the real one behind the fake line of test_remote in the thorough test."""

import json
from pathlib import Path

import pytest

from deployer.cli.laptop import main as cli
from deployer.connected.site_profile.profile import load
from deployer.connected.transfer.push_plan import push_plan
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle.plan_update import PlanUpdate
from deployer.contract.rules import findings
from deployer.contract.rules.verdict import judged
from deployer.site.storage.store import Store
from tests import running
from tests.unit.connected.transfer.test_remote import far

__all__ = ["far"]

DIGEST = "sha256:" + "0" * 64
AGAINST = findings.Finding("mpi.family", findings.ERROR, "x", "the wrong family", "build it again")


def written(path: Path, **fields: object) -> Path:
    plan = running.PLAN._replace(**fields)  # type: ignore[arg-type]
    path.write_text(PlanUpdate(DIGEST, "hello:1", 1000, [plan]).text())
    return path


def test_a_plan_of_another_site_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has plans for other, not for lab"):
        push_plan(written(tmp_path / "p", site="other"), load("lab"))


def test_what_check_refused_is_sent_by_force_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "p", checked=judged([AGAINST], []))
    with pytest.raises(Refused, match=r"check predicts that hello:1 will not run on lab: mpi\.family: x: the wrong"):
        push_plan(path, load("lab"), dry_run=True)
    old = written(tmp_path / "old", checked=judged([AGAINST], [])._replace(deployer="0.0.1"))
    with pytest.raises(Refused, match=r"will not run on lab \(by deployer 0\.0\.1; this is "):
        push_plan(old, load("lab"), dry_run=True)
    assert 500 < push_plan(path, load("lab"), dry_run=True, force=True).sent < 2000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["b.tar", "lab"], "requires one SITE, and no bundle"),
        ([], "no site is given"),
        (["lab", "--full", "--to", "x"], "--full and --to cannot be used with --plan"),
    ],
)
def test_words_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main(["push", "--plan", str(written(tmp_path / "p")), *words]) == UsageError.exit_code
    assert said in capsys.readouterr().err
    assert cli.main(["push"]) == UsageError.exit_code
    assert "push requires a bundle, or --plan FILE" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_site_takes_it(far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store: Store = running.store(far / "deployer")  # type: ignore[no-untyped-call]
    image = Path(store.image_folder(DIGEST))
    Path(store.images, "aaaa").rename(image)
    record = store.installed()[0].receipt._replace(digest=DIGEST).record()
    (image / "receipt.json").write_text(json.dumps(record))
    path = written(tmp_path / "p", modules=["intel-mpi/2021.16"])
    assert cli.main(["push", "--plan", str(path), "lab", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["bundle"], said["site"], said["signers"]) == ("hello:1", "lab", [])
    assert said["warnings"] == ["the plan is not signed: whoever sent it decides what jobs bind and set"]
    assert Path(said["plan"]).read_bytes() == path.read_bytes()
    assert store.installed()[0].plan("lab").modules == ["intel-mpi/2021.16"]
