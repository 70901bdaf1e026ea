"""lint: check a definition before its build, and the image after it."""

import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.ground import engine
from deployer.connected.ground.scratch import Scratch
from deployer.connected.image.definition.definition import Definition
from deployer.connected.image.lint import app, hadolint, layers, network, packages, secrets, stages
from deployer.connected.image.lint import image as image_rules
from deployer.connected.image.lint.image import BuiltImage
from deployer.connected.image.lint.source import DefinitionSource
from deployer.connected.image.wheelhouse import wheelhouse
from deployer.connected.linker.commands import ListedTree
from deployer.connected.rootfs import archive, imagelayers
from deployer.connected.rootfs.entries import FileEntry
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.connected.rootfs.merge import Rootfs
from deployer.contract.base.errors import DeployerError, MissingTool, Refused
from deployer.contract.base.text import counted
from deployer.contract.rules.findings import Finding, errors

#: Rules that need no engine.
_LOOKS: tuple[Callable[[DefinitionSource], Iterator[Finding]], ...] = (
    stages.frontend, stages.images, stages.user, stages.late_removals, stages.build_settings,
    packages.unpinned, packages.unhashed, packages.itex, app.relative,
    network.at_run_time, secrets.in_files, secrets.in_variables,
)  # fmt: skip


#: Rules that need the built image.
_LOOKS_AT_IMAGE: tuple[Callable[[DefinitionSource, BuiltImage], Iterator[Finding]], ...] = (
    image_rules.commands_missing,
    app.imports,
)


class Linted(NamedTuple):
    """The result of ``lint``.

    Attributes:
        findings: the findings.
        image: the checked image, empty if it is not built or no engine responds.
        unchecked: why hadolint's rules were not checked, and the remedy; empty: they were checked.
    """

    findings: list[Finding]
    image: str
    unchecked: str = ""


def lint(definition: Definition, accept: Collection[str] = ()) -> Linted:
    """Check a definition with all rules except those in ``accept``."""
    found = list(_own(definition))
    image = unchecked = ""
    if definition.dockerfile_path is not None:
        try:
            found += hadolint.findings(definition.dockerfile_path)
        except MissingTool as error:  # hadolint is optional, and none of its rules stops a build
            unchecked = f"{error.message}; {error.hint}"
    with contextlib.suppress(MissingTool), contextlib.closing(engine.connect()) as client:
        if engine.has_image(client, definition.tag):
            image = definition.tag
            with imagelayers.opened(client, image) as read:
                of_image = [list(layer) for layer in read]
                found += layers.wasted(map(iter, of_image), image)
                config = engine.image_config(client, image)
                found += _of_image(definition, _built(definition, FlattenedRootfs(_root(of_image)), config))
    return Linted([item for item in found if item.code not in accept], image, unchecked)


def refuse(definition: Definition, accept: Collection[str] = ()) -> None:
    """Raise Refused if one of our own rules finds an error that is not accepted: the build or job would fail."""
    refused(errors([item for item in _own(definition) if item.code not in accept]))


def named(definition: Definition, code: str, accept: Collection[str] = ()) -> list[Finding]:
    """Return the findings of one of our own rules; empty if its code is accepted."""
    return [item for item in _own(definition) if item.code == code and code not in accept]


def refused(found: list[Finding]) -> None:
    """Raise Refused if there are findings. Several findings are listed one per line."""
    if len(found) == 1:
        item = found[0]
        raise Refused(f"{item.subject}: {item.code}: {item.message}", item.remedy)
    if found:
        lines = [f"{item.subject}: {item.code}: {item.message}" for item in found]
        raise Refused(
            f"{counted(len(found), 'error')} in the definition",
            "`deployer explain CODE` has a page for each code",
            lines,
        )


def _root(of_image: list[list[FileEntry]]) -> Rootfs:
    root = Rootfs()
    for layer in of_image:
        root.apply(layer)
    return root


def refuse_imports(definition: Definition, tree: ListedTree, env: Sequence[str], accept: Collection[str] = ()) -> None:
    """Raise Refused if a file of app/ that a job starts imports a module that the image lacks, unless accepted.

    Args:
        definition: the definition.
        tree: the root filesystem of its image.
        env: the image's environment, as ``NAME=VALUE``.
        accept: codes to ignore.
    """
    built = _built(definition, tree, {"Env": env})
    found = app.imports(DefinitionSource(definition), built)
    refused(errors([item for item in found if item.code not in accept]))


def refuse_built(definition: Definition, image: str, archive_file: Path | None, accept: Collection[str] = ()) -> None:
    """Do the same as ``refuse_imports`` for an image in the engine or in a file."""
    if all(path.suffix != ".py" for path in DefinitionSource(definition).app):
        return
    with Scratch(Path(tempfile.gettempdir())) as scratch:
        if archive_file:
            read = archive.read(archive_file, scratch)
            tree, env = FlattenedRootfs(read.root), read.config.get("Env")
        else:
            with contextlib.closing(engine.connect()) as client, imagelayers.opened(client, image) as layers_read:
                tree = FlattenedRootfs(_root([list(layer) for layer in layers_read]))
                env = engine.image_config(client, image).get("Env")
        refuse_imports(definition, tree, env or [], accept)


def _built(definition: Definition, tree: ListedTree, config: Mapping[str, Any]) -> BuiltImage:
    try:
        wheels: Collection[Path] | None = wheelhouse.ready(definition)
    except DeployerError:  # the lock is outdated or wheels are not cached, which `build` reports
        wheels = None
    return BuiltImage(tree, list(config.get("Env") or []), str(config.get("WorkingDir") or "/"), wheels)


def _of_image(definition: Definition, built: BuiltImage) -> Iterator[Finding]:
    """Yield the findings about a definition's jobs and app folder in its built image."""
    source = DefinitionSource(definition)
    for look in _LOOKS_AT_IMAGE:
        yield from look(source, built)


def _own(definition: Definition) -> Iterator[Finding]:
    source = DefinitionSource(definition)
    for look in _LOOKS:
        yield from look(source)
