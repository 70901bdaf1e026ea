"""Containers of our own at the Docker engine, which is played here; tests/integration has a real one."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import docker
import pytest

from deployer.connected.ground import engine, podman_service
from deployer.connected.ground.podman_service import address as podman_address  # the tests replace it in its module
from deployer.contract.base.errors import MissingTool
from tests import running


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


_SOCKET = "unix:///run/user/1000/docker.sock"
_TLS = {"DOCKER_HOST": "tcp://far:2376", "DOCKER_TLS_VERIFY": "1"}


def _context(folder: Path, name: str, **endpoint: object) -> Path:
    """Write a context as `docker context create` does; return the folder of its certificates."""
    key = hashlib.sha256(name.encode()).hexdigest()
    meta = folder / "contexts/meta" / key / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    return folder / "contexts/tls" / key / "docker"


def test_podman_is_the_engine_if_nothing_leads_to_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(podman_service, "address", lambda: "unix:///podman")
    monkeypatch.setattr(engine, "DEFAULT_HOST", f"unix://{tmp_path}/docker.sock")
    assert engine.address() == "unix:///podman"
    (tmp_path / "docker.sock").touch()
    assert engine.address() == engine.DEFAULT_HOST
    (tmp_path / "docker.sock").unlink()
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert engine.address() == engine.DEFAULT_HOST


def test_buildah_alone_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running.program(tmp_path, "buildah", "exit 0\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    with pytest.raises(MissingTool) as caught:
        engine.connect()
    assert caught.value.hint.startswith("buildah alone is not enough: install and start Docker")
    assert "or install podman" in caught.value.hint


def test_a_podman_that_does_not_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running.program(tmp_path, "podman", "echo 'cannot find newuidmap' >&2; exit 125\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    podman_address.cache_clear()
    with pytest.raises(MissingTool, match="podman's service does not start: cannot find newuidmap"):
        podman_address()


@pytest.mark.parametrize(
    ("variables", "current", "expected"),
    [
        ({}, None, {"DOCKER_HOST": engine.DEFAULT_HOST}),
        ({}, "default", {"DOCKER_HOST": engine.DEFAULT_HOST}),
        ({}, "rootless", {"DOCKER_HOST": _SOCKET, "DOCKER_TLS_VERIFY": ""}),
        ({"DOCKER_CONTEXT": "rootless"}, "far", {"DOCKER_HOST": _SOCKET}),
        ({"DOCKER_CONTEXT": "default"}, "far", {"DOCKER_HOST": engine.DEFAULT_HOST}),
        ({}, "far", _TLS),
        ({}, "unverified", {"DOCKER_HOST": "tcp://far:2376", "DOCKER_TLS_VERIFY": ""}),
        ({"DOCKER_HOST": "unix:///x", "DOCKER_CONTEXT": "far"}, "far", {"DOCKER_HOST": "unix:///x"}),
    ],
)
def test_the_engine_is_that_of_dockers_own_command(
    variables: dict[str, str],
    current: str | None,
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(podman_service, "address", lambda: None)
    for name, value in {**variables, "DOCKER_CONFIG": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    _context(tmp_path, "rootless", Host=_SOCKET, SkipTLSVerify=False)
    for name in ("far", "unverified"):
        certificates = _context(tmp_path, name, Host="tcp://far:2376", SkipTLSVerify=name == "unverified")
        certificates.mkdir(parents=True)
    if current:
        (tmp_path / "config.json").write_text(json.dumps({"auths": {}, "currentContext": current}))
    found = engine._environment()
    assert {name: found[name] for name in expected} == expected
    assert engine.address() == expected["DOCKER_HOST"]


def test_an_engine_is_asked_for_its_version_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine has its own."""
    client = MagicMock()
    client.api.api_version = "1.41"
    made = MagicMock(return_value=client)
    monkeypatch.setattr(engine, "_versions", {})
    monkeypatch.setattr(engine.docker.DockerClient, "from_env", made)
    for host in ("tcp://a:1", "tcp://a:1", "tcp://b:1"):
        monkeypatch.setenv("DOCKER_HOST", host)
        engine.connect()
    assert [call.kwargs["version"] for call in made.call_args_list] == [None, "1.41", None]


def test_an_unknown_context_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONTEXT", "nope")
    with pytest.raises(MissingTool, match="no Docker context 'nope'") as caught:
        engine.connect()
    assert "docker context ls" in caught.value.hint


def test_a_socket_that_refuses_the_user_names_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr(socket.socket, "connect", MagicMock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(MissingTool, match="refuses this user: Permission denied") as caught:
        engine.connect()
    assert "usermod -aG docker" in caught.value.hint
    assert "rootless" in caught.value.hint
    assert "install" not in caught.value.hint
