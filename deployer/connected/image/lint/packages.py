"""Python packages that a definition requests, in the Dockerfile's pip commands and in their requirements files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from deployer.connected.image.definition.dockerfile import commands
from deployer.connected.image.lint import finding
from deployer.connected.image.lint.source import DefinitionSource, text_of
from deployer.connected.image.wheelhouse.lock import INCLUDE, requirement_lines
from deployer.contract.rules.findings import Finding

_VERBS = ("install", "download", "wheel")
#: pip's options whose value is the next word.
_WITH_VALUE = frozenset(
    """-t --target --prefix --root -i --index-url --extra-index-url -f --find-links --trusted-host --no-binary
    --only-binary --platform --python-version --implementation --abi --cache-dir --log --proxy --cert --client-cert
    --progress-bar --upgrade-strategy --timeout --retries --root-user-action --config-settings -C --src --report
    --use-feature --use-deprecated --exists-action --global-option --python -w --wheel-dir -d --dest -e --editable
    -b --build --keyring-provider""".split()  # noqa: SIM905
)
_FILES = {"-r": "r", "--requirement": "r", "-c": "c", "--constraint": "c"}

#: The Python versions of Debian's suites.
_PYTHON = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
_ITEX_PYTHON = ("3.9", "3.10", "3.11")
_ITEX_LAST = Version("2.15")


class Asked(NamedTuple):
    """A requested package.

    Attributes:
        name: its normalized name.
        version: the exact version, empty if it is not exact.
        text: the requirement as written.
        where: its location, for findings.
    """

    name: str
    version: str
    text: str
    where: str


def unpinned(source: DefinitionSource) -> Iterator[Finding]:
    """Check pins.pip. Packages in ``python.requirements`` are skipped, because their lock has exact versions."""
    for asked in in_dockerfile(source):
        if not asked.version:
            yield finding("pins.pip", asked.where, package=asked.text, name=asked.name)


def itex(source: DefinitionSource) -> Iterator[Finding]:
    """Check itex.*: versions that ITEX supports."""
    wheelhouse = source.definition.python
    asked = list(in_dockerfile(source))
    if wheelhouse is not None:
        asked += _in_file(source.definition.folder / wheelhouse.requirements)
    extension = _first(asked, "intel-extension-for-tensorflow")
    tensorflow = _first(asked, "tensorflow", "tensorflow-cpu", "tensorflow-intel")
    if extension is None:
        if tensorflow is not None and Version(_minor(tensorflow.version)) > _ITEX_LAST:
            yield finding("itex.none", tensorflow.where, tensorflow=tensorflow.version)
        return
    needed = _minor(extension.version)
    if tensorflow is not None and _minor(tensorflow.version) != needed:
        yield finding(
            "itex.tensorflow", tensorflow.where, itex=extension.version, needed=needed, tensorflow=tensorflow.version
        )
    suite = source.definition.base.debian if source.definition.base else None
    if suite is not None and _PYTHON[suite] not in _ITEX_PYTHON:
        yield finding("itex.python", extension.where, suite=suite, python=_PYTHON[suite])


def in_dockerfile(source: DefinitionSource) -> Iterator[Asked]:
    """Yield the packages requested in a Dockerfile's pip commands and their requirements files."""
    for words, where in _pip_commands(source):
        requested: list[Asked] = []
        constrained: set[str] = set()
        todo = words[::-1]
        while todo:
            word = todo.pop()
            option, _, value = word.partition("=")
            if option in _FILES:
                path = source.find(value or (todo.pop() if todo else ""))
                listed = list(_in_file(path)) if path else []
                if _FILES[option] == "c":
                    constrained |= {asked.name for asked in listed if asked.version}
                else:
                    requested += listed
            elif word in _WITH_VALUE:
                todo = todo[:-1]
            elif not word.startswith("-"):
                requested += _asked(word, where)
        yield from (asked for asked in requested if asked.version or asked.name not in constrained)


def _pip_commands(source: DefinitionSource) -> Iterator[tuple[list[str], str]]:
    """Yield the words after ``pip install`` in each RUN, and their location for findings."""
    for instruction in source.dockerfile.instructions():
        for command in commands(instruction.words()) if instruction.name == "RUN" else ():
            words = pip_words(command)
            if words is not None:
                yield words, source.at(instruction)


def pip_words(command: list[str]) -> list[str] | None:
    """Return the words after ``pip install`` (or download, wheel), or None for other commands."""
    words = list(command)
    if re.fullmatch(r"(.*/)?python[0-9.]*", words[0]) and "-m" in words[:-1]:
        words = words[words.index("-m") + 1 :]
    if words[0] == "uv":
        words = words[1:]
    if not words or not re.fullmatch(r"(.*/)?pip[0-9.]*", words[0]):
        return None
    verbs = [number for number, word in enumerate(words) if word in _VERBS]
    return words[verbs[0] + 1 :] if verbs else None


def _in_file(path: Path) -> list[Asked]:
    """Return the packages requested in a requirements file and the files that it includes."""
    return [asked for line in _lines(path) for asked in _asked(*line)]


def _lines(path: Path, seen: frozenset[Path] = frozenset()) -> Iterator[tuple[str, str]]:
    """Yield the lines of a requirements file and its included files that request a package, and their locations."""
    for number, line in requirement_lines(text_of(path)):
        included = INCLUDE.match(line)
        if included and not line.startswith(("-c", "--c")) and path not in seen:
            yield from _lines(path.parent / included[1], seen | {path})
        elif not line.startswith("-"):
            yield line, f"{path}:{number}"


def _asked(line: str, where: str) -> Iterator[Asked]:
    """Yield a requirement. Yield nothing for a path, a variable or an invalid line, which other rules report."""
    text = re.split(r"\s--[a-z]", line)[0].strip()
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return
    exact = [
        spec.version
        for spec in requirement.specifier
        if spec.operator in ("==", "===") and not spec.version.endswith("*")
    ]
    version = (exact or ["url" if requirement.url else ""])[0]
    yield Asked(canonicalize_name(requirement.name), version, text, where)


def _first(asked: list[Asked], *names: str) -> Asked | None:
    """Return the first package with one of these names and a known version."""
    return next((package for package in asked if package.name in names and _minor(package.version)), None)


def _minor(version: str) -> str:
    """Return the first two numbers of a version, or an empty text if it is invalid."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return ""
    return f"{parsed.major}.{parsed.minor}"
