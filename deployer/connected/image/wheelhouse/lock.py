"""python.lock: the exact wheels of a definition's wheelhouse, for one Python and one set of requirements.

It is a pip requirements file next to ``bundle.yaml`` and should be checked in. Each pin has the SHA-256 of one wheel.
Its header states what it was made from, so a mismatch is detected without a network.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from deployer.connected.image.definition.definition import Definition
from deployer.connected.image.wheelhouse import project
from deployer.connected.image.wheelhouse.target import Target, version_pair
from deployer.contract.base.errors import UsageError
from deployer.system import files

#: The name of the lock for x86_64, or for a base that decides its processor. Others are ``python-aarch64.lock``.
FILE = "python.lock"

_HEAD = """\
# The wheelhouse of this definition, written by `deployer build`. Check it in; do not edit it: change the requirements.
"""
_MADE_FOR = re.compile(r"# for: Python (\S+) on Linux (\S+) with glibc (\S+)")
_REQUIREMENTS = re.compile(r"# requirements: sha256:([0-9a-f]{64})")
_OF_IMAGE = re.compile(r"# of the image: (\S+)==(\S+)")
_PIN = re.compile(r"(\S+)==(\S+) --hash=sha256:([0-9a-f]{64})  # (\S+)")
#: A line of a requirements file that includes another file.
INCLUDE = re.compile(r"(?:-[rc][\s=]*|--(?:requirement|constraint)[\s=]+)(\S+)")
_RELOCK = "run deployer build without --locked, and check in the new python.lock"


def place(definition: Definition) -> Path:
    """Return the path of a definition's lock for its processor."""
    stem, dot, ending = FILE.partition(".")
    return definition.folder / f"{stem}{definition.suffix}{dot}{ending}"


class Pin(NamedTuple):
    """One wheel.

    Attributes:
        name: the normalized name of its distribution.
        version: its version.
        sha256: its digest in hexadecimal.
        wheel: its file name.
    """

    name: str
    version: str
    sha256: str
    wheel: str


class Lock(NamedTuple):
    """The content of a lock file.

    Attributes:
        target: the image's Python, without its packages.
        requirements: the digest of the requirements, in hexadecimal.
        pins: the wheels.
        of_image: packages of the image that the wheels depend on: name to version.
    """

    target: Target
    requirements: str
    pins: tuple[Pin, ...]
    of_image: Mapping[str, str]

    def text(self) -> str:
        """Return the file's text."""
        lines = [f"# for: {self.target}", f"# requirements: sha256:{self.requirements}"]
        lines += [f"# of the image: {name}=={version}" for name, version in sorted(self.of_image.items())]
        lines += [f"{pin.name}=={pin.version} --hash=sha256:{pin.sha256}  # {pin.wheel}" for pin in sorted(self.pins)]
        return _HEAD + "\n".join(lines) + "\n"

    def drift(self, target: Target, requirements: str) -> str:
        """Return why this lock does not fit a target and a digest of requirements, or an empty text if it fits."""
        if self.requirements != requirements:
            return "the requirements changed"
        if str(self.target) != str(target):
            return f"it is for {self.target}, and the image has {target}"
        for name, version in sorted(self.of_image.items()):
            if target.packages.get(name) != version:
                return f"it relies on {name} {version} of the image, which has {target.packages.get(name) or 'none'}"
        for pin in self.pins:
            if pin.name in target.packages:
                return f"the image has its own {pin.name} {target.packages[pin.name]} now"
        return ""


def read_lock(path: Path) -> Lock | None:
    """Return the lock at ``path``; None if the file does not exist. Raises UsageError if it is not from deployer."""
    if not files.lexists(str(path)):
        return None
    target: Target | None = None
    requirements = ""
    pins, of_image = [], {}
    for number, line in enumerate(files.read_text(str(path)).splitlines(), 1):
        if found := _MADE_FOR.fullmatch(line):
            target = Target(version_pair(found[1]), version_pair(found[3]), found[2], {})
        elif found := _REQUIREMENTS.fullmatch(line):
            requirements = found[1]
        elif found := _OF_IMAGE.fullmatch(line):
            of_image[found[1]] = found[2]
        elif (found := _PIN.fullmatch(line)) and _is_of(found[4], found[1]):
            pins.append(Pin(found[1], found[2], found[3], found[4]))
        elif line and not line.startswith("#"):
            hint = f"remove it, or {_RELOCK}"
            raise UsageError(f"{path}:{number}: not a line that deployer writes: {line[:100]}", hint)
    if target is None or not requirements:
        raise UsageError(f"{path} lacks the header that states its target", f"remove it, or {_RELOCK}")
    return Lock(target, requirements, tuple(pins), of_image)


def requirements_digest(path: Path) -> str:
    """Return the SHA-256 of a requirements file and its included files, in hexadecimal.

    Raises:
        UsageError: a line cannot be locked. The message has its file and line.
    """
    digest = hashlib.sha256()
    for text in requirement_files(path).values():
        digest.update(f"{len(text)}\n{text}".encode())
    return digest.hexdigest()


def requirement_files(path: Path) -> dict[Path, str]:
    """Return the texts of a requirements file and its included files. Raises as ``requirements_digest`` does."""
    if own := project.own_files(path.resolve()):
        for number, line in requirement_lines(project.exported(own[0])):
            _check_line(f"{path}, exported:{number}", line)
        return {file: files.read_text(str(file)) for file in own}
    todo, done = [path.resolve()], dict[Path, str]()
    while todo:
        file = todo.pop(0)
        if file in done:
            continue
        text = done[file] = files.read_text(str(file), "python.requirements in bundle.yaml names it")
        for number, line in requirement_lines(text):
            if included := INCLUDE.fullmatch(line):
                todo.append(file.parent / included[1])
            else:
                _check_line(f"{file}:{number}", line)
    return done


def requirement_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a requirements file with their numbers, without comments and empty lines.

    Continuation lines are joined.
    """
    begun, start = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        start = start if begun else number
        begun += re.sub(r"(^|\s)#.*", "", line)
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        if begun.strip():
            yield start, begun.strip()
        begun = ""
    if begun.strip():
        yield start, begun.strip()


def _check_line(where: str, line: str) -> None:
    if line.startswith("-"):
        hint = "indexes come from pip's own settings, folders with wheels from --find-links"
        raise UsageError(f"{where}: the option {line.split(maxsplit=1)[0]} is not allowed in this file", hint)
    try:
        asked = Requirement(line.partition(" --hash=")[0])
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        hint = "write it like numpy>=1.26,<2"
        raise UsageError(f"{where}: {line[:100]!r} is not a requirement: {reason}", hint) from error
    if asked.url:
        hint = f"write {asked.name}, and name the folder of its wheel with --find-links"
        raise UsageError(f"{where}: {asked.name} is requested by URL, which the site cannot check", hint)


def _is_of(wheel: str, name: str) -> bool:
    """Return whether a text is the file name of a wheel of this distribution, without a path."""
    try:
        return "/" not in wheel and parse_wheel_filename(wheel)[0] == canonicalize_name(name)
    except InvalidWheelFilename:
        return False
