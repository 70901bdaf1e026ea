"""Preparation of the bundle's kit in the image's folder at install: udocker and proot, offline.

Other tools in the kit, such as mksquashfs and ch-run, need no preparation.

::

    images/DIGEST/kit/       unchanged from the bundle: udocker's wheel, proot, mksquashfs, and their sources
        images/DIGEST/engine/    ready to run, also udocker's "repository": run, start.py, bin/proot, lib/udocker/
        images/DIGEST/engine/charliecloud/    unchanged from the bundle: ch-run, its loader and its libraries

udocker finds its engine there, so it never tries to download one. It uses ``rootfs`` without a second copy of the
image. proot exposes the file modes on disk, so ``protect`` removes write permission there.
"""

import os
import pkgutil
import shlex
import stat
from contextlib import suppress
from typing import List, Optional

from deployer.contract.base.errors import DeployerError, IntegrityError
from deployer.contract.bundle import wheel
from deployer.contract.bundle.manifest import KIT_PREFIX, Manifest
from deployer.contract.site.plan import CHARLIECLOUD_FOLDER
from deployer.site.container.runtimes.udocker import START
from deployer.site.install.wheels import OverlayWriter
from deployer.site.storage import pythons
from deployer.site.storage.store import InstalledImage
from deployer.system import files, process
from deployer.system import wheel as wheels

UDOCKER = "udocker"
#: Folders that udocker requires in a repository, with an engine that is new enough for every udocker version.
_FOLDERS = ("bin", "lib", "doc", "repos", "layers", "containers")
_ENGINE_VERSION = "99.0.0\n"

_RUN = """\
#!/bin/sh
# Starts a process in the container, by udocker: run [OPTION...] ROOTFS -- COMMAND [ARG...]
python={python}
[ -x "$python" ] || python=python3
exec "$python" -I -S -B "${{0%/*}}/start.py" "$@"
"""
#: Runs with the Python that will run udocker, which may differ from the one that runs install.
_COMPILE = (
    "import compileall, py_compile, sys; mode = getattr(py_compile, 'PycInvalidationMode', None); "
    "compileall.compile_dir(sys.argv[1], quiet=2, "
    "**({'invalidation_mode': mode.UNCHECKED_HASH} if mode else {}))"
)
_PATIENCE = 120
#: Maximum bytes and files of an engine.
ROOM, ENTRIES = 4 * 1024 * 1024, 300


def program(installed: InstalledImage, name: str) -> Optional[str]:
    """Return the path of a program in the image's kit; None if the bundle does not include it."""
    path = os.path.join(installed.folder, "kit", name)
    return path if files.is_file(path) else None


def prepare(installed: InstalledImage, python: Optional[str] = None) -> None:
    """Prepare the engine of an image that is being installed, if its kit has udocker.

    Args:
        python: the site's Python that will run udocker; None: one that a plan lists.

    Raises:
        IntegrityError: the kit is incomplete.
    """
    kit = os.path.join(installed.folder, "kit")
    name = _wheel(kit)
    if name is None:
        return
    proot = os.path.join(kit, "proot")
    if not files.is_file(proot):
        raise IntegrityError("the bundle's kit has udocker without proot", "pack the bundle again")
    engine = installed.engine
    for folder in _FOLDERS:
        os.makedirs(os.path.join(engine, folder))
    python = python or pythons.choose(_pythons(installed))
    with open(os.path.join(kit, name), "rb") as stream:
        OverlayWriter(engine, python).add(wheels.Wheel(stream, name))
    with open(proot, "rb") as stream:
        _write(os.path.join(engine, "bin", "proot"), stream.read(), 0o755)
    _write(os.path.join(engine, "lib", "VERSION"), _ENGINE_VERSION.encode())
    _write(
        os.path.join(engine, "start.py"),
        pkgutil.get_data("deployer.site.container.runtimes", "udocker_start.py") or b"",
    )
    _write(os.path.join(engine, START), _RUN.format(python=shlex.quote(python)).encode(), 0o755)
    _compile(python, os.path.join(engine, wheel.LIB))


def has_udocker(manifest: Manifest) -> bool:
    """Return whether a bundle's kit has udocker."""
    return any(map(_is_udocker, _carried(manifest)))


def has_charliecloud(manifest: Manifest) -> bool:
    """Return whether a bundle's kit has ch-run."""
    return any(name.startswith(CHARLIECLOUD_FOLDER + "/") for name in _carried(manifest))


def _carried(manifest: Manifest) -> List[str]:
    return [member.name[len(KIT_PREFIX) :] for member in manifest.members if member.name.startswith(KIT_PREFIX)]


def protect(rootfs: str) -> None:
    """Remove write permission from all files and folders of an image; ``remove`` restores it."""
    for folder, _, names in os.walk(rootfs, topdown=False):
        for path in [os.path.join(folder, name) for name in names] + [folder]:
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode):
                os.chmod(path, stat.S_IMODE(mode) & ~0o222)


def _wheel(kit: str) -> Optional[str]:
    names = files.names(kit)
    return next((name for name in sorted(names) if _is_udocker(name)), None)


def _is_udocker(name: str) -> bool:
    return name.startswith("udocker-") and name.endswith(".whl")


def _pythons(installed: InstalledImage) -> List[str]:
    """Return the Pythons of the first plan that lists any; all plans of one site list the same."""
    return next((installed.plan(site).python for site in installed.sites()), [])


def _compile(python: str, folder: str) -> None:
    """Compile udocker so that ranks need not do so; udocker also works without bytecode."""
    with suppress(DeployerError):
        process.run([python, "-I", "-S", "-c", _COMPILE, folder], _PATIENCE, check=False)


def _write(path: str, data: bytes, mode: int = 0o644) -> None:
    with open(path, "wb") as stream:
        stream.write(data)
    os.chmod(path, mode)
