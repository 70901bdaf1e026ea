"""build: a definition becomes an image in the Docker engine."""

import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import docker
from docker.errors import APIError
from tqdm import tqdm

from deployer.connected.build import context, inputs, interpreter, offline, settings, variants
from deployer.connected.build.bases import alone, base, imported
from deployer.connected.build.definition import Base, Definition
from deployer.connected.build.lint import lint
from deployer.connected.build.variants import HorovodVariant
from deployer.connected.build.wheelhouse import wheelhouse
from deployer.connected.build.wheelhouse.indexes import indexes
from deployer.connected.build.wheelhouse.target import Target
from deployer.connected.ground import engine, progress, xdg
from deployer.contract import json_records
from deployer.contract.errors import JobFailed, Refused, SpaceError, UsageError
from deployer.system import files

#: How much of a failing step's log is searched for its reason, in lines, and how much of a line is shown.
_TAIL = 400
_SHOWN = 300
_LAST = 8  # lines in which a full disk is looked for
_SHOWN_STEP = 100

_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: The engine's own remarks between the lines of a step.
_REMARK = re.compile(r"^( ---> |Removing intermediate container )")


class BuildOptions(NamedTuple):
    """How to build: files that stand in for the host's own settings, whether to leave the layer cache alone, which
    codes of ``lint`` to pass over, what may be fetched and locked anew, and folders with wheels of the stager's own.
    """

    ca_bundle: Path | None = None
    pip_conf: Path | None = None
    no_cache: bool = False
    accept: tuple[str, ...] = ()
    apt_sources: Path | None = None
    mode: wheelhouse.Mode = wheelhouse.Mode()
    find_links: Sequence[Path] = ()

    @property
    def offline(self) -> bool:
        """Return whether nothing may be fetched."""
        return self.mode.offline


class BuildResult(NamedTuple):
    """What a build made. ``size`` in bytes, unpacked; ``cached`` of ``steps`` came from the layer cache; ``wheels`` is
    the number of those in the wheelhouse, ``relocked`` whether its lock is a new one; ``variants`` are Horovod's, one
    for each MPI family, where the definition has Horovod."""

    name: str
    version: str
    tag: str
    image: str
    base: str
    size: int
    steps: int
    cached: int
    seconds: float
    log: str
    wheels: int = 0
    relocked: bool = False
    variants: Sequence[HorovodVariant] = ()

    def record(self) -> json_records.Record:
        """Return the build record, a JSON object."""
        return {**self._asdict(), "variants": [variant.record() for variant in self.variants]}


def build(definition: Definition, options: BuildOptions, say: Callable[[str], None]) -> BuildResult:
    """Build a definition's image and return its record, which is also written beside the log.

    ``say`` gets each line of the log as it comes. Raises JobFailed when a step fails (with the end of its log),
    MissingTool without an engine or when it goes away, SpaceError, and Refused when the finished image shows a trace
    of the build settings; it has no name then. Refused too, before anything is done, for what a rule of ``lint`` finds.
    """
    if definition.base is None:
        hint = f"pack it as it is: deployer pack {definition.folder} -o FILE"
        raise UsageError(f"{definition.name} contains only data: there is no image to build", hint)
    lint.refuse(definition, options.accept)
    if not definition.needs_engine:
        return _build_alone(definition, definition.base, options, say)
    with contextlib.closing(engine.connect()) as client:
        return _build(client, definition, definition.base, options, say)


def _build_alone(
    definition: Definition, wanted: Base, options: BuildOptions, say: Callable[[str], None]
) -> BuildResult:
    """Make the file that is the image of a definition which is its base alone."""
    began = time.monotonic()
    host = settings.from_host(options.ca_bundle, options.pip_conf, os.environ, options.apt_sources)
    path = alone.build(wanted, definition.folder, host, say, options.offline)
    size = path.stat().st_size
    with files.errors_named(f"read {path}"), open(path, "rb") as stream, progress.bar("check for traces", size) as bar:
        found = first_trace(iter(lambda: stream.read(files.CHUNK), b""), host.traces(), bar) if wanted.debian else ""
    if found:
        raise Refused(f"{path} contains {found} of this machine", "delete the file and build again")
    digest = f"sha256:{imported.digest_of(path)}"
    seconds = round(time.monotonic() - began, 3)
    return BuildResult(definition.name, definition.version, "", digest, str(path), size, 0, 0, seconds, "")


