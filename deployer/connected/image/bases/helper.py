"""The helper: a container with Debian's programs, in the Docker engine, for machines that lack them.

Docker builds its image from Debian's own, which a digest names, so the image is the same everywhere. The engine may be
on another machine: the container shares no folder with this one, and only its output comes back.
"""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import IO

import docker
from docker.utils.socket import STDOUT, frames_iter

from deployer.connected.ground import caches, engine, xdg
from deployer.connected.image.builders import choice
from deployer.connected.image.builders.builder import ImageBuild
from deployer.connected.image.builders.transcript import Transcript
from deployer.connected.image.definition.definition import DOCKERFILE
from deployer.connected.image.definition.settings import MARK, BuildSettings
from deployer.system import files
from deployer.system.process import Completed

#: The folder with the build settings in the image. Nothing is made from it.
FOLDER = f"/{MARK}"
#: The small image of Debian 12 that Debian publishes.
DEBIAN = "debian@sha256:4724b8cc51e33e398f0e2e15e18d5ec2851ff0c2280647e1310bc1642182655d"
#: What hosts a simulated site, and what makes a root filesystem.
_PACKAGES = ("ca-certificates", "charliecloud-runtime", "iproute2", "libzstd1", "mmdebstrap", "python3")
_INSTALL = "RUN apt-get update && apt-get install -y --no-install-recommends {} && rm -rf /var/lib/apt/lists/*"
#: What dpkg and chroot need as root of a container. Nothing is mounted there, so CAP_SYS_ADMIN is not among them.
_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP", "SETGID", "SETUID", "SYS_CHROOT"]
#: Bytes of a program's errors to keep: the last ones.
_LAST = 64 * 1024


def run(
    client: docker.DockerClient, argv: Sequence[str], host: BuildSettings, say: Callable[[str], None],
    output: IO[bytes], architecture: str,
) -> Completed:  # fmt: skip
    """Run a program as root of a container, with a network but without the capability to mount.

    Args:
        argv: the program, which reads no files of this machine.
        host: this machine's settings. Of its variables, the program gets the proxies.
        output: receives the program's output.
        architecture: the processor of the container, by its name in OCI documents.

    Returns:
        How it ended, with the end of its errors.

    Raises:
        JobFailed: the image cannot be made, for example because Debian's packages cannot be downloaded.
        SpaceError: the engine's disk is full.
        MissingTool: the engine has stopped.
        DeployerError: the engine cannot run the container.
    """
    image, platform = ensure(client, host, say, architecture), f"linux/{architecture}"
    api, errors = client.api, b""
    with engine.errors_named(client, f"run {argv[0]} in a container of {image}"), contextlib.ExitStack() as cleanup:
        engine.reap(client)
        container = api.create_container(
            image, list(argv[1:]), entrypoint=list(argv[:1]), labels=engine.labels(), environment=dict(host.proxies),
            platform=platform, host_config=api.create_host_config(
                cap_drop=["ALL"], cap_add=_CAPABILITIES, security_opt=["no-new-privileges"]
            ),
        )["Id"]  # fmt: skip
        cleanup.callback(engine.remove, client, container)
        connection = api.attach_socket(container, params={"stdout": 1, "stderr": 1, "stream": 1})
        api.start(container)
        for kind, data in frames_iter(connection, tty=False):  # type: ignore[no-untyped-call]
            if kind == STDOUT:
                output.write(data)
            else:
                errors = (errors + data)[-_LAST:]
        status = int(api.wait(container)["StatusCode"])
    return Completed(argv, status, "", errors.decode("utf-8", "replace"))


def ensure(
    client: docker.DockerClient, host: BuildSettings, say: Callable[[str], None], architecture: str
) -> str:  # fmt: skip
    """Return the image's name in the engine. Make the image if the engine lacks it. Raises the errors of ``run``."""
    tag = name(host, architecture)
    if engine.has_image(client, tag):
        return tag
    say(f"making {tag}, the image of helper containers (once)")
    contents = {f"settings/{each}": data for each, data in host.contents(FOLDER).items()}
    log = xdg.state_folder("builds") / "helper.log"
    with files.errors_named(f"write {log}"):
        log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as stream, engine.errors_named(client, f"make {tag}"):
        transcript = Transcript(tag, str(log), lambda line: print(line, file=stream))
        helper = ImageBuild(client, choice.choose(client), host.proxies, transcript, platform=f"linux/{architecture}")
        engine.name(client, helper.of_context({DOCKERFILE: _dockerfile(host).encode(), **contents}), tag)
    return tag


def name(host: BuildSettings, architecture: str) -> str:
    """Return the image's name: a digest of everything that it depends on."""
    digests = {each: hashlib.sha256(data).hexdigest() for each, data in host.contents(FOLDER).items()}
    return f"deployer/helper:{architecture}-" + caches.key(_dockerfile(host), digests)


def _dockerfile(host: BuildSettings) -> str:
    lines = [f"FROM {DEBIAN}"]
    if host.contents():
        lines.append(f"COPY --chmod=0755 settings {FOLDER}")  # apt reads them as the user _apt
    lines += [f"ENV {variable}={value}" for variable, value in sorted(host.environment(FOLDER).items())]
    return "\n".join([*lines, _INSTALL.format(" ".join(_PACKAGES))]) + "\n"
