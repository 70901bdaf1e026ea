"""The choice of a builder."""

from collections.abc import Callable, Mapping
from typing import Any

import docker

from deployer.connected.ground import engine
from deployer.connected.image.builders.builder import Builder
from deployer.connected.image.builders.buildkit import BuildKit
from deployer.connected.image.builders.podman import PodmanBuilder
from deployer.contract.base.errors import MissingTool

#: Builders in their order. Each returns itself, or None if it is not at hand for an engine that describes itself so.
BUILDERS: Mapping[str, Callable[[Mapping[str, Any]], Builder | None]] = {
    "buildkit": BuildKit.at_hand,
    "podman": PodmanBuilder.at_hand,
}

_MISSING = {
    "buildkit": "install docker-buildx (Debian 12: docker.io has a client with BuildKit), for Docker 20.10 or newer",
    "podman": "install podman, and unset DOCKER_HOST and DOCKER_CONTEXT, or let them lead to podman's service",
}


def choose(client: docker.DockerClient, wanted: str | None = None) -> Builder:
    """Return the first builder that is at hand.

    Args:
        wanted: only this one of ``BUILDERS``.

    Raises:
        MissingTool: none is at hand.
    """
    about = engine.version(client)
    for name, at_hand in BUILDERS.items():
        if wanted in (None, name) and (builder := at_hand(about)):
            return builder
    wanted = wanted or ("podman" if engine.is_podman(about) else "buildkit")
    raise MissingTool(f"the builder {wanted} is not at hand for this engine", _MISSING[wanted])
