"""The interface of a builder, and what it builds."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import docker

from deployer.connected.ground.locked_folder import BUILD, LockedFolder
from deployer.connected.image import context
from deployer.connected.image.builders import rewritten
from deployer.connected.image.builders.features import Known
from deployer.connected.image.builders.transcript import Transcript
from deployer.connected.image.definition.definition import DOCKERFILE, Definition
from deployer.system import files


class Mounted(NamedTuple):
    """Files that RUN steps can read while they run, and that are not part of the image.

    Attributes:
        settings: the content of files in ``settings.FOLDER``, which each RUN step can read, by name.
        environment: variables of each RUN step.
        secrets: the content of the secrets that the Dockerfile mounts itself, by id.
        ssh: agents and keys that the Dockerfile mounts itself: ``default``, or ``ID=PATH``.
    """

    settings: Mapping[str, bytes] = {}
    environment: Mapping[str, str] = {}
    secrets: Mapping[str, bytes] = {}
    ssh: Sequence[str] = ()


class BuildContext(NamedTuple):
    """A build context.

    Attributes:
        folder: its files.
        name: the name of the Dockerfile, for errors.
        text: the content of the Dockerfile.
        excluded: patterns of paths that are left out, as in ``.dockerignore``.
    """

    folder: Path
    name: str
    text: str
    excluded: Sequence[str] = ()


class Builder(Protocol):
    """A program that makes an image in the engine."""

    @property
    def name(self) -> str:
        """Return the program and its version, for messages."""

    @property
    def known(self) -> Known:
        """Return the releases that know the same parts of the Dockerfile format."""

    def build(self, wanted: "ImageBuild", source: BuildContext, scratch: Path) -> str:
        """Build an image and return its id.

        Args:
            scratch: a private folder, removed at the end.

        Raises:
            JobFailed: a step failed.
            UsageError: the builder cannot read the Dockerfile.
            SpaceError: the engine's disk is full.
            MissingTool: the engine stopped.
        """


class ImageBuild(NamedTuple):
    """The settings with which a builder makes an image.

    Attributes:
        client: the engine.
        builder: the builder.
        arguments: values for the Dockerfile's ARG lines.
        transcript: receives the messages.
        no_cache: run every step again.
        offline: run the steps without network.
        target: the stage to build; None: the last.
        labels: labels of the image.
        mounted: files that steps can read while they run.
        platform: the operating system and architecture of the base: ``linux/arm64``; empty: the engine's.
    """

    client: docker.DockerClient
    builder: Builder
    arguments: Mapping[str, str]
    transcript: Transcript
    no_cache: bool = False
    offline: bool = False
    target: str | None = None
    labels: Mapping[str, str] = {}
    mounted: Mounted = Mounted()
    platform: str = ""

    def of_context(self, contents: Mapping[str, bytes], copied: Mapping[str, Path] = {}) -> str:
        """Build a context with these files and copies, one of them the Dockerfile, and return the image's id."""
        with LockedFolder(BUILD) as scratch:
            folder = Path(scratch, "context")
            for name, data in contents.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            for name, original in copied.items():
                shutil.copyfile(original, folder / name)
            return self._build(BuildContext(folder, DOCKERFILE, contents[DOCKERFILE].decode()), scratch)

    def of_definition(self, definition: Definition) -> str:
        """Build the definition's own Dockerfile and return the image's id."""
        path = definition.dockerfile_path
        with LockedFolder(BUILD) as scratch:
            if path is None:
                (empty := Path(scratch, "context")).mkdir()
                return self._build(BuildContext(empty, definition.dockerfile, context.BASE_ALONE), scratch)
            text, excluded = files.read_text(str(path)), context.excluded(definition)
            return self._build(BuildContext(definition.context_folder, definition.dockerfile, text, excluded), scratch)

    def _build(self, source: BuildContext, scratch: str) -> str:
        text = rewritten.portable(source.text)
        text = rewritten.mounting(text, self.mounted.settings, self.mounted.environment)
        with self.transcript.shown():
            return self.builder.build(self, source._replace(text=text), Path(scratch))
