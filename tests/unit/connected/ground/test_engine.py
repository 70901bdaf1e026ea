"""Containers of our own at the Docker engine, which is played here; tests/integration has a real one."""

import contextlib
import os
import subprocess
from types import SimpleNamespace
from typing import Any

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

    def containers(self, filters: dict[str, str], **_: Any) -> list[dict[str, Any]]:
        name, _, value = filters["label"].partition("=")
        return [{"Id": key, "Labels": own} for key, own in self.there.items() if own.get(name) == value]

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
        client.api.there["killed"] = {**labels, engine.PROCESS: str(ended.pid)}
        client.api.there["lives"] = {**labels, engine.PROCESS: str(os.getpid())}
        client.api.there["other user"] = {**client.api.there["killed"], "deployer.maker": "other/1000"}
        client.api.there["foreign"] = {}
        with engine.container(client, "image", ["/never-run"]):
            assert "killed" not in client.api.there
    assert sorted(client.api.there) == ["foreign", "lives", "other user"]
