"""Preparation of the bundle's kit in the image's folder at install: udocker and proot, offline.

Other tools in the kit, such as mksquashfs and ch-run, need no preparation.

::

    images/DIGEST/kit/       unchanged from the bundle: proot, mksquashfs, and their sources
        images/DIGEST/engine/    the bundle's overlay with udocker, made ready to run as udocker's "repository":
                                 run, start.py, bin/proot, lib/udocker/
        images/DIGEST/engine/charliecloud/    unchanged from the bundle: ch-run, its loader and its libraries

udocker finds its engine there, so it never tries to download one. It uses ``rootfs`` without a second copy of the
image. proot exposes the file modes on disk, so ``protect`` removes write permission there.
"""

import os
import pkgutil
import shlex
import stat
from contextlib import suppress
from typing import Optional

from deployer.contract.base.errors import DeployerError, IntegrityError
from deployer.contract.bundle.manifest import ENGINE, KIT_PREFIX, LIB, Manifest
from deployer.contract.site.plan import CHARLIECLOUD_FOLDER
from deployer.site.container.runtimes.udocker import START
from deployer.site.storage import pythons
from deployer.site.storage.store import InstalledImage
from deployer.system import files, process

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
    engine = installed.engine
    if not files.is_folder(os.path.join(engine, LIB)):
        return
    proot = program(installed, "proot")
    if proot is None:
        raise IntegrityError("the bundle's kit has udocker without proot", "pack the bundle again")
    for folder in _FOLDERS:
        os.makedirs(os.path.join(engine, folder), exist_ok=True)
    # All plans of one site list the same Pythons.
    python = python or pythons.choose(next((installed.plan(site).python for site in installed.sites()), []))
    _write(os.path.join(engine, "bin", "proot"), files.read_bytes(proot), 0o755)
    _write(os.path.join(engine, "lib", "VERSION"), _ENGINE_VERSION.encode())
    start = pkgutil.get_data("deployer.site.container.runtimes", "udocker_start.py")
    _write(os.path.join(engine, "start.py"), start or b"")
    _write(os.path.join(engine, START), _RUN.format(python=shlex.quote(python)).encode(), 0o755)
    with suppress(DeployerError):  # ranks need not compile udocker, but it also works without bytecode
        process.run([python, "-I", "-S", "-c", _COMPILE, os.path.join(engine, LIB)], _PATIENCE, check=False)


def has_udocker(manifest: Manifest) -> bool:
    """Return whether a bundle's kit has udocker."""
    return any(overlay.name == ENGINE for overlay in manifest.overlays)


def has_charliecloud(manifest: Manifest) -> bool:
    """Return whether a bundle's kit has ch-run."""
    return any(member.name.startswith(f"{KIT_PREFIX}{CHARLIECLOUD_FOLDER}/") for member in manifest.members)


def protect(rootfs: str) -> None:
    """Remove write permission from all files and folders of an image; ``remove`` restores it."""
    for folder, _, names in os.walk(rootfs, topdown=False):
        for path in [os.path.join(folder, name) for name in names] + [folder]:
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode):
                os.chmod(path, stat.S_IMODE(mode) & ~0o222)


def _write(path: str, data: bytes, mode: int = 0o644) -> None:
    with open(path, "wb") as stream:
        stream.write(data)
    os.chmod(path, mode)
