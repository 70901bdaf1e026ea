"""lint: what is wrong with a definition before, and what its image wastes after it was built."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.build.definition import Definition
from deployer.connected.build.lint import app, hadolint, layers, network, packages, secrets, stages
from deployer.connected.build.lint import image as image_rules
from deployer.connected.build.lint.image import BuiltImage
from deployer.connected.build.lint.source import DefinitionSource
from deployer.connected.build.wheelhouse import wheelhouse
from deployer.connected.ground import engine
from deployer.connected.rootfs import imagelayers
from deployer.connected.rootfs.entries import FileEntry
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.connected.rootfs.merge import Rootfs
from deployer.contract.errors import DeployerError, MissingTool, Refused
from deployer.contract.findings import Finding, errors

#: All that can be seen without an engine.
_LOOKS: tuple[Callable[[DefinitionSource], Iterator[Finding]], ...] = (
    stages.frontend, stages.images, stages.user, stages.late_removals, stages.build_settings,
    packages.unpinned, packages.unhashed, packages.itex, app.relative,
    network.at_run_time, secrets.in_files, secrets.in_variables,
)  # fmt: skip


#: What can be seen in the image, once it is built.
_LOOKS_AT_IMAGE: tuple[Callable[[DefinitionSource, BuiltImage], Iterator[Finding]], ...] = (
    image_rules.commands_missing,
    app.imports,
)


class Linted(NamedTuple):
    """The findings, and the image whose layers were looked at: empty when it is not built, or no engine answers."""

    findings: list[Finding]
    image: str


def lint(definition: Definition, accept: Collection[str] = ()) -> Linted:
    """Look at a definition with all rules; ``accept`` are codes to pass over. Raises MissingTool without hadolint."""
    found = list(_own(definition))
    if definition.dockerfile_path is not None:
        found += hadolint.findings(definition.dockerfile_path)
    image = ""
    with contextlib.suppress(MissingTool), contextlib.closing(engine.connect()) as client:
        if engine.has_image(client, definition.tag):
            image = definition.tag
            with imagelayers.opened(client, image) as read:
                of_image = [list(layer) for layer in read]
                found += layers.wasted(map(iter, of_image), image)
                found += _of_image(definition, _root(of_image), engine.image_config(client, image))
    return Linted([item for item in found if item.code not in accept], image)


def refuse(definition: Definition, accept: Collection[str] = ()) -> None:
    """Raise Refused when a rule of ours finds an error that is not accepted: the build or the job would fail."""
    refused(errors([item for item in _own(definition) if item.code not in accept]))


def named(definition: Definition, code: str, accept: Collection[str] = ()) -> list[Finding]:
    """Return the findings of one rule of ours, none if its code is accepted."""
    return [item for item in _own(definition) if item.code == code and code not in accept]


def refused(found: list[Finding]) -> None:
    """Raise Refused for findings, if any: in one line, or each in a line of its own."""
    if len(found) == 1:
        item = found[0]
        raise Refused(f"{item.subject}: {item.code}: {item.message}", item.remedy)
    if found:
        lines = [f"{item.subject}: {item.code}: {item.message}" for item in found]
        raise Refused(f"{len(found)} errors in the definition", "docs/lint.md has a section for each code", lines)


def _root(of_image: list[list[FileEntry]]) -> Rootfs:
    root = Rootfs()
    for layer in of_image:
        root.apply(layer)
    return root


def _of_image(definition: Definition, root: Rootfs, config: dict[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with a definition's jobs and training code in the image that was built from it."""
    try:
        wheels: Collection[Path] | None = wheelhouse.ready(definition)
    except DeployerError:  # of another lock, or not in the cache: `build` says so
        wheels = None
    built = BuiltImage(
        FlattenedRootfs(root), list(config.get("Env") or []), str(config.get("WorkingDir") or "/"), wheels
    )
    source = DefinitionSource(definition)
    for look in _LOOKS_AT_IMAGE:
        yield from look(source, built)


def _own(definition: Definition) -> Iterator[Finding]:
    source = DefinitionSource(definition)
    for look in _LOOKS:
        yield from look(source)
