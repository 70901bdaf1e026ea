"""The recipe of a part of the kit: its pins and its README."""

import functools
import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.bundle.kit.toolchain import Toolchain
from deployer.connected.ground import caches, own_data
from deployer.system import process

_RECIPES = Path(__file__).with_name("recipes")

PinRecord = Mapping[str, Any]
#: Receives a line about what is being done.
Say = Callable[[str], None]


class Recipe(NamedTuple):
    """The recipe of a part.

    Attributes:
        name: the part's name, and its folder below ``recipes`` with ``pins.yaml``, ``README.txt`` and other inputs.
        version: increase it if the same pins produce a different part.
        leave_out: the end of a hint: how to pack without this part.
        compiled: the part depends on the compiler and its C library.
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

    def tools(self, machine: str) -> Toolchain:
        """Return the compiler for a processor."""
        return Toolchain(machine, self.leave_out)

    def key(self, machine: str) -> str:
        """Return a short digest of everything that the part for a processor depends on."""
        recipe = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(self.folder.iterdir())}
        return caches.key(self.version, recipe, *(self.tools(machine).names() if self.compiled else ()), machine)

    def readme(self, machine: str, command: str = "", tested: str = "") -> str:
        """Return the README of the part.

        Args:
            command: the command that compiled it.
            tested: how it was tested.
        """
        values = {f"{name}_{key}": value for name, pin in self.pins().items() for key, value in pin.items()}
        text = (self.folder / "README.txt").read_text()
        libc = self.tools(machine).libc() if self.compiled else ""
        return text.format(machine=machine, libc=libc, command=command, tested=tested, **values)

    def unpack(self, archive: Path, target: Path) -> Path:
        """Unpack a Debian package or a source into ``target``. Return the folder that contains its files."""
        target.mkdir(exist_ok=True)
        if archive.suffix == ".deb":
            hint = f"apt-get install dpkg, {self.leave_out}"
            process.run(["dpkg-deb", "-x", str(archive), str(target)], 60, hint=hint)
            return target
        process.run(["tar", "-xf", str(archive), "-C", str(target)], 60)
        [top] = target.iterdir()
        return top

    def finish(self, program: Path, made: Path, readme: str) -> None:
        """Put a tested program and the README into the part's folder."""
        shutil.copyfile(program, made / program.name)
        (made / program.name).chmod(0o755)
        (made / f"README.{self.name}").write_text(readme)


@functools.cache
def _pins(path: Path) -> Mapping[str, PinRecord]:
    pins: Mapping[str, PinRecord] = own_data.load_yaml(path)
    return pins
