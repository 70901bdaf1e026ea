"""The C compiler for the processor of a site: this machine's own, or Debian's cross compiler."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground import this_machine
from deployer.contract.base.errors import JobFailed
from deployer.contract.elf.machines import BY_KERNEL
from deployer.system import process

_log = logging.getLogger("deployer.kit")

_TIMEOUT = 1800


class Toolchain(NamedTuple):
    """The compiler for a processor.

    Attributes:
        machine: the processor, by the kernel's name.
        leave_out: the end of a hint: how to pack without the part that needs it.
    """

    machine: str
    leave_out: str

    @property
    def is_cross(self) -> bool:
        """Whether programs for the processor are foreign here, and run only under emulation."""
        return not this_machine.is_linux() or this_machine.machine() != self.machine

    @property
    def prefix(self) -> str:
        """The beginning of its tools' names."""
        return f"{self.machine}-linux-gnu-" if self.is_cross else ""

    @property
    def hint(self) -> str:
        """The hint for a machine without the compiler."""
        own = "gcc libc6-dev"
        if self.is_cross:
            own = f"gcc-{self.machine.replace('_', '-')}-linux-gnu libc6-dev-{BY_KERNEL[self.machine].oci}-cross"
        return f"apt-get install {own} make patch, {self.leave_out}"

    @property
    def untested(self) -> str:
        """The hint for a program that fails its test."""
        from deployer.connected.ground.engine import EMULATION  # slow to import

        return f"{EMULATION}, {self.leave_out}" if self.is_cross else self.leave_out

    def names(self) -> list[str]:
        """Return the names of the compiler and of the C library that it links, with their versions."""
        version = process.run([f"{self.prefix}gcc", "--version"], 30, hint=self.hint).stdout
        return [version.partition("\n")[0], self.libc()]

    def libc(self) -> str:
        """Return the name of its C library, with its version."""
        argv = [f"{self.prefix}gcc", "-E", "-dM", "-include", "features.h", "-xc", "/dev/null"]
        defined = process.run(argv, 30, hint=self.hint).stdout
        found = re.findall(r"^#define __GLIBC(?:_MINOR)?__ (\d+)$", defined, re.MULTILINE)
        return f"glibc {'.'.join(found)}" if found else "unknown"

    def compile(self, what: str, argv: Sequence[str], top: Path) -> None:
        """Run one command to compile ``what`` in the folder ``top``.

        Raises:
            MissingTool: no compiler found.
            JobFailed: the compilation failed.
        """
        done = process.run(argv, _TIMEOUT, cwd=str(top), check=False, hint=self.hint)
        if done.returncode != 0:
            _log.debug("%s%s", done.stdout, done.stderr)
            errors = re.findall(r"^.*(?:error:|cannot find|No such file).*$", done.stderr, re.MULTILINE)
            problem = " / ".join(errors[:2]) or done.last_words()
            raise JobFailed(f"the kit's {what} does not compile: {problem}", self.hint)

    def strip(self, program: Path, target: Path) -> None:
        """Write the program to ``target`` without debug symbols."""
        process.run([f"{self.prefix}strip", "-o", str(target), str(program)], 60, hint=self.hint)
