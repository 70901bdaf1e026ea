"""BuildKit, with the engine's own command: the plug-in buildx, or the client of Docker 20.10 to 22.

Source: Docker, "docker buildx build" and "Build secrets"; the lines are those of ``--progress=plain``.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.ground import engine
from deployer.connected.image.builders import command, features
from deployer.connected.image.builders.builder import BuildContext, ImageBuild
from deployer.connected.image.builders.features import Known
from deployer.connected.image.builders.transcript import TAIL, Transcript, cut, plain

_VERTEX = re.compile(r"^#(\d+) (.*)$")
_STEP = re.compile(r"^\[(?:(.+?) +)?(\d+)/(\d+)\] (.*)$")
_PRINTED = re.compile(r"^\d+\.\d+ ?(.*)$")
_FAILED = re.compile(r"(ERROR: )?(failed to |error )")
_CODE = re.compile(r"exit code: (\d+)$")
#: The beginning of the name under which BuildKit finds an image that has only an id.
_NAMED = "localhost/deployer/stage"


class BuildKit(NamedTuple):
    """BuildKit in the engine.

    Attributes:
        name: the command and its version.
        argv: the command.
        env: variables that select BuildKit.
        known: the releases that know the same parts of the Dockerfile format: the engine's own.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    known: Known

    @staticmethod
    def at_hand(about: Mapping[str, Any]) -> "BuildKit | None":
        """Return the builder if the engine is Docker 20.10 or newer and a command for its BuildKit is installed.

        Args:
            about: the engine's description of itself.
        """
        known = Known(docker=features.version(str(about.get("Version"))))
        if engine.is_podman(about) or known.docker < (20, 10):
            return None
        env = {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        for program in command.programs("docker"):
            buildx = re.search(r"v?\d+\.\d+\S*", command.version([program, "buildx", "version"], env))
            if buildx:
                # The builder of the current context's engine, which has our images, whichever one the user selected.
                argv = [program, "buildx", "build", f"--builder={engine.context() or 'default'}", "--load"]
                return BuildKit(f"docker buildx {buildx[0]}", [*argv, "--progress=plain"], env, known)
            client_version = features.version(command.version([program, "--version"]))
            if (20, 10) <= client_version < (23, 0):
                argv = [program, "build", "--progress=plain"]
                return BuildKit("BuildKit of docker {}.{}".format(*client_version), argv, env, known)
        return None

    def build(self, wanted: ImageBuild, source: BuildContext, scratch: Path) -> str:
        """Build an image and return its id. Raises the errors of ``Builder.build``."""
        lines = BuildKitLines(wanted.transcript)
        return command.run(_with_names(wanted), source, scratch, self.argv, self.env, lines)


def _with_names(wanted: ImageBuild) -> ImageBuild:
    """Give names to images in the arguments that are ids. BuildKit would pull an image that is named like the id.

    The names stay: without its only name, the engine would delete the image.
    """
    arguments = dict(wanted.arguments)
    for name, value in wanted.arguments.items():
        if value.startswith("sha256:"):
            arguments[name] = f"{_NAMED}:{value.partition(':')[2][:32]}"
            engine.name(wanted.client, value, arguments[name])
    return wanted._replace(arguments=arguments)


class _Step(NamedTuple):
    heading: str
    name: str
    tail: deque[str]


class BuildKitLines:
    """Reads BuildKit's lines. Each begins with the number of a vertex, because vertices run at the same time.

    The transcript receives the step's heading before its lines, and again if lines of another step were in between.

    Attributes:
        error: BuildKit's last message that the build failed.
        code: the exit status of the failed step's command.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.error = ""
        self.code: int | None = None
        self._transcript = transcript
        self._steps: dict[str, _Step] = {}
        self._totals: dict[str, int] = {}
        self._headings: dict[str, str] = {}
        self._shown = ""

    def line(self, line: str) -> None:
        """Read a line."""
        vertex = _VERTEX.match(line)
        if vertex is None:
            if _FAILED.match(line):
                self._failed(line)
            return
        number, text = vertex[1], vertex[2]
        self._headings.setdefault(number, text)
        if heading := _STEP.match(text):
            stage, at, total, instruction = heading[1] or "", heading[2], heading[3], heading[4]
            self._totals[stage] = int(total)
            name = f"{stage} {at}/{total}".strip()
            self._steps.setdefault(number, _Step(text, f"{name}, {instruction}", deque(maxlen=TAIL)))
            self._show(number)
        elif text.startswith("ERROR: "):
            self._show(number)
            if number not in self._steps and not self.error:  # a download, or the build context
                self._transcript.step = f"at {cut(self._headings[number])}"
            self._failed(text)
        elif number in self._steps:
            step = self._steps[number]
            if text == "CACHED":
                self._show(number)
                self._transcript.say("CACHED")
                if ", FROM " not in step.name:
                    self._transcript.reuse(step.heading)
            elif printed := _PRINTED.match(text):
                self._show(number)
                shown = plain(printed[1])
                self._transcript.say(shown)
                step.tail.append(shown)

    def _show(self, number: str) -> None:
        """Make a step the current one, unless the build has failed in another one."""
        if number in self._steps and number != self._shown and not self.error:
            step = self._steps[number]
            self._shown = number
            self._transcript.say(step.heading)
            self._transcript.begin(step.heading, step.name, len(self._steps), sum(self._totals.values()), step.tail)

    def _failed(self, text: str) -> None:
        self._transcript.say(text)
        error = text.removeprefix("ERROR: ").removeprefix("failed to solve: ")
        code = _CODE.search(error)
        if code or not self.error:
            self.error, self.code = error, int(code[1]) if code else None
