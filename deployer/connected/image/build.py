"""build: make the image of a definition in the Docker engine."""

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import docker

from deployer.connected.ground import engine, progress
from deployer.connected.image import conda, inputs, interpreter, variants
from deployer.connected.image.bases import alone, base, imported
from deployer.connected.image.builders import choice
from deployer.connected.image.builders.builder import ImageBuild, Mounted
from deployer.connected.image.builders.transcript import Transcript
from deployer.connected.image.definition import dockerfile, offline, settings
from deployer.connected.image.definition.definition import Base, Definition
from deployer.connected.image.last_build import last_record, record_of
from deployer.connected.image.lint import kept, lint, refuse_errors
from deployer.connected.image.variants import HorovodVariant
from deployer.connected.image.wheelhouse import wheelhouse
from deployer.connected.image.wheelhouse.indexes import indexes
from deployer.connected.image.wheelhouse.target import Target
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.system import files

_Result = TypeVar("_Result")
#: Seconds that a failed build waits for the thread of the variants, which may be copying a variant out of its image.
_ENDS_SECONDS = 2
#: Bytes. A shorter secret may be in an image by chance, so it is not searched for.
_SHORTEST_SECRET = 8
_writing = threading.Lock()


class BuildOptions(NamedTuple):
    """Options of ``build``.

    Attributes:
        ca_bundle: a file with CA certificates, instead of the host's.
        pip_conf: a pip.conf, instead of the host's pip settings.
        no_cache: run every step again.
        accept: codes of ``lint`` to ignore.
        apt_sources: a file with deb lines, instead of Debian's mirror.
        mode: what may be downloaded, and whether the lock may change.
        find_links: folders with the user's own wheels.
        families: the MPI families to compile Horovod for; None: all of the definition's.
        builder: one of ``choice.BUILDERS``; None: the first that is at hand.
        secrets: content that the Dockerfile's ``RUN --mount=type=secret`` reads, by id.
        ssh: agents and keys that its ``RUN --mount=type=ssh`` uses: ``default``, or ``ID=PATH``.
    """

    ca_bundle: Path | None = None
    pip_conf: Path | None = None
    no_cache: bool = False
    accept: tuple[str, ...] = ()
    apt_sources: Path | None = None
    mode: wheelhouse.Mode = wheelhouse.Mode()
    find_links: Sequence[Path] = ()
    families: Sequence[str] | None = None
    builder: str | None = None
    secrets: Mapping[str, bytes] = {}
    ssh: Sequence[str] = ()


class BuildResult(NamedTuple):
    """The result of a build.

    Attributes:
        name: the definition's name.
        version: its version.
        image: the image's id; without an engine, the digest of its file.
        base: the name of its base in the engine; without an engine, the file.
        size: bytes, unpacked.
        seconds: the duration.
        tag: the image's name in the engine.
        steps: the number of steps.
        cached: the number of steps from the layer cache.
        log: the path of the log.
        wheels: the number of wheels in the wheelhouse.
        relocked: a new lock was written.
        variants: the Horovod variants, one per MPI family.
        builder: the program that made the image; empty without an engine.
    """

    name: str
    version: str
    image: str
    base: str
    size: int
    seconds: float
    tag: str = ""
    steps: int = 0
    cached: int = 0
    log: str = ""
    wheels: int = 0
    relocked: bool = False
    variants: Sequence[HorovodVariant] = ()
    builder: str = ""

    def record(self) -> json_records.Record:
        """Return the build record, a JSON object."""
        return {**self._asdict(), "variants": [variant.record() for variant in self.variants]}


def build(definition: Definition, options: BuildOptions, say: Callable[[str], None]) -> BuildResult:
    """Build a definition's image and return the build record, which is also written next to the log.

    Args:
        say: called with each line of the log.

    Raises:
        Refused: ``lint`` found an error before the build, or the builder cannot do what the Dockerfile asks for; or the
            finished image has a trace of the build settings and is not tagged.
        JobFailed: a step failed. The message gives the reason from its log.
        MissingTool: no engine was found, or it has stopped; or the wanted builder is not at hand.
        SpaceError: a disk is full.
    """
    if definition.base is None:
        hint = f"pack it as it is: deployer pack {definition.folder} -o FILE"
        raise UsageError(f"{definition.name} contains only data: there is no image to build", hint)
    lint.refuse(definition, options.accept)
    if not definition.needs_engine:
        return _build_alone(definition, definition.base, options, say)
    with alone.engine_or_archive(definition):
        connected = engine.connect()
    with contextlib.closing(connected) as client:
        return _build(client, definition, definition.base, options, say)


