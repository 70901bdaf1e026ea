"""Fetching what a site publishes, over the fake line of test_remote: who may have written it, and what push does."""

import os
import shutil
from pathlib import Path

import pytest

from deployer.connected.site_profile import published as kept
from deployer.connected.site_profile.profile import Profile
from deployer.connected.transfer import published, remote
from deployer.connected.transfer.remote import Remote
from deployer.contract.base.errors import Refused, UsageError
from tests.unit.connected.site_profile.test_published import Publication, of, publication
from tests.unit.connected.transfer.test_remote import far

__all__ = ["far"]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what a site publishes belongs to root"),
]


@pytest.fixture
def admins(far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the far /etc/deployer, with a profile."""
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    script = remote._ADMINS.replace(remote.ADMINS_FOLDER, str(folder))
    monkeypatch.setattr(remote, "_ADMINS", script)
    monkeypatch.setattr(published, "ADMINS_FOLDER", str(folder))
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    write(folder)
    return folder


def write(folder: Path, found: Publication | None = None) -> None:
    found = found or publication()
    for name, data in ((kept.PROFILE, found.profile), (kept.FACTS, found.facts)):
        (folder / name).write_bytes(data or b"")
        (folder / name).chmod(0o644)


def test_a_host_s_profile_is_fetched_once_and_again_when_it_is_new(
    admins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert published.profile_of("ssh:login1").login.host == "login1"
    assert "login1 publishes a profile, there" in capsys.readouterr().err
    assert published.profile_of("ssh:login1").name == "there"
    assert capsys.readouterr().err == ""
    write(admins, publication(**of("2026-11-12")))
    assert str(published.profile_of("ssh:login1").source.date) == "2026-11-12"
    assert "login1 publishes a profile, there" in capsys.readouterr().err
    shutil.rmtree(admins)
    with pytest.raises(UsageError, match="login1 publishes no profile") as caught:
        published.profile_of("ssh:login1")
    assert "deployer capture login1" in caught.value.hint
    with pytest.raises(UsageError, match="'-oProxyCommand=x' is not a host for ssh"):
        published.profile_of("ssh:-oProxyCommand=x")


def test_the_ssh_configuration_of_the_settings_is_used(
    admins: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`pack` and `plan` have no option for it."""
    used: list[Path | None] = []

    class Noted(Remote):
        def __init__(self, profile: Profile, ssh_config: Path | None) -> None:
            used.append(ssh_config)
            super().__init__(profile)

    monkeypatch.setattr(published, "Remote", Noted)
    (tmp_path / "config").write_text("")
    monkeypatch.setenv("DEPLOYER_SSH_CONFIG", str(tmp_path / "config"))
    published.profile_of("ssh:login1")
    published.profile_of("ssh:login1", Path("other"))
    assert used == [tmp_path / "config", Path("other")]


@pytest.mark.parametrize("name", [".", kept.PROFILE, kept.FACTS])
def test_what_others_can_write_is_refused(admins: Path, name: str) -> None:
    path = admins / name
    path.chmod(path.stat().st_mode | 0o020)
    with pytest.raises(Refused, match="can be written by others than root"):
        published.profile_of("ssh:login1")
    path.chmod(path.stat().st_mode & ~0o020)
    os.chown(path, 2002, 0)
    with pytest.raises(Refused, match=r"by others than root \(uid 2002, "):
        published.profile_of("ssh:login1")
    os.chown(path, 0, 0)
    if name != ".":
        path.rename(admins.parent / "elsewhere")
        path.symlink_to(admins.parent / "elsewhere")
        with pytest.raises(Refused, match="mode 777"):
            published.profile_of("ssh:login1")
