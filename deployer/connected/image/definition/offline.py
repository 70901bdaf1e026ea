"""Downloads that a Dockerfile requests from the engine. ``--offline`` refuses them before the build.

Running the steps without a network does not prevent these downloads.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import docker

from deployer.connected.ground import engine
from deployer.connected.image.definition import dockerfile
from deployer.contract.base.errors import UsageError
from deployer.system import files

#: The beginning of the hint for a failed step.
HINT = "--offline: a step that is not in the engine's cache runs without network; build once without it; "

_ADDRESS = re.compile(r"(https?|git)://|git@")


def check_dockerfile(client: docker.DockerClient, path: Path, arguments: Mapping[str, str]) -> None:
    """Raise UsageError if the engine would pull an image or download a URL to build this Dockerfile."""
    for line, image, address in fetched(files.read_text(str(path)), arguments):
        if address:
            hint = "keep a copy beside the Dockerfile"
            raise UsageError(f"{path}:{line}: offline, and {address} would be fetched", hint)
        if not engine.has_image(client, image):
            hint = "build once without --offline"
            raise UsageError(f"{path}:{line}: offline, and the engine has no image {image}", hint)


def fetched(text: str, arguments: Mapping[str, str]) -> list[tuple[int, str, str]]:
    """Return (line, image, "") for each required image, and (line, "", address) for each download, in order."""
    parsed = dockerfile.parse(text)
    needs = [(step.line, image, "") for step, image in parsed.images(arguments)]
    for step in parsed.instructions():
        if step.name == "ADD":
            needs += [(step.line, "", word) for word in step.words()[:-1] if _ADDRESS.match(word)]
    return sorted(needs)
