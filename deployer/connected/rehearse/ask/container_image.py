"""The image of the container that hosts a simulated site: Debian with Python, iproute2 and ch-run.

mmdebstrap makes it if possible: it needs root or user namespaces. Otherwise, for example on macOS, Docker builds it
from Debian's own image. It is always for x86-64, like the images of bundles. An engine on another architecture
emulates it.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import docker

from deployer.connected.ground import caches, engine, xdg
from deployer.connected.image.bases import base
from deployer.connected.image.builders.classic import Messages
from deployer.connected.image.builders.transcript import Transcript
from deployer.connected.image.definition import settings
from deployer.connected.image.definition.definition import Base
from deployer.connected.image.definition.settings import FOLDER, BuildSettings
from deployer.contract.base.errors import JobFailed
from deployer.system import files

PLATFORM = "linux/amd64"
#: The small image of Debian 12 that Debian publishes.
DEBIAN = "debian@sha256:4724b8cc51e33e398f0e2e15e18d5ec2851ff0c2280647e1310bc1642182655d"
_PACKAGES = ("charliecloud-runtime", "iproute2", "libzstd1", "python3")
_INSTALL = "RUN apt-get update && apt-get install -y --no-install-recommends {} && rm -rf /var/lib/apt/lists/*"


def ensure(client: docker.DockerClient, tell: Callable[[str], None]) -> str:
    """Return the image's name in the engine. Make the image if the engine lacks it.

    Raises:
        JobFailed: it cannot be made, for example because Debian's packages cannot be downloaded.
        SpaceError: the disk is full.
    """
    host = settings.from_host(None, None, os.environ)
    possible = shutil.which("mmdebstrap") and sys.platform == "linux" and os.uname().machine == "x86_64"
    if possible and not engine.has_image(client, _tag(host, DEBIAN)):
        try:
            return base.debian(client, Base(debian="bookworm", include=list(_PACKAGES)), host, tell)
        except JobFailed as error:
            tell(f"Docker makes it instead, because {error.message}")
    return built(client, host, tell)


def built(client: docker.DockerClient, host: BuildSettings, tell: Callable[[str], None], debian: str = DEBIAN) -> str:
    """Return the image's name in the engine, building it from Debian's image. Raises the same errors as ``ensure``."""
    tag = _tag(host, debian)
    if engine.has_image(client, tag):
        return tag
    tell(f"making {tag}, in which the simulated site runs (once)")
    contents = {f"settings/{name}": data for name, data in host.contents().items()}
    context = settings.tar_of({"Dockerfile": _dockerfile(host, debian).encode(), **contents})
    log = xdg.state_folder("builds") / "rehearsal.log"
    with files.errors_named(f"write {log}"):
        log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as stream, engine.errors_named(client, f"make {tag}"):
        transcript = Messages(Transcript(tag, str(log), lambda line: print(line, file=stream)))
        messages: Any = client.api.build(
            fileobj=context, custom_context=True, tag=tag, rm=True, decode=True, platform=PLATFORM,
            buildargs=dict(host.proxies),
        )  # fmt: skip
        for message in messages:
            transcript.receive(message)
    return tag


def _dockerfile(host: BuildSettings, debian: str) -> str:
    lines = [f"FROM {debian}"]
    if host.contents():
        lines.append(f"COPY settings {FOLDER}")
    lines += [f"ENV {name}={value}" for name, value in sorted(host.environment().items())]
    return "\n".join([*lines, _INSTALL.format(" ".join(_PACKAGES))]) + "\n"


def _tag(host: BuildSettings, debian: str) -> str:
    """Return the name of the image that Docker builds."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in host.contents().items()}
    return "deployer/rehearsal:" + caches.key(_dockerfile(host, debian), digests)
