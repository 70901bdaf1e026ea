"""lint: what is wrong with a definition before, and what its image wastes after it was built."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from deployer.connected import imagelayers
from deployer.connected.builders import engine
from deployer.connected.definition import Definition
from deployer.connected.rules import hadolint, layers, network, packages, secrets, stages
from deployer.connected.rules.source import Source
from deployer.contract.errors import MissingTool, Refused
from deployer.contract.findings import Finding, errors

#: All that can be seen without an engine.
_LOOKS: tuple[Callable[[Source], Iterator[Finding]], ...] = (
    stages.frontend, stages.images, stages.user, stages.late_removals, packages.unpinned, packages.itex,
    network.at_run_time, secrets.in_files, secrets.in_variables,
)  # fmt: skip


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
                found += layers.wasted(read, image)
    return Linted([item for item in found if item.code not in accept], image)


def refuse(definition: Definition, accept: Collection[str] = ()) -> None:
    """Raise Refused when a rule of ours finds an error that is not accepted: the build or the job would fail."""
    refused(errors([item for item in _own(definition) if item.code not in accept]))


def refused(found: list[Finding]) -> None:
    """Raise Refused for findings, if any: in one line, or each in a line of its own."""
    if len(found) == 1:
        item = found[0]
        raise Refused(f"{item.subject}: {item.code}: {item.message}", item.remedy)
    if found:
        lines = [f"{item.subject}: {item.code}: {item.message}" for item in found]
        raise Refused(f"{len(found)} errors in the definition", "docs/lint.md has a section for each code", lines)


def _own(definition: Definition) -> Iterator[Finding]:
    source = Source(definition)
    for look in _LOOKS:
        yield from look(source)