def _build_alone(
    definition: Definition, wanted: Base, options: BuildOptions, say: Callable[[str], None]
) -> BuildResult:
    """Make the image file of a definition whose image is only its base."""
    began = time.monotonic()
    host = settings.from_host(options.ca_bundle, options.pip_conf, os.environ, options.apt_sources)
    path = alone.build(wanted, definition.folder, host, say, options.mode.offline)
    size = path.stat().st_size
    with files.errors_named(f"read {path}"), open(path, "rb") as stream, progress.bar("check for traces", size) as bar:
        found = first_trace(iter(lambda: stream.read(files.CHUNK), b""), host.traces(), bar) if wanted.debian else ""
    if found:
        raise Refused(f"{path} contains {found} of this machine", "delete the file and build again")
    digest = f"sha256:{imported.digest_of(path)}"
    seconds = round(time.monotonic() - began, 3)
    return BuildResult(definition.name, definition.version, digest, str(path), size, seconds)


def _build(
    client: docker.DockerClient, definition: Definition, wanted: Base, options: BuildOptions, say: Callable[[str], None]
) -> BuildResult:
    began = time.monotonic()
    wheelhouse.check_early(definition, options.mode)
    builder = choice.choose(client, options.builder)
    say(f"builder: {builder.name}")
    refuse_errors(kept(lint.for_builder(definition, builder), options.accept))
    host = settings.from_host(options.ca_bundle, options.pip_conf, os.environ, options.apt_sources)
    clean = base.ensure(client, wanted, host, say, definition.folder, options.mode.offline)
    machine = str(engine.image_config(client, clean)["Architecture"])
    platform = "" if machine == engine.architecture(client) else f"linux/{machine}"
    receipt = record_of(definition)
    log = receipt.with_suffix(".log")
    if definition.conda_file:
        say_of = Transcript(f"{definition.tag}, conda", str(log), say, part="conda")
        its_build = ImageBuild(client, builder, {"BASE": clean}, say_of, options.no_cache, platform=platform)
        clean = conda.add(its_build, clean, definition.conda_file, host.proxies)
    arguments = {**definition.build_args, **_bases(definition, clean, machine), **host.proxies}
    if options.mode.offline and definition.dockerfile_path is not None:
        offline.check_dockerfile(client, definition.dockerfile_path, arguments)
    with files.errors_named(f"write {log}"):
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w", encoding="utf-8") as stream, ExitStack() as beside:

            def write(line: str) -> None:
                with _writing:  # variants print from another thread
                    stream.write(line + "\n")
                    stream.flush()  # for `tail -f`
                    say(line)

            advice = offline.HINT if options.mode.offline else ""
            transcript = Transcript(definition.tag, str(log), write, advice)
            labels = {inputs.LABEL: inputs.label(client, definition, clean)}
            mounted = Mounted(host.contents(), host.environment(), options.secrets, options.ssh)
            own = ImageBuild(
                client, builder, arguments, transcript, options.no_cache, options.mode.offline,
                labels=labels, mounted=mounted, platform=platform,
            )  # fmt: skip
            image, compiled = _image_and_variants(own, definition, options.families, host.proxies, beside)
            config = engine.image_config(client, image)
            last = last_record(definition)
            if last.get("image") != image:
                last = {}  # that build made or checked something else
                _check(client, config, _traces(host, options.secrets))
            horovod = compiled()
    target, house = None, wheelhouse.Wheelhouse()
    if definition.python is not None:
        known = json_records.Fields(last, str(receipt)).maybe_child("target")
        target = Target.read(known) if known else interpreter.ask(client, image, definition.tag)
        with indexes(host, options.find_links) as sources:
            house = wheelhouse.prepare(definition, target, sources, options.mode, say)
    engine.name(client, image, definition.tag)
    built = BuildResult(
        definition.name, definition.version, image, clean, int(config["Size"]), round(time.monotonic() - began, 3),
        definition.tag, transcript.steps, transcript.cached, str(log), len(house.wheels), house.relocked, horovod,
        builder.name,
    )  # fmt: skip
    known_next_time = {
        "target": target.record() if target else None, "base_digest": engine.image_config(client, clean)["Layers"][0],
    }  # fmt: skip
    files.write_text(str(receipt), json_records.pretty({**built.record(), **known_next_time}))
    return built


def _bases(definition: Definition, clean: str, target: str) -> dict[str, str]:
    """Return the arguments with the base. A Dockerfile whose ``ARG BASE`` has a default keeps its own image.

    Args:
        target: the architecture of the base. Older BuildKits leave ``TARGETARCH`` empty if an ARG before the first FROM
            declares it.
    """
    arguments = {"BASE": clean, "BUILD_BASE": clean}
    if definition.dockerfile_path is None:
        return arguments
    parsed = dockerfile.parse(files.read_text(str(definition.dockerfile_path)))
    declared = parsed.defaults()
    automatic = {"TARGETARCH": target, "TARGETOS": "linux", "TARGETPLATFORM": f"linux/{target}"}
    arguments.update({name: value for name, value in automatic.items() if name in declared})
    return {name: value for name, value in arguments.items() if not declared.get(name)}


