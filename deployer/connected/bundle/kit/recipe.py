"""The recipe of a part of the kit: its pins, its README, and its compilation."""

import functools
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.ground import caches, own_data
from deployer.contract.base.errors import JobFailed, MissingTool
from deployer.system import process

_log = logging.getLogger("deployer.kit")

_RECIPES = Path(__file__).with_name("recipes")
_TIMEOUT = 1800

PinRecord = Mapping[str, Any]


class Recipe(NamedTuple):
    """The recipe of a part.

    Attributes:
        name: the part's name, and its folder below ``recipes`` with ``pins.yaml``, ``README.txt`` and other inputs.
        version: increase it if the same pins produce a different part.
        leave_out: the end of a hint: how to pack without this part.
        compiled: the part depends on this machine's compiler and C library.
    """

    name: str
    version: int
    leave_out: str
    compiled: bool = True

    @property
    def folder(self) -> Path:
        return _RECIPES / self.name

    def pins(self) -> Mapping[str, PinRecord]:
        """Return the pins of the part's inputs, by name."""
        return _pins(self.folder / "pins.yaml")

    def package(self, name: str) -> Mapping[str, str]:
        """Return the file name and digest of a pinned Debian package for this machine's architecture."""
        machine = os.uname().machine
        files: Mapping[str, Mapping[str, str]] = self.pins()[name]["files"]
        if machine not in files:
            raise MissingTool(f"the kit's {self.name} has no pins for {machine}", self.leave_out)
        return files[machine]

    @property
    def compiler(self) -> str:
        """Return the hint for a machine without a compiler."""
        return f"apt-get install gcc make patch libc6-dev, {self.leave_out}"

    def key(self) -> str:
        """Return a short digest of everything that the part depends on."""
        recipe = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(self.folder.iterdir())}
        return caches.key(self.version, recipe, *(self._compiler() if self.compiled else ()), os.uname().machine)

    def _compiler(self) -> list[str]:
        version = process.run(["gcc", "--version"], 30, hint=self.compiler).stdout
        return [version.partition("\n")[0], _libc()]

    def readme(self, command: str) -> str:
        """Return the README of the part. ``command`` is the command that compiled it."""
        values = {f"{name}_{key}": value for name, pin in self.pins().items() for key, value in pin.items()}
        text = (self.folder / "README.txt").read_text()
        return text.format(machine=os.uname().machine, libc=_libc(), command=command, **values)

    def unpack(self, archive: Path, target: Path) -> Path:
        """Unpack a Debian package or a source into ``target``. Return the folder that contains its files."""
        target.mkdir(exist_ok=True)
        if archive.suffix == ".deb":
            process.run(["dpkg-deb", "-x", str(archive), str(target)], 60, hint=self.compiler)
            return target
        process.run(["tar", "-xf", str(archive), "-C", str(target)], 60)
        [top] = target.iterdir()
        return top

    def compile(self, what: str, argv: Sequence[str], top: Path) -> None:
        """Run one command to compile ``what`` in the folder ``top``.

        Raises:
            MissingTool: no compiler found.
            JobFailed: the compilation failed.
        """
        done = process.run(argv, _TIMEOUT, cwd=str(top), check=False, hint=self.compiler)
        if done.returncode != 0:
            _log.debug("%s%s", done.stdout, done.stderr)
            errors = re.findall(r"^.*(?:error:|cannot find|No such file).*$", done.stderr, re.MULTILINE)
            problem = " / ".join(errors[:2]) or done.last_words()
            raise JobFailed(f"the kit's {what} does not compile: {problem}", self.compiler)

    def finish(self, program: Path, made: Path, command: str) -> None:
        """Put a tested program and the README into the part's folder."""
        shutil.copyfile(program, made / program.name)
        (made / program.name).chmod(0o755)
        (made / f"README.{self.name}").write_text(self.readme(command))

    def strip(self, program: Path, target: Path) -> None:
        """Write the program to ``target`` without debug symbols."""
        process.run(["strip", "-o", str(target), str(program)], 60, hint=self.compiler)


@functools.cache
def _pins(path: Path) -> Mapping[str, PinRecord]:
    pins: Mapping[str, PinRecord] = own_data.load_yaml(path)
    return pins


def _libc() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
