"""The classic builder of the Docker engine, for engines without BuildKit."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from docker.errors import APIError

from deployer.connected.ground import engine
from deployer.connected.image import context
from deployer.connected.image.builders.builder import BuildContext, ImageBuild
from deployer.connected.image.builders.features import Known
from deployer.connected.image.builders.transcript import Transcript, plain
from deployer.contract.base.errors import UsageError

_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)$")
#: Lines of the engine itself between the lines of a step.
_REMARK = re.compile(r"^( ---> |Removing intermediate container )")


class Classic(NamedTuple):
    """The engine's own builder, used by its API."""

    name: str = "the engine's classic builder"
    known: Known = Known()
    mounts: bool = False

    def build(self, wanted: ImageBuild, source: BuildContext, scratch: Path) -> str:
        """Build an image and return its id. Raises the errors of ``Builder.build``."""
        transcript = wanted.transcript
        messages = Messages(transcript)
        with (
            engine.calls(wanted.client, lambda: f"build {transcript.tag} {transcript.step}"),
            open(scratch / "context.tar", "w+b") as stream,
        ):
            context.write(stream, source.folder, source.excluded, source.name, source.text)
            try:
                answer = wanted.client.api.build(
                    fileobj=stream, custom_context=True, dockerfile=source.name, buildargs=dict(wanted.arguments),
                    target=wanted.target, labels=dict(wanted.labels), nocache=wanted.no_cache, rm=True, forcerm=True,
                    decode=True, encoding="identity", network_mode="none" if wanted.offline else None,
                    platform=wanted.platform or None,
                )  # fmt: skip
                for message in answer:
                    messages.receive(message)
            except APIError as error:
                if error.is_client_error():
                    raise UsageError(f"{transcript.tag}: {source.name}: {error.explanation}") from error
                raise
            if not messages.image:  # the stream may end early without an error
                raise ConnectionError("the engine closed the connection")
        return messages.image


class Messages:
    """Reads the engine's messages into a transcript, and keeps the image's id."""

    def __init__(self, transcript: Transcript) -> None:
        self.image = ""
        self._transcript = transcript
        self._step = ""
        self._partial = ""

    def receive(self, message: Mapping[str, Any]) -> None:
        """Read one message. Raises JobFailed or SpaceError if it reports a failed build."""
        if "stream" in message:
            *lines, self._partial = (self._partial + str(message["stream"])).split("\n")
            for line in lines:
                self._line(plain(line))
        if "aux" in message:
            self.image = str(message["aux"].get("ID", self.image))
        if "error" in message:
            if self._partial:
                self._line(self._partial)
            self._transcript.say(str(message["error"]))
            self._transcript.failed(str(message["error"]), (message.get("errorDetail") or {}).get("code"))

    def _line(self, line: str) -> None:
        if not line:
            return
        self._transcript.say(line)
        step = _STEP.match(line)
        if step:
            self._step = f"{step[1]} {step[3]}"
            self._transcript.begin(self._step, f"{step[1]}/{step[2]}, {step[3]}", int(step[1]), int(step[2]))
        elif line == " ---> Using cache":
            self._transcript.reuse(self._step)
        elif not _REMARK.match(line):
            self._transcript.output(line)