def _build(
    client: docker.DockerClient, definition: Definition, wanted: Base, options: BuildOptions, say: Callable[[str], None]
) -> BuildResult:
    began = time.monotonic()
    wheelhouse.check_early(definition, options.mode)
    host = settings.from_host(options.ca_bundle, options.pip_conf, os.environ, options.apt_sources)
    clean = base.ensure(client, wanted, host, say, definition.folder, options.offline)
    with_settings = settings.build_base(client, clean, host)
    if with_settings != clean:  # said before minutes of building, not after
        for item in lint.named(definition, "network.base", options.accept):
            say(f"base: {item.subject}: {item.message}; {item.remedy}")
    arguments = {"BASE": clean, "BUILD_BASE": with_settings, **host.proxies}
    if options.offline and definition.dockerfile_path is not None:
        offline.check_dockerfile(client, definition.dockerfile_path, arguments)
    receipt = record_of(definition)
    log = receipt.with_suffix(".log")
    with files.errors_named(f"write {log}"):
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w", encoding="utf-8") as stream:
            transcript = Transcript(
                definition.tag, str(log), lambda line: _both(stream, say, line), offline.HINT if options.offline else ""
            )
            labels = {inputs.LABEL: inputs.label(client, definition, clean)}
            own = _ImageBuild(client, arguments, options, transcript, labels=labels)
            image = own.of_definition(definition)
            made = _variants(own, definition, host.proxies)
    config = engine.image_config(client, image)
    last = _last(receipt, image, with_settings)
    if last is None:
        _check(client, config, clean, with_settings, host)
    target, house = _wheelhouse(client, definition, image, last, host, options, say)
    repository, _, version = definition.tag.rpartition(":")
    with engine.errors_named(client, f"name {definition.tag}"):
        client.api.tag(image, repository, version, force=True)
    built = BuildResult(
        definition.name, definition.version, definition.tag, image, clean, int(config["Size"]),
        transcript.steps, transcript.cached, round(time.monotonic() - began, 3), str(log), len(house.wheels),
        house.relocked, made,
    )  # fmt: skip
    known = {"build_base": with_settings, "target": target.record() if target else None}
    files.write_text(str(receipt), json_records.pretty({**built.record(), **known}))
    return built


def _wheelhouse(
    client: docker.DockerClient,
    definition: Definition,
    image: str,
    last: json_records.Fields | None,
    host: settings.BuildSettings,
    options: BuildOptions,
    say: Callable[[str], None],
) -> tuple[Target | None, wheelhouse.Wheelhouse]:
    """Return the Python of the image and its wheelhouse; ``last`` is the record of a build of this very image."""
    if definition.python is None:
        return None, wheelhouse.Wheelhouse()
    known = last.maybe_child("target") if last else None
    target = Target.read(known) if known else interpreter.ask(client, image, definition.tag)
    with indexes(host, options.find_links) as sources:
        return target, wheelhouse.prepare(definition, target, sources, options.mode, say)


class LastBuild(NamedTuple):
    """What the last build of a definition made: the image, by id, and wheels of Horovod by MPI family."""

    image: str
    variants: dict[str, Path]


def last_build(definition: Definition) -> LastBuild:
    """Return what the last build here made of a definition, whatever its tag means by now; its tag if nothing is known.

    Whether that is the definition as it is now, ``inputs.current`` finds out. Raises Refused if it has Horovod and was
    not built here for all its MPI families, or the cache has lost a variant.
    """
    again = f"build it: deployer build {definition.folder}"
    try:
        last = json.loads(record_of(definition).read_bytes())
        made = LastBuild(str(last["image"]), {item["abi"]: Path(item["wheel"]) for item in last["variants"]})
    except (OSError, ValueError, KeyError, TypeError) as error:
        if definition.horovod is None:
            return LastBuild(definition.tag, {})
        raise Refused(f"{definition.tag} was not built here with its variants of Horovod", again) from error
    wanted = (definition.families or []) if definition.horovod else []
    missing = [abi for abi in wanted if abi not in made.variants or not made.variants[abi].is_file()]
    if missing:
        raise Refused(f"{definition.tag} has no Horovod for {', '.join(missing)}", again)
    return LastBuild(made.image, {abi: made.variants[abi] for abi in wanted})


