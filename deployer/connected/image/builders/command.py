"""Builders that are commands: how one is run, and how its lines reach a transcript."""

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from deployer.connected.ground import engine, podman_service
from deployer.connected.image.builders import rewritten
from deployer.connected.image.builders.builder import BuildContext, ImageBuild
from deployer.contract.base.errors import DeployerError, MissingTool, UsageError
from deployer.system import files, process

#: Seconds between two looks at a command's output.
_PAUSE = 0.05
#: Seconds for an interrupted command to end by itself. Without its client, the engine ends the build.
_ENDS_SECONDS = 1
#: Variables of the engines' clients.
_INHERITED = (
    "DOCKER_API_VERSION", "DOCKER_CERT_PATH", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_HOST", "DOCKER_TLS",
    "DOCKER_TLS_VERIFY", "SSH_AUTH_SOCK", *podman_service.VARIABLES,
)  # fmt: skip
_UNREADABLE = re.compile(r"dockerfile parse error|unknown instruction|failed to create LLB definition", re.IGNORECASE)


class LineReader(Protocol):
    """Reads the lines of a builder into a transcript.

    Attributes:
        error: its last message that it failed; empty if there is none.
        code: the exit status of the failed step's command; None: the builder itself failed.
    """

    error: str
    code: int | None

    def line(self, line: str) -> None:
        """Read a line."""


def run(
    wanted: ImageBuild,
    source: BuildContext,
    scratch: Path,
    argv: Sequence[str],
    env: Mapping[str, str],
    reader: LineReader,
) -> str:
    """Run a builder's command and return the image's id.

    Args:
        argv: the command, without the options that all such builders have, and without the context.
        env: its variables, besides those of the build.
    """
    transcript = wanted.transcript
    (scratch / "Dockerfile").write_text(source.text, "utf-8")
    (scratch / "Dockerfile.dockerignore").write_text("\n".join(source.excluded), "utf-8")
    variables = wanted.mounted.environment if wanted.mounted.settings else {}
    given = {**wanted.arguments, **variables}
    # Proxies are not for the process list: they may have logins. No other argument is a variable of the builder itself.
    proxies = {name: value for name, value in given.items() if name.lower().endswith("_proxy")}
    options = [f"--iidfile={scratch / 'id'}", f"--file={scratch / 'Dockerfile'}"]
    options += [f"--build-arg={name}" + (f"={value}" if name not in proxies else "") for name, value in given.items()]
    options += [f"--label={name}={value}" for name, value in wanted.labels.items()]
    options += _mounts(wanted, scratch)
    options += ["--network=none"] if wanted.offline else []
    options += [f"--platform={wanted.platform}"] if wanted.platform else []
    options += ["--no-cache"] if wanted.no_cache else []
    options += [f"--target={wanted.target}"] if wanted.target else []

    added = rewritten.mount_options(wanted.mounted.settings)
    own = {**proxies, **environment(env)}
    running = process.Background([*argv, *options, str(source.folder)], own, str(scratch / "log"))
    last = ""
    try:
        for line in filter(None, _followed(running, scratch / "log")):
            last = line.replace(added, "") if added else line
            if _UNREADABLE.search(last):
                last = rewritten.own_lines(last, source.text, len(variables))
            reader.line(last)
    finally:
        running.stop(_ENDS_SECONDS)
    if status := running.poll():
        if not engine.answers(wanted.client):
            action = f"cannot build {transcript.tag} {transcript.step}"
            raise MissingTool(f"{action}: the Docker engine went away", engine.AGAIN)
        error = reader.error or last or f"{argv[0]} ended with {status}"
        if _UNREADABLE.search(error):
            raise UsageError(f"{transcript.tag}: {source.name}: {error}")
        transcript.failed(error, reader.code)
    return files.read_text(str(scratch / "id")).strip()


def _followed(running: process.Background, log: Path) -> Iterator[str]:
    """Yield the lines of a command's output until it ends."""
    partial = b""
    with open(log, "rb") as stream:
        while True:
            ended = running.poll() is not None  # before the last lines are read
            *lines, partial = (partial + stream.read()).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
            if ended:
                break
            if not lines:
                time.sleep(_PAUSE)
    yield partial.decode("utf-8", "replace")


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a client finds its engine, as in the user's shell, and ``more``."""
    return {**process.base_environment(*_INHERITED), **more}


def version(argv: Sequence[str], env: Mapping[str, str] = {}) -> str:
    """Return what a command prints; empty if it does not exist or fails."""
    try:
        return process.run(argv, timeout=30, env=environment(env)).stdout.strip()
    except DeployerError:
        return ""


def programs(name: str) -> list[str]:
    """Return the paths of all programs of this name on the PATH."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return [path for folder in dict.fromkeys(folders) if folder and (path := shutil.which(name, path=folder))]


def _mounts(wanted: ImageBuild, scratch: Path) -> list[str]:
    mounted = wanted.mounted
    contents = {rewritten.secret_id(name): data for name, data in mounted.settings.items()}
    options = []
    for number, (identity, data) in enumerate({**mounted.secrets, **contents}.items()):
        path = scratch / f"secret{number}"
        path.write_bytes(data)
        options.append(f"--secret=id={identity},src={path}")
    return options + [f"--ssh={key}" for key in mounted.ssh]