def _image_and_variants(
    own: ImageBuild,
    definition: Definition,
    families: Sequence[str] | None,
    proxies: Mapping[str, str],
    beside: ExitStack,
) -> tuple[str, Callable[[], list[HorovodVariant]]]:
    """Build the definition's image and, if it has Horovod, its variants. Variants in the cache are not compiled again.

    The variants need only one stage of the image. So that stage is built first, and the other stages while the variants
    are compiled.

    Args:
        own: the build of the definition's image.
        families: the MPI families to compile Horovod for; None: all of the definition's.
        proxies: arguments of the images in which variants are compiled.
        beside: ends the compilation if the build of the image fails, because nobody waits for it any longer.

    Returns:
        The image's id, and a function that waits for the variants.
    """
    if definition.horovod is None:
        return own.of_definition(definition), list
    name = definition.horovod.stage
    compiled = functools.partial(_variants, own._replace(arguments=proxies, labels={}), definition, families)
    of_stage = own._replace(transcript=own.transcript.for_part(f"stage {name}"), target=name, labels={})
    if own.no_cache:  # run each step only once: the stage reuses the steps of the image's build
        image = own.of_definition(definition)
        stage = of_stage._replace(no_cache=False).of_definition(definition)
        return image, lambda: compiled(stage)
    stage = of_stage.of_definition(definition)
    own.transcript.continues(of_stage.transcript)
    future = beside.enter_context(_meanwhile(functools.partial(compiled, stage)))
    return own.of_definition(definition), future.result


class _Unwanted(DeployerError):
    """The build has failed, so its variants are no longer needed."""


@contextlib.contextmanager
def _meanwhile(work: Callable[[Callable[[], None]], _Result]) -> "Iterator[Future[_Result]]":
    """Run ``work`` in a thread during a block, and yield its future result.

    ``work`` receives a function that it must call often. If the block ends first, the next call raises _Unwanted, which
    ends the work. The block waits only a moment for this, because a compiler may print nothing for minutes. If the
    process ends earlier, the engine stops the thread's build.
    """
    result: Future[_Result] = Future()
    ended = threading.Event()

    def go_on() -> None:
        if ended.is_set():
            raise _Unwanted("the build has failed")

    def run() -> None:
        try:
            result.set_result(work(go_on))
        except BaseException as error:  # noqa: BLE001 (raised again by the caller of result())
            result.set_exception(error)

    thread = threading.Thread(target=run, name="variants", daemon=True)
    thread.start()
    try:
        yield result
    finally:
        ended.set()
        thread.join(_ENDS_SECONDS)


def _variants(
    own: ImageBuild,
    definition: Definition,
    families: Sequence[str] | None,
    stage: str,
    go_on: Callable[[], None] = lambda: None,
) -> list[HorovodVariant]:
    """Return the definition's variants of Horovod, compiled in its stage, with a separate connection to the engine.

    Args:
        own: how to build a recipe.
        go_on: called repeatedly; raises an error once the variants are no longer needed.
    """

    def say(line: str) -> None:
        go_on()
        own.transcript.say(line)

    with contextlib.closing(engine.connect()) as client:

        def compiled(recipe: Mapping[str, bytes], what: str, words: Mapping[str, str]) -> str:
            part = own.transcript.for_part(what, say)
            recipe_build = own._replace(client=client, arguments={**own.arguments, **words}, transcript=part)
            image = recipe_build.of_context(recipe)
            go_on()
            return image

        return variants.ensure(client, definition, stage, compiled, say, families)


# ------------------------------------------------------------------------------------------------ no trace


def _traces(host: settings.BuildSettings, secrets: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the bytes that an image must not contain, by their description. Empty if there is nothing to leave one."""
    texts = {f"the secret {name}": data.strip() for name, data in secrets.items()}
    secret = {name: data for name, data in texts.items() if len(data) >= _SHORTEST_SECRET}
    return {**host.traces(), **secret} if secrets or host.proxies or host.contents() else {}


def _check(client: docker.DockerClient, config: Mapping[str, Any], traces: Mapping[str, bytes]) -> None:
    """Raise Refused if an image has a trace of the build settings in its configuration, history or files."""
    if not traces:
        return
    image = str(config["Id"])
    with engine.errors_named(client, f"read the history of {image}"):
        written = json.dumps([config, engine.history(client, image)]).encode()
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
    """Return the name of the first of ``traces`` that a stream contains, or an empty text."""
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
    hint = "do not copy the build's settings; use the network in another stage, and COPY --from it what the image needs"
    raise Refused(f"the image would carry this machine's build settings to the site: {reason}", hint)
