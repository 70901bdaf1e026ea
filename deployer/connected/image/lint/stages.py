"""Rules for the Dockerfile: bases, the final user, late removals, and parts that the builder does not support."""

import posixpath
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from deployer.connected.image.builders import features, rewritten
from deployer.connected.image.builders.builder import Builder
from deployer.connected.image.definition.dockerfile import Instruction, commands, variables
from deployer.connected.image.lint import finding
from deployer.connected.image.lint.network import fetches
from deployer.connected.image.lint.source import DefinitionSource
from deployer.contract.rules.findings import Finding

_OURS = {"BASE", "BUILD_BASE"}
_APT = ("apt", "apt-get", "aptitude")
_APT_LISTS = "/var/lib/apt/lists"


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


class _Step(NamedTuple):
    """The paths that a step may have added to its layer: those in its words, except the paths in ``removed``."""

    instruction: Instruction
    text: str
    removed: Collection[str] = ()

    def left(self, path: str) -> bool:
        """Return whether the step's layer probably has ``path``, according to the step's words."""
        if any(path == gone or path.startswith(gone + "/") for gone in self.removed):
            return False
        return re.search(rf"(^|[\s='\">]){re.escape(path)}(/|\s|$|['\"])", self.text) is not None


def late_removals(source: DefinitionSource) -> Iterator[Finding]:
    """Check layers.late-removal: a RUN removes files that an earlier step added to its layer."""
    earlier: list[_Step] = []
    for instruction in source.dockerfile.image():
        if instruction.name == "RUN":
            steps = list(commands(instruction.words()))
            removed = [word for step in steps if _is_removal(step) for word in step[1:]]
            stems = {path: path.rstrip("*/") for path in removed if path.startswith("/")}
            brings_lists = any(posixpath.basename(step[0]) in _APT and "update" in step[1:] for step in steps)
            for path, stem in stems.items():
                if stem.count("/") < 2 or (brings_lists and stem.startswith(_APT_LISTS)):
                    continue  # unknown, or apt's lists, which the same step added
                maker = next((step for step in earlier if step.left(stem)), None)
                if maker:
                    yield finding("layers.late-removal", source.at(instruction), path=path, line=maker.instruction.line)
            text = " ".join(word for step in steps if not _is_removal(step) for word in step)
            earlier.append(_Step(instruction, text + (f" {_APT_LISTS}/" if brings_lists else ""), set(stems.values())))
        elif instruction.name in ("COPY", "ADD"):
            earlier.append(_Step(instruction, "".join(instruction.words()[-1:])))


def _is_removal(command: list[str]) -> bool:
    return posixpath.basename(command[0]) == "rm"


def build_base(source: DefinitionSource) -> Iterator[Finding]:
    """Check dockerfile.build-base: the final image starts from the base with build settings."""
    used = source.dockerfile.image()
    if used and "BUILD_BASE" in variables(used[0].value):
        yield finding("dockerfile.build-base", source.at(used[0]))


def build_settings(source: DefinitionSource) -> Iterator[Finding]:
    """Check network.base: a step uses the network without the build settings, if the builder does not mount them."""
    for stage in source.dockerfile.stages:
        lineage = source.dockerfile.lineage(stage)
        if "BASE" not in variables(lineage[0].base):
            continue
        for instruction in stage.instructions:
            is_shell = instruction.name == "RUN" and not instruction.heredoc
            for command in filter(None, map(fetches, commands(instruction.words()) if is_shell else ())):
                yield finding("network.base", source.at(instruction), command=command)
                break
