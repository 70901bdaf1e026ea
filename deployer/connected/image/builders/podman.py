"""podman's builder, which is buildah: for podman's service, on this machine or another.

Source: podman-build(1), podman-system-service(1).
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.ground import engine
from deployer.connected.image.builders import command, features
from deployer.connected.image.builders.builder import BuildContext, ImageBuild
from deployer.connected.image.builders.features import Known
from deployer.connected.image.builders.transcript import Transcript, plain

_STEP = re.compile(r"^(?:\[(\d+/\d+)\] )?STEP (\d+)/(\d+): (.*)$")
_CODE = re.compile(r"exit status (\d+)$")


class PodmanBuilder(NamedTuple):
    """podman.

    Attributes:
        name: the program and its version.
        address: the address of the service.
        known: the releases that know the same parts of the Dockerfile format: that of buildah in it.
    """

    name: str
    address: str
    known: Known

    @staticmethod
    def at_hand(about: Mapping[str, Any]) -> "PodmanBuilder | None":
        """Return the builder if the engine is podman's service and the program is installed.

        Args:
            about: the engine's description of itself.
        """
        if not engine.is_podman(about) or shutil.which("podman") is None:
            return None
        address = engine.address()
        buildah = command.version(["podman", "--url", address, "info", "--format={{.Host.BuildahVersion}}"])
        return PodmanBuilder(f"podman {about['Version']}", address, Known(buildah=features.version(buildah)))

    def build(self, wanted: ImageBuild, source: BuildContext, scratch: Path) -> str:
        """Build an image and return its id. Raises the errors of ``Builder.build``."""
        argv = ["podman", "--url", self.address, "build", f"--ignorefile={scratch / 'Dockerfile.dockerignore'}"]
        return command.run(wanted, source, scratch, argv, {}, BuildahLines(wanted.transcript))


class BuildahLines:
    """Reads buildah's lines. Steps run one after another.

    Attributes:
        error: buildah's message that the build failed.
        code: the exit status of the failed step's command.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.error = ""
        self.code: int | None = None
        self._transcript = transcript
        self._key = ""
        self._begun = 0
        self._totals: dict[str, int] = {}

    def line(self, line: str) -> None:
        """Read a line."""
        line = plain(line)
        self._transcript.say(line)
        step = _STEP.match(line)
        if step:
            stage, at, total, instruction = step[1] or "", step[2], step[3], step[4]
            self._begun += 1
            self._totals[stage] = int(total)
            self._key = line
            name = f"{at}/{total}{f' of stage {stage}' if stage else ''}, {instruction}"
            self._transcript.begin(self._key, name, self._begun, sum(self._totals.values()))
        elif line.startswith("--> Using cache"):
            self._transcript.reuse(self._key)
        elif line.startswith("Error: "):
            self.error = line.removeprefix("Error: ").partition(" &imagebuilder.Step{")[0]
            code = _CODE.search(line)
            self.code = int(code[1]) if code else None
        elif not line.startswith("--> "):
            self._transcript.output(line)
