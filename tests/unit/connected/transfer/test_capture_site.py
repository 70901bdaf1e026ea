"""capture HOST without a site: what is written here, and what of a capture is refused."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.decisions import Access
from deployer.connected.transfer import capture_site
from deployer.connected.transfer.capture_site import SiteRequest
from deployer.contract.base import json_records
from deployer.contract.base.errors import MissingTool, Refused, UsageError
from deployer.contract.site import facts
from tests.unit.connected.site_profile.test_decisions import CAPTURE
from tests.unit.connected.transfer.test_remote import far

__all__ = ["far"]

ACCESS = Access("login1", "python3")


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteRequest:
    """Return a request with a bare name, in the folder of the capture that came."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "my-site-captured.json").write_text(json.dumps(CAPTURE))
    return SiteRequest("login1", Path("my-site.yaml"))


def test_a_bare_name_is_written_in_this_folder(request_: SiteRequest) -> None:
    made = capture_site._decided(request_, ACCESS, "my-site", profiles.load("./my-site-captured.json"))
    assert "workspace" in [each.key for each in made]
    assert profiles.load("my-site.yaml").login.host == "login1"
    assert sorted(path.name for path in Path().iterdir()) == ["my-site-captured.json", "my-site.yaml"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"workspace": "/project/mallory"}, "workspace"),
        ({"extends": "lab", "policy": {"runtimes": ["native"]}}, "extends, policy"),
        ({"login": {"host": "login1", "transfer": "evil", "inbox": "/tmp/x"}}, "login.transfer, login.inbox"),
    ],
)
def test_a_capture_does_not_decide_where_bundles_go(
    request_: SiteRequest, changes: dict[str, object], said: str
) -> None:
    request_.captured.unlink()
    trees = json_records.dumps(facts.record(None, {}, {}))
    named = {"file": request_.facts.name, "sha256": hashlib.sha256(trees).hexdigest()}
    data = json.dumps({**CAPTURE, "facts": named, **changes}).encode()
    if not said:
        capture_site._write(request_, data, trees)
        assert profiles.load(str(request_.captured)).name == "here"
        return
    with pytest.raises(Refused, match=f"has {said}, which no capture finds out"):
        capture_site._write(request_, data, trees)
    assert not request_.captured.exists()


def test_a_damaged_earlier_capture_is_a_note(request_: SiteRequest) -> None:
    assert capture_site._before(request_) == (profiles.load("my-site-captured.json"), [])
    request_.captured.write_text("{")
    before, (note,) = capture_site._before(request_)
    assert before is None
    assert "my-site-captured.json cannot be read, so nothing was compared" in note
    request_.captured.unlink()
    assert capture_site._before(request_) == (None, [])


@pytest.mark.thorough
def test_a_python_that_is_too_old_or_does_not_start_is_passed_over(far: Path, request_: SiteRequest) -> None:
    programs = far.parent / "bin"
    for name in ("python3", "python3.6"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    named = programs / "own-python"
    named.symlink_to(sys.executable)
    for request, found in ((request_, "/usr/bin/python3"), (request_._replace(python=str(named)), str(named))):
        with capture_site._remote(request) as remote:
            remote.prepare(tries=True)
            assert remote.python == found
    lacking = capture_site._remote(request_._replace(python="no-python-here"))
    with pytest.raises(MissingTool, match="no-python-here") as caught, lacking as remote:
        remote.prepare(tries=True)
    assert "--python PATH" in caught.value.hint


def test_newer_pythons_are_tried_first() -> None:
    minors = [name[len("python3.") :] for name in capture_site._PYTHONS if name.startswith("python3.")]
    assert minors == [str(minor) for minor in range(14, 5, -1)]


@pytest.mark.parametrize("python", ["~/python3", "bin/python3", "/opt/py\x1bthon3", "", "python3 -I"])
def test_a_python_is_a_name_or_a_whole_path(python: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "login1", "--python", python]) == UsageError.exit_code
    assert "neither a name nor a whole path: --python" in capsys.readouterr().err


def test_the_tool_stays_while_another_capture_waits(far: Path, request_: SiteRequest) -> None:
    folder = far / ".deployer-capture"
    (folder / "other-captured.json.parts").mkdir(parents=True)
    for name in ("deployer.pyz", request_.captured.name):
        (folder / name).write_text("x")
    with capture_site._remote(request_) as remote:
        capture_site._clean(request_, remote)
        assert sorted(path.name for path in folder.iterdir()) == ["deployer.pyz", "other-captured.json.parts"]
        (folder / "other-captured.json.parts").rmdir()
        capture_site._clean(request_, remote)
    assert not folder.exists()
