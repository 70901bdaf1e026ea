"""capture HOST without a site: what is written here, and what of a capture is refused."""

import json
from pathlib import Path

import pytest

from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.decisions import Access
from deployer.connected.transfer import capture_site
from deployer.connected.transfer.capture_site import SiteRequest
from tests.unit.connected.site_profile.test_decisions import CAPTURE

ACCESS = Access("login1", "python3")


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteRequest:
    """Return a request with a bare name, in the folder of the capture that came."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "my-site-captured.json").write_text(json.dumps(CAPTURE))
    return SiteRequest("login1", Path("my-site.yaml"))


def test_a_bare_name_is_written_in_this_folder(request_: SiteRequest) -> None:
    made = capture_site._decided(request_, ACCESS)
    assert "workspace" in [each.key for each in made]
    assert profiles.load("my-site.yaml").login.host == "login1"
    assert sorted(path.name for path in Path().iterdir()) == ["my-site-captured.json", "my-site.yaml"]
