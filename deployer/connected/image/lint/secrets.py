"""Rules secrets.*: private data in files of a definition, an image or a bundle, in its variables and its history."""

import contextlib
import itertools
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployer.connected.image.lint import finding
from deployer.connected.rootfs import secrets
from deployer.connected.rootfs.entries import FileEntry
from deployer.connected.rootfs.package_files import PackageFiles
from deployer.connected.rootfs.secrets import MAX_SIZE, Secret, names_a_secret
from deployer.contract.base.errors import DeployerError
from deployer.contract.base.tarformat import FILE
from deployer.contract.rules.findings import Finding
from deployer.system import files

if TYPE_CHECKING:  # slow to import, and unused by `pack --rootfs`
    from deployer.connected.image.lint.source import DefinitionSource
    from deployer.connected.rootfs.merge import Rootfs

#: The most bytes to read in a data folder: its smallest files. Logins and notebooks are small.
_DATA = 64 * 1024 * 1024


def in_files(source: "DefinitionSource") -> Iterator[Finding]:
    """Check secrets.file in the context, the app folder, and the small files of data folders."""
    data = (path for folder in source.definition.data_folders.values() for path in _smallest(folder))
    for path in dict.fromkeys((*source.context, *source.app, *data)):
        with contextlib.suppress(OSError, DeployerError), files.open_regular(str(path)) as stream:
            for secret in secrets.in_content(str(path), stream.read(MAX_SIZE + 1)):
                yield finding("secrets.file", secret.path, what=secret.what, line=secret.line)


def in_variables(source: "DefinitionSource") -> Iterator[Finding]:
    """Check secrets.variable in ENV and ARG of all stages, and in build_args. All of them can be read in the image."""
    for name, value in source.definition.build_args.items():
        if _is_secret(name, value):
            yield finding("secrets.variable", source.bundle, instruction="build_args", name=name)
    for instruction in source.dockerfile.instructions():
        if instruction.name in ("ENV", "ARG"):
            for name, value in instruction.pairs():
                if "$" not in value and _is_secret(name, value):
                    where = source.at(instruction)
                    yield finding("secrets.variable", where, instruction=instruction.name, name=name)


def in_image(found: Iterable[Secret], config: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the secrets that a bundle of an image would carry.

    Args:
        found: those in its files.
        config: its configuration.
    """
    for secret in found:
        yield finding("secrets.file", secret.path, what=secret.what, line=secret.line)
    for name, _, value in (entry.partition("=") for entry in config.get("Env") or ()):
        if _is_secret(name, value):
            yield finding("secrets.variable", name, instruction="ENV", name=name)
    words = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ()), *(config.get("Labels") or {}).values()]
    for kind in secrets.in_text(" ".join(map(str, words))):
        yield finding("secrets.file", "entrypoint, command and labels", what=kind, line=1)


def beside(layers: Sequence[Sequence[FileEntry]], root: "Rootfs", history: Iterable[str]) -> Iterator[Finding]:
    """Yield secrets.image: what only the engine's image has, in files that later layers hide, and in its history.

    Args:
        layers: the layers, the lowest first.
        root: the root filesystem from them.
        history: the commands that made them.
    """
    visible = [(os.fsdecode(path), node.data) for path, node in root.walk() if node.kind == FILE and node.data]
    shown = {id(data) for _, data in visible}
    packages = PackageFiles.of(visible)
    for number, layer in enumerate(layers, 1):
        hidden = [(entry.path, entry.data) for entry in layer if entry.data and id(entry.data) not in shown]
        names = ((posixpath.normpath(os.fsdecode(path)).lstrip("/"), data) for path, data in hidden)
        for secret in secrets.in_files(names, packages):
            where = f"layer {number}: {secret.path}"
            yield finding("secrets.image", where, what=f"{secret.what} (line {secret.line}), hidden by a later layer")
    for number, step in enumerate(history, 1):
        for kind in secrets.in_text(step):
            yield finding("secrets.image", f"step {number} of the history", what=kind)


def _is_secret(name: str, value: str) -> bool:
    return bool(value) and (names_a_secret(name) or bool(secrets.in_text(value)))


def _smallest(folder: Path) -> list[Path]:
    """Return the smallest files below a folder, up to a total size."""
    paths = (os.path.join(top, name) for top, _, names in os.walk(folder) for name in names)
    states = ((files.status(path, follow=False), path) for path in paths)
    sizes = sorted((state.st_size, path) for state, path in states if state and stat.S_ISREG(state.st_mode))
    totals = itertools.accumulate(size for size, _ in sizes)
    within = itertools.takewhile(lambda pair: pair[0] <= _DATA, zip(totals, sizes, strict=True))
    return [Path(path) for _, (_, path) in within]
