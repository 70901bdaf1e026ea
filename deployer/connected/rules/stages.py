"""Rules about the Dockerfile itself: what it starts from, who it ends as, and what an offline build cannot do."""

import re
from collections.abc import Iterator

from deployer.connected.dockerfile import Instruction, commands, variables
from deployer.connected.rules import finding
from deployer.connected.rules.source import Source
from deployer.contract.findings import Finding

_OURS = {"BASE", "BUILD_BASE"}
_APT_LISTS = "/var/lib/apt/lists"


def images(source: Source) -> Iterator[Finding]:
    """pins.image, in FROM and COPY --from."""
    defaults = dict(pair for argument in source.dockerfile.arguments for pair in argument.pairs())
    known = {"scratch"}
    for number, stage in enumerate(source.dockerfile.stages):
        first, *others = stage.instructions
        named = [(first, stage.base)]
        named += [(step, flag[7:]) for step in others for flag in step.flags if flag.startswith("--from=")]
        for step, image in named:
            if not variables(image) & _OURS:
                meant = re.sub(r"\$\{?(\w+)[^}]*\}?", lambda found: defaults.get(found[1], ""), image)
                if meant.lower() not in known and "@sha256:" not in meant:
                    yield finding("pins.image", source.at(step), image=image)
        known |= {stage.name, str(number)}


def user(source: Source) -> Iterator[Finding]:
    """dockerfile.user."""
    for instruction in source.last("USER"):
        name = instruction.value.partition(":")[0]
        if name not in ("root", "0") and "$" not in name:
            yield finding("dockerfile.user", source.at(instruction), user=name)


def frontend(source: Source) -> Iterator[Finding]:
    """dockerfile.syntax and dockerfile.buildkit."""
    if "syntax" in source.dockerfile.directives:
        line, image = source.dockerfile.directives["syntax"]
        yield finding("dockerfile.syntax", f"{source.name}:{line}", frontend=image)
    for instruction in source.dockerfile.instructions():
        used = [
            flag for flag in instruction.flags if re.match(r"--(mount|network|security|link|parents|chmod)\b", flag)
        ]
        used += ["a here-document"] if instruction.heredoc else []
        if used:
            yield finding("dockerfile.buildkit", source.at(instruction), what=f"{instruction.name} {used[0]}")


def late_removals(source: Source) -> Iterator[Finding]:
    """layers.late-removal: a RUN of the image removes what an earlier step of it made."""
    made: list[tuple[Instruction, str]] = []
    for instruction in source.dockerfile.image():
        if instruction.name == "RUN":
            steps = list(commands(instruction.words()))
            for path in [word for step in steps if step[0].endswith("rm") for word in step[1:]]:
                yield from _removal(source, instruction, path, made)
            text = " ".join(word for step in steps if not step[0].endswith("rm") for word in step)
            lists = f" {_APT_LISTS}/" if any(step[:2] == ["apt-get", "update"] for step in steps) else ""
            made.append((instruction, text + lists))
        elif instruction.name in ("COPY", "ADD"):
            made.append((instruction, "".join(instruction.words()[-1:])))


def _removal(
    source: Source, instruction: Instruction, path: str, made: list[tuple[Instruction, str]]
) -> Iterator[Finding]:
    stem = path.rstrip("*/")
    if not stem.startswith("/") or stem.count("/") < 2:  # an option, a variable, a path of an unknown folder
        return
    for maker, text in made:
        if re.search(rf"(^|[\s='\">]){re.escape(stem)}(/|\s|$|['\"])", text):
            yield finding("layers.late-removal", source.at(instruction), path=path, line=maker.line)
            return
