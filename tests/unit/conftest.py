"""What all unit tests share. Runs on pytest 7.0 and Python 3.6 too."""

import pytest

from deployer.site.capture import machine


@pytest.fixture(scope="session", autouse=True)
def _no_profile(tmp_path_factory):
    """Give login shells an empty home: a developer's own ``.profile`` may be slow, or wait for ever. Have no engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")  # without it, each command starts podman's service
        yield


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """Keep the laptop's settings, records and caches in folders of this test."""
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


@pytest.fixture(scope="session", autouse=True)
def _user_namespaces():
    """Let this machine have user namespaces: a change root and some containers forbid them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "user_namespaces", lambda tools: True)
        yield
