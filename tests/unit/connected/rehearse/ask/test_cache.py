"""Removing what rehearsals keep, here and in the Docker engine."""

import fcntl
import re
import socket
from types import SimpleNamespace

import pytest
from docker.errors import APIError, NotFound

from deployer.cli.laptop.main import main
from deployer.connected.ground import engine
from deployer.connected.rehearse.ask import cache, container
from deployer.contract.base.errors import MissingTool, Refused


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = tmp_path / "deployer" / "rehearse"
    (found / "docker").mkdir(parents=True)
    (found / "file").write_bytes(bytes(1000))
    return found


def with_engine(monkeypatch, remove):
    api = SimpleNamespace(
        remove_volume=remove, hooks={"response": []}, containers=lambda **_: [], remove_container=lambda *_, **__: None
    )
    monkeypatch.setattr(engine, "connect", lambda: SimpleNamespace(api=api, close=lambda: None))


def test_the_folder_and_the_volume_are_removed(folder, monkeypatch):
    removed = []
    with_engine(monkeypatch, removed.append)
    assert cache.remove(dry_run=True, warn=print).bytes >= 1000
    assert (folder.is_dir(), removed) == (True, [])
    assert cache.remove(dry_run=False, warn=print).entries == 1
    assert not folder.exists()
    assert removed == [cache.volume_name()]
    assert cache.remove(dry_run=False, warn=print).entries == 0


@pytest.mark.parametrize("words", [["rehearse"], []])
def test_what_killed_installs_left_is_removed_also_while_a_rehearsal_runs(folder, words, capsys):
    left = folder / "root" / "layers" / f".installing-{socket.gethostname()}-4194305-1-0123abcd"
    (left / "rootfs").mkdir(parents=True)
    (left / "rootfs" / "large").write_bytes(bytes(5_000_000))
    with open(folder / "used", "w") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        assert main(["cache", "prune", *words, "--dry-run"]) == 0
        assert left.is_dir()
        assert main(["cache", "prune", *words]) == 0
    assert (left.exists(), (folder / "file").exists()) == (False, True)
    assert re.search(r"^rehearse +1 +5.0 MB$", capsys.readouterr().out, re.MULTILINE)


def test_nothing_is_removed_while_a_rehearsal_runs(folder, monkeypatch):
    with open(folder / "used", "w") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        with pytest.raises(Refused, match="a rehearsal runs"):
            cache.remove(dry_run=False, warn=print)

    def busy(name):
        raise APIError("volume is in use", SimpleNamespace(status_code=409, reason="", url=""))

    with_engine(monkeypatch, busy)
    with pytest.raises(Refused, match="uses the Docker volume"):
        cache.remove(dry_run=False, warn=print)
    assert (folder / "file").exists()


def test_without_an_engine_or_a_volume_the_folder_is_removed(folder, monkeypatch):
    def none(name):
        raise NotFound("no such volume")

    with_engine(monkeypatch, none)
    cache.remove(dry_run=False, warn=print)
    assert not folder.exists()

    def missing():
        raise MissingTool("no Docker engine answers at nowhere")

    (folder / "docker").mkdir(parents=True)
    warned = []
    monkeypatch.setattr(engine, "connect", missing)
    cache.remove(dry_run=False, warn=warned.append)
    assert "is left: no Docker engine answers at nowhere" in warned[0]


def test_a_container_that_was_never_started_goes_and_the_volume_keeps_its_name(folder, monkeypatch):
    steps = []
    api = SimpleNamespace(
        containers=lambda **_: [{"Id": "never", "Labels": {}}],
        remove_container=lambda name, force, v: steps.append(name),
        remove_volume=steps.append,
        hooks={"response": []},
    )
    monkeypatch.setattr(engine, "connect", lambda: SimpleNamespace(api=api, close=lambda: None))
    (folder / "docker").rmdir()
    (folder / "volume").write_text("deployer-rehearsal-0123456789ab")
    monkeypatch.setattr(container.socket, "gethostname", lambda: "renamed")
    warned = []
    cache.remove(dry_run=True, warn=warned.append)
    assert warned == ["the size of the Docker volume deployer-rehearsal-0123456789ab is not counted"]
    cache.remove(dry_run=False, warn=print)
    assert steps == ["never", "deployer-rehearsal-0123456789ab"]
