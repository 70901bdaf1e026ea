"""A Dockerfile as builders receive it: the parts that a build replaces are written into it."""

import re
from collections.abc import Callable, Collection

from deployer.connected.image.definition import dockerfile
from deployer.connected.image.definition.settings import FOLDER

#: Docker's own frontend. Builders contain it, so the image that ``# syntax=`` names is not needed.
OWN_FRONTEND = re.compile(r"(docker\.io/)?docker/dockerfile(-upstream)?:1(\.\d+)*$")


def portable(text: str) -> str:
    """Return a Dockerfile without ``# syntax=`` for Docker's own frontend, and without ``--link``.

    ``--link`` only changes which layers the cache can keep. Not all builders know it.
    """
    parsed = dockerfile.parse(text)
    line, frontend = parsed.directives.get("syntax", (0, ""))
    changes: dict[int, Callable[[str], str]] = {}
    for instruction in parsed.instructions():
        if any(flag.partition("=")[0] == "--link" for flag in instruction.flags):
            changes[instruction.line] = lambda old: re.sub(r"\s--link(=\S+)?(?=\s)", "", old, count=1)
    text = _changed(text, changes)
    if not OWN_FRONTEND.match(frontend):
        return text
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    lines.insert(len(parsed.directives), "#\n")  # later lines keep their numbers, and other directives come first
    return "".join(lines[: line - 1] + lines[line:])


def mounting(text: str, names: Collection[str], variables: Collection[str]) -> str:
    """Return a Dockerfile whose RUN steps can read the build settings.

    Args:
        names: files to mount below ``FOLDER``.
        variables: build arguments that are variables of each RUN step.
    """
    if not names:
        return text
    options = mount_options(names)
    arguments = "".join(f"ARG {name}\n" for name in sorted(variables))
    changes: dict[int, Callable[[str], str]] = {}
    for stage in dockerfile.parse(text).stages:
        lines = [instruction.line for instruction in stage.instructions if instruction.name == "RUN"]
        for line in lines:
            before = arguments if line == lines[0] else ""
            changes[line] = lambda old, before=before: (
                before
                + re.sub(  # type: ignore[misc]
                    r"^(\s*RUN)(?=\s)", rf"\1{options}", old, flags=re.IGNORECASE
                )
            )
    return _changed(text, changes)


def mount_options(names: Collection[str]) -> str:
    """Return the options that ``mounting`` adds to RUN, each after a space."""
    return "".join(f" --mount=type=secret,id={secret_id(name)},target={FOLDER}/{name},mode=0444" for name in names)


def own_lines(message: str, text: str, added: int) -> str:
    """Return a builder's message with the line numbers of the Dockerfile before ``mounting``.

    Args:
        text: the Dockerfile after ``mounting``.
        added: the number of variables, for each of which ``mounting`` added a line before a stage's first RUN.
    """
    runs = [[step.line for step in stage.instructions if step.name == "RUN"] for stage in dockerfile.parse(text).stages]

    def own(number: re.Match[str]) -> str:
        line = int(number[0])
        for first, *_ in filter(None, reversed(runs)):
            line -= min(max(line - first + added, 0), added)
        return str(line)

    return re.sub(r"(?<=\bline )\d+", own, message)


def secret_id(name: str) -> str:
    """Return the id of the secret with a file of the build settings."""
    return f"deployer-{name}"


def _changed(text: str, changes: dict[int, Callable[[str], str]]) -> str:
    if not changes:
        return text
    lines = text.removeprefix("\ufeff").splitlines()
    return "".join(f"{changes[at](line) if at in changes else line}\n" for at, line in enumerate(lines, 1))
