"""The Docker engine: connect to it, inspect images, and export their root filesystems."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound

from deployer.connected.ground import podman_service
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, MissingTool, SpaceError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.system import files

DEFAULT_HOST = "unix:///var/run/docker.sock"

#: Seconds without a byte from the engine. A RUN line may print nothing for long, so the limit is high. It only ends
#: calls that hang.
PATIENCE = 3600

#: Seconds for the first answer. An engine on this machine answers immediately.
_FIRST_ANSWER = 15

FULL = "no space left on the engine's disk"
FREE_SPACE = "free space in the engine: docker system prune, or podman system prune (df shows what is full)"
EMULATION = "programs of another architecture need emulation: apt-get install qemu-user-static binfmt-support arch-test"
AGAIN = "start the engine again and repeat the command: finished steps are cached; its log says why it ended"

#: Labels of our containers: the maker (machine and user), and the process. The next command removes containers whose
#: process was killed.
_MAKER, _PROCESS = "deployer.maker", "deployer.process"
#: These distinguish machines with one name that share an engine, and containers in which deployer runs.
_MACHINE, _PROCESSES = "/etc/machine-id", "/proc/self/ns/pid"

_INSTALL = (
    "install and start Docker (Debian: apt-get install docker.io), or install podman, or set DOCKER_HOST or "
    "DOCKER_CONTEXT to a running engine (docker context ls)"
)
_JOIN = (
    "Docker runs, but only root and members of the group docker may use it: sudo usermod -aG docker $USER, then log in "
    "again; or use rootless Docker: docker context use rootless"
)

#: The version of the API by the engine's address. Docker starts runc and others to tell it, which takes 30 ms.
_versions: dict[str, str] = {}
#: Exceptions from the SDK if the engine stops during a call.
_LOST = (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError)


def connect() -> docker.DockerClient:
    """Return a client for the engine that Docker's own command uses. The caller closes it.

    Raises:
        MissingTool: no engine answers.
    """
    environment = _environment()
    host = environment["DOCKER_HOST"]
    try:
        _knock(host)
        known = _versions.get(host)
        client = docker.DockerClient.from_env(environment=environment, timeout=_FIRST_ANSWER, version=known)
        _versions[host] = client.api.api_version
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(client.close)
            client.ping()
            cleanup.pop_all()
    except PermissionError as error:
        raise MissingTool(f"the Docker engine at {host} refuses this user: {_reason(error)}", _JOIN) from error
    except (DockerException, *_LOST, OSError) as error:
        hint = _INSTALL if shutil.which("buildah") is None else f"buildah alone is not enough: {_INSTALL}"
        raise MissingTool(f"no Docker engine answers at {host}: {_reason(error)}", hint) from error
    client.api.timeout = PATIENCE
    return client


def answers(client: docker.DockerClient) -> bool:
    """Return whether the engine still answers."""
    try:
        return _knock(address()) or bool(client.ping())
    except (DockerException, *_LOST, OSError):
        return False


def address() -> str:
    """Return the address of the engine."""
    return _environment()["DOCKER_HOST"]


def version(client: docker.DockerClient) -> dict[str, Any]:
    """Return the engine's description of itself, with the keys ``Version``, ``Arch`` and ``Components``."""
    with errors_named(client, "ask the engine for its version"):
        about: dict[str, Any] = client.api.version()
    return about


def is_podman(about: Mapping[str, Any]) -> bool:
    """Return whether an engine that describes itself so is podman's service."""
    return any("podman" in str(part.get("Name")).lower() for part in about.get("Components") or ())


def _environment() -> dict[str, str]:
    """Return the environment with the engine's address and its context's certificates.

    The order is Docker's: ``DOCKER_HOST``, ``DOCKER_CONTEXT``, the current context in its settings, the default socket.
    Without that socket, the engine is podman.

    Raises:
        MissingTool: the context does not exist, or podman's service does not start.
    """
    if os.environ.get("DOCKER_HOST"):
        return dict(os.environ)
    folder, name = _folder(), context()
    if name in ("", "default"):
        wants_docker = name == "default" or files.exists(DEFAULT_HOST.partition("://")[2])
        return {**os.environ, "DOCKER_HOST": (not wants_docker and podman_service.address()) or DEFAULT_HOST}
    key = hashlib.sha256(str(name).encode()).hexdigest()
    endpoint = _settings(folder / "contexts/meta" / key / "meta.json").children("Endpoints").get("docker")
    if endpoint is None:
        hint = "docker context ls shows them; docker context use NAME"
        raise MissingTool(f"there is no Docker context {name!r}", hint)
    own = {"DOCKER_HOST": endpoint.text("Host"), "DOCKER_CERT_PATH": "", "DOCKER_TLS_VERIFY": ""}
    certificates = folder / "contexts/tls" / key / "docker"
    if certificates.is_dir():
        verify = "" if endpoint.maybe_flag("SkipTLSVerify") else "1"
        own.update({"DOCKER_CERT_PATH": str(certificates), "DOCKER_TLS_VERIFY": verify})
    return {**os.environ, **own}


