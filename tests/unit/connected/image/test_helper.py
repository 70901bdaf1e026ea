"""The helper container: what it may do, what comes back, and that it is removed; tests/integration has a real one."""

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployer.connected.image.bases import helper
from deployer.connected.image.definition.settings import BuildSettings
from deployer.contract.base.errors import DeployerError


class Api:
    """An engine that has every image, and whose container prints and ends with 3."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[object]] = {"response": []}
        self.made: dict[str, Any] = {}
        self.removed: list[str] = []

    def inspect_image(self, name: str) -> dict[str, object]:
        return {"Id": name}

    def containers(self, **_: object) -> list[object]:
        return []

    def create_host_config(self, **limits: object) -> dict[str, object]:
        return limits

    def create_container(self, image: str, command: list[str], **settings: object) -> dict[str, str]:
        self.made = {"image": image, "command": command, **settings}
        return {"Id": "c1"}

    def attach_socket(self, container: str, params: object) -> list[tuple[int, bytes]]:
        return [(1, b"tar"), (2, b"E: no such package\n"), (1, b"ball")]

    def start(self, container: str) -> None:
        pass

    def wait(self, container: str) -> dict[str, int]:
        return {"StatusCode": 3}

    def remove_container(self, container: str, **_: object) -> None:
        self.removed.append(container)


def test_a_program_runs_with_few_rights_and_its_container_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "frames_iter", lambda stream, tty: iter(stream))
    client: Any = SimpleNamespace(api=Api())
    host = BuildSettings(proxies={"http_proxy": "http://p:1"})
    done = helper.run(client, ["mmdebstrap", "bookworm", "-"], host, print, output := io.BytesIO(), "arm64")
    assert (done.returncode, output.getvalue(), done.last_words()) == (3, b"tarball", "E: no such package")
    made, limits = client.api.made, client.api.made["host_config"]
    assert (made["entrypoint"], made["command"], made["platform"]) == (["mmdebstrap"], ["bookworm", "-"], "linux/arm64")
    assert made["image"].startswith("deployer/helper:arm64-")
    assert made["environment"] == {"http_proxy": "http://p:1"}
    assert limits.keys() == {"cap_drop", "cap_add", "security_opt"}  # no mounts, not privileged
    assert limits["cap_drop"] == ["ALL"]
    assert "SYS_ADMIN" not in limits["cap_add"]
    assert client.api.removed == ["c1"]


def test_a_full_disk_here_removes_the_container_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "frames_iter", lambda stream, tty: iter(stream))
    client: Any = SimpleNamespace(api=Api())
    with contextlib.suppress(OSError, DeployerError), Path("/dev/full").open("wb", buffering=0) as output:
        helper.run(client, ["mmdebstrap"], BuildSettings(), print, output, "amd64")
        pytest.fail("no error")
    assert client.api.removed == ["c1"]
