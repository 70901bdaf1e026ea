"""lint: check a definition before its build, and the image after it."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from deployer.connected.ground import engine
from deployer.connected.image.builders import choice
from deployer.connected.image.builders.builder import Builder
from deployer.connected.image.definition.definition import Definition
from deployer.connected.image.lint import commands, kept, refuse_errors, secrets, stages
from deployer.connected.image.lint.source import DefinitionSource
from deployer.connected.rootfs import imagelayers
from deployer.connected.rootfs.entries import FileEntry
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.connected.rootfs.merge import Rootfs
from deployer.connected.rootfs.secrets import in_tree
from deployer.contract.base.errors import MissingTool
from deployer.contract.rules.findings import Finding

#: Rules that need no engine.
_RULES: tuple[Callable[[DefinitionSource], Iterator[Finding]], ...] = (
    stages.frontend, stages.images, stages.user,
    commands.relative, commands.at_run_time, secrets.in_files, secrets.in_variables,
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
                root = _root(of_image)
                tree, config = FlattenedRootfs(root), engine.image_config(client, image)
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


def _root(of_image: Iterable[Iterable[FileEntry]]) -> Rootfs:
    root = Rootfs()
    for layer in of_image:
        root.apply(layer)
    return root


def refuse(definition: Definition, accept: Collection[str] = ()) -> None:
    """Raise Refused if one of our own rules finds an error that is not accepted: the build or job would fail."""
    refuse_errors(before_build(definition), accept)
