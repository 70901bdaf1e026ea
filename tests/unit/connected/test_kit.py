"""The kit: its pins, what apt is asked for, and the test of a proot's root."""

import os
import shutil
from pathlib import Path

import pytest

from deployer.connected import kit, sbom
from deployer.connected.builders.settings import Settings
from deployer.connected.members import InMemory
from deployer.connected.packages import Installed, System
from deployer.contract.errors import IntegrityError, JobFailed, MissingTool, TransferError


def test_apt_is_asked_for_the_pinned_versions_at_the_machine_s_own_mirror(tmp_path: Path) -> None:
    pins = kit.pins()
    argv = kit.fetch_command(
        pins["proot"], pins["talloc"], tmp_path / "a b", Settings(apt={"Acquire::http::Proxy": "p"})
    )
    text = "\n".join(argv)
    assert "://" not in text
    assert f"source --download-only --tar-only {pins['proot']['package']}" in text
    assert f"cp *.tar.* *.deb '{tmp_path}/a b'" in text
    assert '--aptopt=Acquire::http::Proxy "p"' in argv
    assert argv[-1] == pins["talloc"]["suite"]
    with_mirror = kit.fetch_command(
        pins["proot"], pins["talloc"], tmp_path, Settings(sources="deb file:/mirror x main\n")
    )
    assert any("deb file:/mirror x main" in word for word in with_mirror)


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="another version"):
        kit._checked(tmp_path / "x", "0" * 64)
    (tmp_path / "x").write_text("other")
    with pytest.raises(IntegrityError, match="is pinned"):
        kit._checked(tmp_path / "x", "0" * 64)


def test_a_machine_without_pins_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strange = os.uname_result(("Linux", "x", "6", "#1", "riscv64"))
    monkeypatch.setattr(kit.os, "uname", lambda: strange)
    with pytest.raises(MissingTool, match="no pins for riscv64"):
        kit._fetch_sources(tmp_path, Settings())


def test_the_readme_names_licences_and_sources() -> None:
    text = kit._readme("make proot")
    for word in ("Apache-2.0", "GPL-2.0-or-later", "LGPL-3.0-or-later", "proot_5.4.0.orig.tar.gz", "make proot"):
        assert word in text


def test_the_sbom_names_proot() -> None:
    [package] = kit.packages({"deployer/kit/proot": InMemory(b"x"), "deployer/kit/README": InMemory(b"y")})
    assert (package.name, package.version, package.licences) == ("proot", "5.4.0", ("GPL-2.0-or-later",))
    assert b'"purl":"pkg:generic/proot@5.4.0"' in b"".join(sbom.make("n", "1", Installed(System(), ()), [package], []))
    assert kit.packages({}) == []


def _fake(folder: Path, last: str) -> Path:
    """Return a proot that forgets all its options and does what ``last`` says."""
    path = folder / "proot"
    path.write_text(f'#!/bin/sh\nroot=$4\nwhile [ "$1" != -w ]; do shift; done\nshift 2\n{last}\n')
    path.chmod(0o755)
    return path


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_proot_that_shows_the_host_s_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="fails the test of its root: it sees the host's root"):
        kit.check_root(_fake(tmp_path, 'exec "$root$1" "$2"'), tmp_path)
    with pytest.raises(JobFailed, match=r"fails the test of its root: ptrace"):
        kit.check_root(_fake(tmp_path, "echo 'ptrace: not permitted' >&2; exit 1"), tmp_path)
    kit.check_root(_fake(tmp_path, 'exec "$root$1" "$root$2"'), tmp_path)


def test_the_kit_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(folder: Path, *_: object) -> None:
        made.append(folder)
        folder.mkdir()
        (folder / "proot").write_text("x")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kit, "_key", lambda: "key")
    monkeypatch.setattr(kit, "_make", make)
    first, second = kit.members(print), kit.members(print)
    assert first == second == {"deployer/kit/proot": tmp_path / "deployer" / "kit" / "key" / "proot"}
    assert len(made) == 1
    assert sorted(path.name for path in (tmp_path / "deployer" / "kit").iterdir()) == ["key"]