def context() -> str:
    """Return the name of the Docker context in use; empty if nothing selects one."""
    if os.environ.get("DOCKER_HOST"):
        return "default"
    selected = os.environ.get("DOCKER_CONTEXT") or _settings(_folder() / "config.json").maybe_text("currentContext")
    return selected or ""


def _folder() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def _settings(path: Path) -> Fields:
    """Return a Docker settings file; empty if it does not exist."""
    data = files.read_bytes(str(path)) if path.is_file() else b'{"Endpoints": {}}'
    return Fields(json_records.parse(data, str(path)), str(path))


def _knock(host: str) -> bool:
    """Test without the SDK whether an engine listens on a Unix socket.

    If nothing listens, the SDK would leave its own socket open.

    Returns:
        True, or False for another kind of address, which only the SDK can test.

    Raises:
        OSError: no answer.
    """
    scheme, _, path = host.partition("://")
    if scheme != "unix":
        return False
    with socket.socket(socket.AF_UNIX) as knocking:
        knocking.settimeout(_FIRST_ANSWER)
        knocking.connect(path)
        knocking.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
        if b" 200 " not in knocking.recv(64):
            raise ConnectionError("the program that listens there is not a Docker engine")
    return True


@contextlib.contextmanager
def calls(client: docker.DockerClient, action: Callable[[], str]) -> Iterator[None]:
    """Convert the SDK's exceptions in the block to our errors, and close the block's connections at the end.

    The SDK leaves the connections of streamed answers to the garbage collector.

    Args:
        action: returns the block's current action, for error messages: "export IMAGE".

    Raises:
        MissingTool: the engine stopped.
        SpaceError: the engine's disk is full.
        DeployerError: anything else.
    """
    answered: list[requests.Response] = []

    def note(response: requests.Response, **_: Any) -> None:
        answered.append(response)

    client.api.hooks["response"].append(note)
    try:
        yield
    except (DockerException, *_LOST) as error:
        action_now = action()
        if is_full(str(error)):
            raise SpaceError(f"cannot {action_now}: {FULL}", FREE_SPACE) from error
        if not answers(client):
            raise MissingTool(f"cannot {action_now}: the Docker engine went away", AGAIN) from error
        raise DeployerError(f"cannot {action_now}: {_reason(error)}") from error
    finally:
        client.api.hooks["response"].remove(note)
        for response in answered:
            response.close()


def errors_named(client: docker.DockerClient, action: str) -> contextlib.AbstractContextManager[None]:
    """Return ``calls`` for an action that stays the same during the block."""
    return calls(client, lambda: action)


def is_full(message: str) -> bool:
    """Return whether an engine's message reports a full disk."""
    return "no space left on device" in message.lower() or "disk quota exceeded" in message.lower()


def inspect(client: docker.DockerClient, ref: str) -> dict[str, Any]:
    """Return the engine's record of an image. Raises the SDK's errors."""
    record: dict[str, Any] = client.api.inspect_image(ref)  # type: ignore[no-untyped-call]
    return record


def history(client: docker.DockerClient, ref: str) -> list[dict[str, Any]]:
    """Return the build steps of an image, one record per step, newest first. Raises the SDK's errors."""
    steps: list[dict[str, Any]] = client.api.history(ref)  # type: ignore[no-untyped-call]
    return steps


def architecture(client: docker.DockerClient) -> str:
    """Return the architecture of the engine's machine, in the form that images use: amd64, arm64."""
    return str(version(client)["Arch"])


def has_image(client: docker.DockerClient, ref: str) -> bool:
    """Return whether the engine has an image with this name."""
    with errors_named(client, f"look for {ref}"):
        try:
            inspect(client, ref)
        except ImageNotFound:
            return False
        return True


