"""Containers of our own at the Docker engine, which is played here; tests/integration has a real one."""

import contextlib
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import docker
import pytest

from deployer.connected.ground import engine


class _FakeApi:
    """An engine with containers that carry labels."""

    def __init__(self) -> None:
        self.there: dict[str, dict[str, str]] = {}

    def create_container(self, image: str, command: list[str], **settings: Any) -> dict[str, str]:
        assert (image, command, settings["network_disabled"]) == ("image", ["/never-run"], True)
        name = f"c{len(self.there)}"
        self.there[name] = settings["labels"]
        return {"Id": name}

    def containers(self, filters: dict[str, list[str]], **_: Any) -> list[dict[str, Any]]:
        asked = dict(label.split("=", 1) for label in filters["label"])
        return [{"Id": key, "Labels": own} for key, own in self.there.items() if asked.items() <= own.items()]

    def remove_container(self, name: str, **_: Any) -> None:
        if name not in self.there:
            raise docker.errors.NotFound("no such container")
        del self.there[name]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(engine, "answers", lambda _: True)
    return SimpleNamespace(api=_FakeApi())


def test_a_container_is_removed_at_the_end_also_after_an_error(client: Any) -> None:
    with contextlib.suppress(OSError), engine.container(client, "image", ["/never-run"]) as made:
        assert list(client.api.there) == [made]
        raise OSError
    assert client.api.there == {}
    with engine.container(client, "image", ["/never-run"]) as made:
        client.api.remove_container(made)  # by somebody else
    assert client.api.there == {}


def test_containers_of_killed_commands_are_removed_by_the_next(client: Any) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with engine.container(client, "image", ["/never-run"]) as made:
        labels = client.api.there[made]
        client.api.there["killed"] = {**labels, "deployer.process": str(ended.pid)}
        client.api.there["lives"] = {**labels, "deployer.process": str(os.getpid())}
        client.api.there["other user"] = {**client.api.there["killed"], "deployer.maker": "other/1000"}
        client.api.there["foreign"] = {}
        with engine.container(client, "image", ["/never-run"]):
            assert "killed" not in client.api.there
    assert sorted(client.api.there) == ["foreign", "lives", "other user"]


@pytest.mark.parametrize("differs", ["_MACHINE", "_PROCESSES"])
def test_containers_of_another_machine_or_pid_namespace_stay(
    client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, differs: str
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    client.api.there["theirs"] = {**engine.labels(), "deployer.process": str(ended.pid)}
    other = tmp_path / "other"
    other.write_text("0123\n")
    with monkeypatch.context() as patch:
        patch.setattr(engine, differs, str(other))
        engine.reap(client)
        assert "theirs" in client.api.there
        patch.setattr(engine, differs, str(tmp_path / "nope"))
        engine.reap(client)
        assert "theirs" in client.api.there
    engine.reap(client)
    assert client.api.there == {}


@pytest.mark.parametrize("pid", ["\u00b2", "9" * 30, "0", "", "-1"])
def test_a_label_that_is_not_a_process_number_names_no_living_process(client: Any, pid: str) -> None:
    client.api.there["strange"] = {**engine.labels(), "deployer.process": pid}
    engine.reap(client)
    assert client.api.there == {}


def test_a_listing_that_fails_does_not_end_the_command(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (docker.errors.APIError("no"), ConnectionResetError()):
        monkeypatch.setattr(client.api, "containers", MagicMock(side_effect=error))
        with engine.container(client, "image", ["/never-run"]) as made:
            assert made in client.api.there


def test_the_machine_is_asked_once_for_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "id").write_text("1234\n")
    monkeypatch.setattr(engine, "_MACHINE", str(tmp_path / "id"))
    first = engine.labels()
    (tmp_path / "id").unlink()
    assert engine.labels() == first
    assert "/1234/" in first["deployer.maker"]
