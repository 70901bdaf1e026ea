"""lint: check a definition before its build, and the image after it."""

import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.ground import engine
from deployer.connected.ground.scratch import Scratch
from deployer.connected.image.builders import choice
from deployer.connected.image.builders.builder import Builder
from deployer.connected.image.definition.definition import Definition
from deployer.connected.image.lint import app, kept, layers, network, refuse_errors, secrets, stages
from deployer.connected.image.lint.app import BuiltImage
from deployer.connected.image.lint.source import DefinitionSource
from deployer.connected.image.wheelhouse import wheelhouse
from deployer.connected.linker.commands import ListedTree
from deployer.connected.rootfs import archive, imagelayers
from deployer.connected.rootfs.entries import FileEntry
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.connected.rootfs.merge import Rootfs
from deployer.connected.rootfs.secrets import in_tree
from deployer.contract.base.errors import DeployerError, MissingTool
from deployer.contract.rules.findings import Finding

#: Rules that need no engine.
_RULES: tuple[Callable[[DefinitionSource], Iterator[Finding]], ...] = (
    stages.frontend, stages.images, stages.user,
    app.relative,
    network.at_run_time, secrets.in_files, secrets.in_variables,
)  # fmt: skip


class Linted(NamedTuple):
    """The result of ``lint``.

    Attributes:
        findings: the findings.
        image: the checked image, empty if it is not built or no engine responds.
    """

    findings: list[Finding]
    image: str


def lint(definition: Definition, accept: Collection[str] = ()) -> Linted:
    """Check a definition with all rules except those in ``accept``."""
    findings = list(before_build(definition))
    image = ""
    builder: Builder | None = None
    if not definition.needs_engine:  # it has no Dockerfile, and its image is a file
        return Linted(kept(findings, accept), image)
    with contextlib.suppress(MissingTool), contextlib.closing(engine.connect()) as client:
        builder = choice.choose(client) if definition.dockerfile_path else None
        if engine.has_image(client, definition.tag):
            image = definition.tag
            with imagelayers.opened(client, image) as opened:
                of_image = [list(layer) for layer in opened]
                source, root = DefinitionSource(definition), _root(of_image)
                tree, config = FlattenedRootfs(root), engine.image_config(client, image)
                findings += layers.leftover(tree, image)
                built = built_image(definition, tree, config)
                findings += [*app.commands_missing(source, built), *app.imports(source, built)]
                findings += secrets.in_image(in_tree(tree), config)
                steps = [str(step.get("CreatedBy")) for step in reversed(engine.history(client, image))]
                findings += secrets.beside(of_image, root, steps)
    findings += for_builder(definition, builder)
    return Linted(kept(findings, accept), image)


def before_build(definition: Definition) -> Iterator[Finding]:
    """Yield the findings of our own rules that need no engine."""
    source = DefinitionSource(definition)
    for rule in _RULES:
        yield from rule(source)


def for_builder(definition: Definition, builder: Builder | None) -> list[Finding]:
    """Return the findings that depend on the builder; None: it is not known."""
    return list(stages.unknown_to(DefinitionSource(definition), builder)) if builder else []


def built_image(definition: Definition, tree: ListedTree, config: Mapping[str, Any]) -> BuiltImage:
    """Return a definition's image for the rules that need it. ``config`` is its configuration."""
    try:
        wheels: Collection[Path] | None = wheelhouse.ready(definition)
    except DeployerError:  # the lock is outdated or wheels are not cached, which `build` reports
        wheels = None
    return BuiltImage(tree, list(config.get("Env") or []), str(config.get("WorkingDir") or "/"), wheels)


def _root(of_image: Iterable[Iterable[FileEntry]]) -> Rootfs:
    root = Rootfs()
    for layer in of_image:
        root.apply(layer)
    return root


def refuse(definition: Definition, accept: Collection[str] = ()) -> None:
    """Raise Refused if one of our own rules finds an error that is not accepted: the build or job would fail."""
    refuse_errors(before_build(definition), accept)


def refuse_imports(definition: Definition, tree: ListedTree, env: Sequence[str], accept: Collection[str] = ()) -> None:
    """Raise Refused if a file of app/ that a job starts imports a module that the image lacks, unless accepted.

    Args:
        definition: the definition.
        tree: the root filesystem of its image.
        env: the image's environment, as ``NAME=VALUE``.
        accept: codes to ignore.
    """
    built = built_image(definition, tree, {"Env": env})
    refuse_errors(app.imports(DefinitionSource(definition), built), accept)


def refuse_built(definition: Definition, image: str, archive_file: Path | None, accept: Collection[str] = ()) -> None:
    """Do the same as ``refuse_imports`` for an image in the engine or in a file."""
    if all(path.suffix != ".py" for path in DefinitionSource(definition).app):
        return
    with Scratch(Path(tempfile.gettempdir())) as scratch:
        if archive_file:
            opened_image = archive.read_image(archive_file, scratch)
            root, config = opened_image.root, opened_image.config
        else:
            with contextlib.closing(engine.connect()) as client, imagelayers.opened(client, image) as opened:
                root, config = _root(opened), engine.image_config(client, image)
        refuse_imports(definition, FlattenedRootfs(root), config.get("Env") or [], accept)