def name(client: docker.DockerClient, image: str, tag: str) -> None:
    """Give an image the name ``tag``, REPOSITORY:VERSION, which another one may have."""
    repository, _, version = tag.rpartition(":")
    with errors_named(client, f"name {tag}"):
        client.api.tag(image, repository, version, force=True)


def image_config(client: docker.DockerClient, ref: str) -> dict[str, Any]:
    """Return an image's properties and configuration.

    Returns:
        A mapping with the keys ``Id`` (``sha256:hex`` of the configuration), ``Architecture``, ``Os``, ``Size`` (bytes,
        unpacked) and ``Layers`` (diff ids, lowest first); and from the configuration ``Env`` (``NAME=value``),
        ``WorkingDir``, ``Entrypoint``, ``Cmd``, ``User`` and ``Labels``.

    Raises:
        UsageError: the image does not exist.
    """
    with errors_named(client, f"inspect {ref}"):
        try:
            image = inspect(client, ref)
        except ImageNotFound as error:
            raise UsageError(f"the engine has no image {ref}", "build it first, or see: docker image ls") from error
    config = image.get("Config") or {}
    shown = {name: config.get(name) for name in ("Env", "WorkingDir", "Entrypoint", "Cmd", "User", "Labels")}
    shown.update({name: image.get(name) for name in ("Id", "Architecture", "Os", "Size")})
    shown["Layers"] = (image.get("RootFS") or {}).get("Layers") or []
    return shown


def rootfs_chunks(client: docker.DockerClient, ref: str) -> Iterator[bytes]:
    """Yield an image's root filesystem as pieces of one tar. The container for the export is always removed."""
    image_config(client, ref)  # raises a clear error if the image does not exist
    # The container is never started, so this command is not run, but an image without a command requires one.
    with errors_named(client, f"export {ref}"), container(client, ref, ["/deployer-export"]) as container_id:
        yield from client.api.export(container_id, chunk_size=files.CHUNK)


@contextlib.contextmanager
def container(client: docker.DockerClient, image: str, command: Sequence[str], **settings: Any) -> Iterator[str]:
    """Yield a container without a network and without starting it. It is removed at the end.

    Containers left by this user's killed commands are removed first. Raises the SDK's errors.

    Args:
        settings: as for the SDK's ``create_container``.
    """
    with contextlib.suppress(DockerException, *_LOST):
        reap(client)
    settings.update(network_disabled=True, labels=labels())
    container_id = str(client.api.create_container(image, list(command), **settings)["Id"])
    try:
        yield container_id
    finally:
        if answers(client):
            remove(client, container_id)


def labels() -> dict[str, str]:
    """Return the labels that identify a container of this process for ``reap``."""
    maker = [socket.gethostname(), str(os.getuid()), *_machine_id(_MACHINE)]
    with contextlib.suppress(OSError):
        maker.append(str(os.stat(_PROCESSES).st_ino))
    return {_MAKER: "/".join(maker), _PROCESS: str(os.getpid())}


@functools.cache  # each container needs it twice
def _machine_id(path: str) -> Sequence[str]:
    """Return the machine's id; empty if it has none."""
    with contextlib.suppress(OSError):
        return (Path(path).read_text("ascii", "replace").strip(),)
    return ()


def reap(client: docker.DockerClient, *others: str) -> None:
    """Remove this user's containers from this machine whose process has ended. Raises the SDK's errors.

    Args:
        others: labels that the containers must also have: NAME=VALUE.
    """
    own = f"{_MAKER}={labels()[_MAKER]}"
    for item in client.api.containers(all=True, filters={"label": [own, *others]}):
        if not _lives(str(item["Labels"].get(_PROCESS))):
            remove(client, str(item["Id"]))


def remove(client: docker.DockerClient, container_id: str) -> None:
    """Remove a container if possible."""
    with contextlib.suppress(DockerException, *_LOST, OSError):
        client.api.remove_container(container_id, force=True, v=True)


def _lives(pid: str) -> bool:
    if not re.fullmatch("[1-9][0-9]{0,8}", pid):
        return False
    try:
        os.kill(int(pid), 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # another user's process lives
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, APIError) and error.explanation:
        return str(error.explanation)
    inner: BaseException = error
    while inner.__cause__ or inner.__context__:
        inner = inner.__cause__ or inner.__context__ or inner
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return str(inner) or type(inner).__name__
