"""The image of the container of a rehearsal: made by mmdebstrap if that is possible here, else by Docker."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from deployer.connected.image.bases import helper
from deployer.connected.rehearse.ask import container_image
from tests import running

#: Without root and without user namespaces; mmdebstrap 1.3.5 was seen to end so. It counts its calls.
MMDEBSTRAP = """#!/bin/sh
[ "$1" != --version ] || exec echo mmdebstrap 1.3.5
[ "$1" != --unshare-helper ] || exit 0
echo called >>"$0.calls"
echo "E: unable to pick chroot mode automatically (use --mode for manual selection)" >&2
exit 25
"""


class Api:
    """An engine that has the images that it builds."""

    def __init__(self) -> None:
        self.images: list[str] = []
        self.hooks: dict[str, list[object]] = {"response": []}

    def inspect_image(self, name: str) -> dict[str, object]:
        if name not in self.images:
            raise ImageNotFound("none")
        return {}

    def tag(self, image: str, repository: str, version: str, **_: object) -> None:
        assert image == "sha256:0"
        self.images.append(f"{repository}:{version}")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="mmdebstrap makes images for its own machine")
def test_where_mmdebstrap_cannot_work_docker_makes_the_image_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.program(tmp_path, "mmdebstrap", MMDEBSTRAP)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    builder = SimpleNamespace(build=lambda *_: "sha256:0")
    monkeypatch.setattr(helper.choice, "choose", lambda _: builder)
    client: Any = SimpleNamespace(api=Api())
    said: list[str] = []
    made = container_image.ensure(client, said.append)
    assert made == container_image.ensure(client, said.append) == client.api.images[0]
    assert made.startswith("deployer/helper:amd64-")
    assert len(client.api.images) == len((tmp_path / "mmdebstrap.calls").read_text().splitlines()) == 1
    assert any("Docker makes it instead, because mmdebstrap cannot make bookworm: E: unable" in line for line in said)