def record_of(definition: Definition) -> Path:
    """Return where the record of a definition's last build is; its log is beside it."""
    return records_folder() / f"{definition.name}-{definition.version}.json"


def records_folder() -> Path:
    """Return where build records and logs are kept."""
    return xdg.state_folder("builds")


# ------------------------------------------------------------------------------------------------ the engine's build


class Transcript:
    """Reads the engine's messages: follows the steps, keeps the end of the current one's log, finds the image.

    ``say`` gets every line, without colours; ``advice`` goes into the hint of a step that fails.
    """

    def __init__(self, tag: str, log: str, say: Callable[[str], None], advice: str = "") -> None:
        self.tag = tag
        self.log = log
        self.step = "before its first step"
        self.number = self.steps = self.cached = 0
        self.image = ""
        self.say = say
        self._advice = advice
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._partial = ""

    def for_part(self, what: str) -> "Transcript":
        """Return one for another build that belongs to this, in the same log."""
        return Transcript(f"{self.tag}, {what}", self.log, self.say, self._advice)

    def read(self, message: Mapping[str, Any]) -> None:
        """Take one message. Raises JobFailed or SpaceError when it says that the build failed."""
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
            self.cached += 1
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


#: Lines that name the reason of a failure, in the words of apt, pip, compilers, CMake, Python, git, curl and shells.
_REASON = re.compile(
    r"^\s*(E|ERROR|Error|error|FATAL|fatal|fatal error|curl|wget|\w*(Error|Exception)):\s"
    r"|:\s(fatal )?error:\s|^CMake Error|: (command )?not found\b|cannot find -l|undefined reference to"
    r"|No such file or directory|Permission denied|\bERROR[: ]"
)
#: ... and that only pass a failure on: of several reasons they are not the one.
_PASSED_ON = re.compile(
    r"^(make(\[\d+\])?|ninja): |error: subprocess-exited-with-error|^\s*(note|hint): |metadata-generation-failed"
    r"|Failed to build installable wheels|ERROR: Failed building wheel|compilation terminated"
)


def reason(lines: Sequence[str]) -> str:
    """Return the line of a failed step's log that says why it failed, the last such, else its last line."""
    said = [line.strip() for line in lines if line.strip()]
    for wanted in (lambda line: _REASON.search(line) and not _PASSED_ON.search(line), _REASON.search, bool):
        for line in reversed(said):
            if wanted(line):
                return line
    return ""


def _cut(text: str, size: int = _SHOWN) -> str:
    return text if len(text) <= size else text[: size - 4] + " ..."


class _ImageBuild(NamedTuple):
    """How the engine builds an image for a definition.

    Attributes:
        client: the engine.
        arguments: values for the Dockerfile's ARG lines.
        options: what the user chose.
        transcript: where the messages go.
        target: the stage to build; None for the last.
        labels: labels of the image.
    """

    client: docker.DockerClient
    arguments: Mapping[str, str]
    options: BuildOptions
    transcript: Transcript
    target: str | None = None
    labels: Mapping[str, str] = {}

    def of_context(self, stream: IO[bytes], dockerfile: str) -> str:
        """Build the context in ``stream`` and return the image's id."""
        transcript = self.transcript
        with engine.calls(self.client, lambda: f"build {transcript.tag} {transcript.step}"):
            try:
                messages = self.client.api.build(
                    fileobj=stream, custom_context=True, dockerfile=dockerfile, buildargs=dict(self.arguments),
                    target=self.target, labels=dict(self.labels), nocache=self.options.no_cache, rm=True, forcerm=True,
                    decode=True, encoding="identity", network_mode="none" if self.options.offline else None,
                )  # fmt: skip
                _follow(messages, transcript)
            except APIError as error:
                if error.is_client_error():
                    raise UsageError(f"{transcript.tag}: {dockerfile}: {error.explanation}") from error
                raise
            if not transcript.image:  # the stream may also just end
                raise ConnectionError("the engine closed the connection")
        return transcript.image

    def of_definition(self, definition: Definition) -> str:
        """Build the definition's own Dockerfile and return the image's id."""
        with tempfile.TemporaryFile() as stream:
            context.write_context(definition, stream)
            return self.of_context(stream, definition.dockerfile)


