"""The classic builder of the Docker engine: build a context, and read the builder's messages."""

import re
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple

import docker
from docker.errors import APIError
from tqdm import tqdm

from deployer.connected.ground import engine
from deployer.connected.image import context
from deployer.connected.image.definition.definition import Definition
from deployer.contract.base.errors import JobFailed, SpaceError, UsageError
from deployer.system import terminal

#: Lines at the end of a failed step's log to search for the reason, and the maximum length of a printed line.
_TAIL = 400
_SHOWN = 300
_LAST = 8  # lines to search for a full disk
_SHOWN_STEP = 100

_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: Lines of the engine itself between the lines of a step.
_REMARK = re.compile(r"^( ---> |Removing intermediate container )")


class Transcript:
    """Reads the engine's messages and keeps the current step, the end of its log and the image's id.

    Args:
        tag: the image's name, for errors.
        log: the path of the log, for errors.
        say: called with every line, without colour codes.
        advice: the beginning of the hint for a failed step.
        part: what is built, for the progress bar.
    """

    def __init__(self, tag: str, log: str, say: Callable[[str], None], advice: str = "", part: str = "build") -> None:
        self.tag = tag
        self.log = log
        self.part = part
        self.step = "before its first step"
        self.number = self.steps = self.cached = 0
        self.image = ""
        self.say = say
        self._advice = advice
        self._known = 0
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._partial = ""

    def for_part(self, what: str, say: Callable[[str], None] | None = None) -> "Transcript":
        """Return a transcript for another image of the same build, with the same log. Its lines begin with its name.

        Args:
            say: called with these lines instead of this transcript's ``say``.
        """
        tell = say or self.say
        return Transcript(f"{self.tag}, {what}", self.log, lambda line: tell(f"{what}: {line}"), self._advice, what)

    def continues(self, other: "Transcript") -> None:
        """Keep the counts of ``other``, whose steps are the first ones of this build."""
        self._known, self.cached = other.steps, other.cached

    def receive(self, message: Mapping[str, Any]) -> None:
        """Read one message. Raises JobFailed or SpaceError if it reports a failed build."""
        if "stream" in message:
            *lines, self._partial = (self._partial + str(message["stream"])).split("\n")
            for line in lines:
                self._line(_COLOUR.sub("", line).rsplit("\r", 1)[-1].rstrip())
        if "aux" in message:
            self.image = str(message["aux"].get("ID", self.image))
        if "error" in message:
            self._failed(str(message["error"]), (message.get("errorDetail") or {}).get("code"))

    def _line(self, line: str) -> None:
        if not line:
            return
        self.say(line)
        step = _STEP.match(line)
        if step:
            self.number, self.steps = int(step[1]), int(step[2])
            self.step = f"in step {step[1]}/{step[2]}, {_cut(step[3], _SHOWN_STEP)}"
            self._tail.clear()
        elif line == " ---> Using cache":
            self.cached += self.number > self._known
        elif not _REMARK.match(line):
            self._tail.append(line)

    def _failed(self, error: str, code: int | None) -> None:
        if self._partial:
            self._line(self._partial)
        self.say(error)
        hint = f"{self._advice}the whole log: {self.log}"
        failed = f"build of {self.tag} failed {self.step}"
        if engine.is_full(error + "".join(list(self._tail)[-_LAST:])):
            raise SpaceError(f"{failed}: {_cut(error)}", engine.FREE_SPACE)
        if code is None:
            raise JobFailed(f"{failed}: {_cut(error)}", hint)
        raise JobFailed(f"{failed}: exit {code}: {_cut(reason(self._tail)) or 'it printed nothing'}", hint)


#: Lines that give the reason for a failure, from apt, pip, compilers, CMake, Python, git, curl and shells.
_REASON = re.compile(
    r"^\s*(E|ERROR|Error|error|FATAL|fatal|fatal error|curl|wget|\w*(Error|Exception)):\s"
    r"|:\s(fatal )?error:\s|^CMake Error|: (command )?not found\b|cannot find -l|undefined reference to"
    r"|No such file or directory|Permission denied|\bERROR[: ]"
)
#: Lines that match, but only report that another program failed. They are used only if no other line matches.
_PASSED_ON = re.compile(
    r"^(make(\[\d+\])?|ninja): |error: subprocess-exited-with-error|^\s*(note|hint): |metadata-generation-failed"
    r"|Failed to build installable wheels|ERROR: Failed building wheel|compilation terminated"
)


def reason(lines: Sequence[str]) -> str:
    """Return the last line of a failed step's log that gives the reason, or the last line if there is none."""
    stripped = [line.strip() for line in lines if line.strip()]
    for wanted in (lambda line: _REASON.search(line) and not _PASSED_ON.search(line), _REASON.search, bool):
        for line in reversed(stripped):
            if wanted(line):
                return line
    return ""


def _cut(text: str, size: int = _SHOWN) -> str:
    return text if len(text) <= size else text[: size - 4] + " ..."


class ImageBuild(NamedTuple):
    """The settings with which the engine builds an image.

    Attributes:
        client: the engine.
        arguments: values for the Dockerfile's ARG lines.
        transcript: receives the messages.
        no_cache: run every step again.
        offline: run the steps without network.
        target: the stage to build; None: the last.
        labels: labels of the image.
    """

    client: docker.DockerClient
    arguments: Mapping[str, str]
    transcript: Transcript
    no_cache: bool = False
    offline: bool = False
    target: str | None = None
    labels: Mapping[str, str] = {}

    def of_context(self, stream: IO[bytes], dockerfile: str) -> str:
        """Build the context in ``stream`` and return the image's id."""
        transcript = self.transcript
        with engine.calls(self.client, lambda: f"build {transcript.tag} {transcript.step}"):
            try:
                messages = self.client.api.build(
                    fileobj=stream, custom_context=True, dockerfile=dockerfile, buildargs=dict(self.arguments),
                    target=self.target, labels=dict(self.labels), nocache=self.no_cache, rm=True, forcerm=True,
                    decode=True, encoding="identity", network_mode="none" if self.offline else None,
                )  # fmt: skip
                with tqdm(desc=transcript.part, unit="step", leave=False, disable=not terminal.shows_progress()) as bar:
                    for message in messages:
                        transcript.receive(message)
                        if bar.n != transcript.number:
                            bar.total = transcript.steps
                            bar.update(transcript.number - bar.n)
            except APIError as error:
                if error.is_client_error():
                    raise UsageError(f"{transcript.tag}: {dockerfile}: {error.explanation}") from error
                raise
            if not transcript.image:  # the stream may end early without an error
                raise ConnectionError("the engine closed the connection")
        return transcript.image

    def of_definition(self, definition: Definition) -> str:
        """Build the definition's own Dockerfile and return the image's id."""
        with tempfile.TemporaryFile() as stream:
            context.write_context(definition, stream)
            return self.of_context(stream, definition.dockerfile)
