"""Rules for the built image: it must have the programs that jobs start."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from deployer.connected.image.lint.source import DefinitionSource
from deployer.connected.linker import commands
from deployer.connected.linker.commands import ListedTree
from deployer.connected.rootfs import wheels
from deployer.contract.rules.findings import Finding


class BuiltImage(NamedTuple):
    """The image that was built from a definition.

    Attributes:
        tree: its root filesystem.
        env: its environment, as ``NAME=VALUE``.
        workdir: its working folder.
        wheels: the wheels of the definition's lock; None: not all of them are cached.
    """

    tree: ListedTree
    env: list[str]
    workdir: str
    wheels: Collection[Path] | None


def commands_missing(source: DefinitionSource, built: BuiltImage) -> Iterator[Finding]:
    """Check command.missing. Nothing is reported if the program may be in a wheel that is not cached."""
    if built.wheels is None:
        return
    look = commands.in_tree(built.tree, source.definition.app_folder)
    programs = set(wheels.programs(built.wheels))
    if source.definition.horovod:
        programs.add("horovodrun")  # its wheel is not part of the image
    yield from commands.findings(
        source.definition.own_jobs, commands.place(look, built.env, built.workdir, programs=programs)
    )