def _variants(own: _ImageBuild, definition: Definition, proxies: Mapping[str, str]) -> list[HorovodVariant]:
    """Return the definition's variants of Horovod; those that are not in the cache are compiled in its stage.

    Args:
        own: the build of the definition's image.
        proxies: arguments of the images in which variants are compiled.
    """
    if definition.horovod is None:
        return []
    name, say = definition.horovod.stage, own.transcript.say
    again = own.options._replace(no_cache=False)  # its layers were just made
    of_stage = own._replace(options=again, transcript=own.transcript.for_part(f"stage {name}"), target=name, labels={})
    stage = of_stage.of_definition(definition)

    def compiled(recipe: IO[bytes], what: str, words: Mapping[str, str]) -> str:
        part = _ImageBuild(own.client, {**proxies, **words}, own.options, own.transcript.for_part(what))
        return part.of_context(recipe, "Dockerfile")

    return variants.ensure(own.client, definition, stage, compiled, say)


def _follow(messages: Iterable[Mapping[str, Any]], transcript: Transcript) -> None:
    """Read all messages, with a bar of steps where somebody looks."""
    with tqdm(desc="build", unit="step", leave=False, disable=not sys.stderr.isatty()) as shown:
        for message in messages:
            transcript.read(message)
            if shown.n != transcript.number:
                shown.total = transcript.steps
                shown.update(transcript.number - shown.n)


def _both(stream: IO[str], say: Callable[[str], None], line: str) -> None:
    stream.write(line + "\n")
    stream.flush()  # so that `tail -f` follows
    say(line)


# ------------------------------------------------------------------------------------------------ no trace


def _last(receipt: Path, image: str, with_settings: str) -> json_records.Fields | None:
    """Return the record of the last build where it made this very image with these very settings: it was checked."""
    try:
        last = json.loads(receipt.read_bytes())
    except (OSError, ValueError):
        return None
    if isinstance(last, dict) and (last.get("image"), last.get("build_base")) == (image, with_settings):
        return json_records.Fields(last, str(receipt))
    return None


def _check(
    client: docker.DockerClient, config: Mapping[str, Any], clean: str, with_settings: str, host: settings.BuildSettings
) -> None:
    """Refuse an image that shows a trace of the build settings: in its layers, its configuration, history or files."""
    if with_settings == clean and not host.proxies:
        return
    image = str(config["Id"])
    of_base, of_build_base = (set(engine.image_config(client, tag)["Layers"]) for tag in (clean, with_settings))
    if (of_build_base - of_base) & set(config["Layers"]):
        _refuse("it is made from BUILD_BASE")
    with engine.errors_named(client, f"read the history of {image}"):
        written = json.dumps([config, engine.history(client, image)]).encode()
    traces = host.traces()
    for name, needle in traces.items():
        if needle in written:
            _refuse(f"its configuration or history shows {name}")
    with progress.bar("check for traces", int(config["Size"])) as advance:
        found = first_trace(engine.rootfs_chunks(client, image), traces, advance)
    if found:
        _refuse(f"one of its files contains {found}")


def first_trace(
    chunks: Iterable[bytes], traces: Mapping[str, bytes], progress: Callable[[int], None] = lambda _: None
) -> str:
    """Return the name of the first of ``traces`` that the pieces of a stream hold, or nothing."""
    overlap = max(map(len, traces.values())) - 1
    kept = b""
    for chunk in chunks:
        window = kept + chunk
        for name, needle in traces.items():
            if needle in window:
                return name
        kept = window[-overlap:]
        progress(len(chunk))
    return ""


def _refuse(reason: str) -> None:
    raise Refused(
        f"the image would carry this machine's build settings to the site: {reason}",
        "use the network in a stage FROM ${BUILD_BASE}; start the last FROM ${BASE} and COPY --from what it needs",
    )
