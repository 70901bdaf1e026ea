"""Rules for the Dockerfile: bases, the final user, and parts that the builder does not support."""

from collections.abc import Iterator

from deployer.connected.image.builders import features, rewritten
from deployer.connected.image.builders.builder import Builder
from deployer.connected.image.lint import finding
from deployer.connected.image.lint.source import DefinitionSource
from deployer.contract.rules.findings import Finding

_OURS = {"BASE", "BUILD_BASE"}


def images(source: DefinitionSource) -> Iterator[Finding]:
    """Check pins.image in FROM and --from, and dockerfile.stage: a single word in --from is probably a stage."""
    defaults = source.dockerfile.defaults()
    ours = {name: "scratch" for name in _OURS if not defaults.get(name)}
    for step, image in source.dockerfile.images({**source.definition.build_args, **ours}):
        if step.name != "FROM" and not set(image) & set("/:@."):
            names = ", ".join(stage.name for stage in source.dockerfile.stages if stage.name) or "without names"
            yield finding("dockerfile.stage", source.at(step), name=image, stages=names)
        elif "@sha256:" not in image:
            yield finding("pins.image", source.at(step), image=image)


def user(source: DefinitionSource) -> Iterator[Finding]:
    """Check dockerfile.user."""
    for instruction in source.last("USER"):
        name = instruction.value.partition(":")[0]
        if name not in ("root", "0") and "$" not in name:
            yield finding("dockerfile.user", source.at(instruction), user=name)


def frontend(source: DefinitionSource) -> Iterator[Finding]:
    """Check dockerfile.syntax: a frontend that is not Docker's own and can change."""
    line, image = source.dockerfile.directives.get("syntax", (0, ""))
    if image and "@sha256:" not in image and not rewritten.OWN_FRONTEND.match(image):
        yield finding("dockerfile.syntax", f"{source.name}:{line}", frontend=image)


def unknown_to(source: DefinitionSource, builder: Builder) -> Iterator[Finding]:
    """Check dockerfile.buildkit: parts of the Dockerfile that a builder cannot do."""
    for part in features.lacking(source.dockerfile, builder.known):
        at = f"{source.name}:{part.line}"
        yield finding("dockerfile.buildkit", at, what=part.what, builder=builder.name, able=part.able)
