"""Bytecode for the overlays, compiled once at install with the image's own Python if a container can be started here.

Without it, each rank would compile the modules again at import and write them to the shared file system. The files are
valid regardless of their sources' times ("unchecked-hash", PEP 552), because installed overlays never change. The
bytecode is optional: the image works without it.

The bytecode is also kept in one file beside the overlays, for nodes that unpack the bundle again. Images that share
overlays also share this file.
"""

import logging
import os
import shutil
import tarfile
from typing import List, Optional, Tuple

from deployer.contract.base.errors import DeployerError
from deployer.contract.base.shell import argv
from deployer.contract.bundle.manifest import LIB, Image, Manifest
from deployer.contract.site import plan as plans
from deployer.site.capture import machine
from deployer.site.container import container, runtime_check
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container, Runtime
from deployer.site.install.kit import has_charliecloud, has_udocker
from deployer.site.storage.store import BYTECODE, VARIANTS, WHEELS
from deployer.system import files, process

_log = logging.getLogger("deployer.bytecode")

#: Seconds; a wheelhouse of 4,000 modules takes 10 to 20.
_PATIENCE = 600
#: Runtimes for the container, best first: the site's, else the bundle's.
_RUNTIMES = ("charliecloud", plans.CHARLIECLOUD_KIT, "udocker")
_SUFFIX = ".pyc"


def is_possible(manifest: Manifest) -> bool:
    """Return whether a container can probably be started here to compile a bundle's overlays.

    The runtimes in the bundle's kit are not unpacked yet, so they cannot be tested.
    """
    if manifest.image.python is None:
        return False
    return (
        has_udocker(manifest)
        or runtime_check.objection(RUNTIMES["charliecloud"], (), "") is None
        or (has_charliecloud(manifest) and machine.namespaces_denied() is None)
    )


def compile_overlays(folder: str, image: Image, jobs: int, rootfs: str, engine: str) -> None:
    """Compile the modules in the overlays in ``folder`` with ``jobs`` processes.

    Args:
        rootfs: the image's rootfs.
        engine: the folder of the kit's runtime, which may not exist.
    """
    overlays = _overlays(folder)
    if not overlays or image.python is None:
        return
    runtime = _runtime(engine)
    if runtime is None:
        return
    for source, target in overlays:
        started = Container(
            rootfs, [plans.Bind(source, target, "to compile")], container.environment_of(image), [], "/", engine
        )
        # -I -S: run only the standard library, no code from the overlay.
        command = [image.python, "-I", "-S", "-m", "compileall", "-q", "-j", str(max(1, jobs))]
        command += ["--invalidation-mode", "unchecked-hash", f"{target}/{LIB}"]
        try:
            # compileall fails on files that are not modules for this Python (templates, syntax tests): ignore that.
            process.run(argv(runtime.argv(started, command)), _PATIENCE, container.user_environment(), check=False)
        except DeployerError as error:
            _log.debug("%s has no bytecode: %s", target, error.message)
    _keep(folder, [source for source, _ in overlays])


def _runtime(engine: str) -> Optional[Runtime]:
    """Return a runtime that can start a container here, or None."""
    usable = (RUNTIMES[name] for name in _RUNTIMES if runtime_check.objection(RUNTIMES[name], (), engine) is None)
    return next(usable, None)


def size(folder: str) -> int:
    """Return the size in bytes of the bytecode file of the image in ``folder``."""
    path = os.path.join(folder, BYTECODE)
    return os.path.getsize(path) if files.is_file(path) else 0


def restore(folder: str, target: str) -> None:
    """Unpack the bytecode file of the image in ``folder`` into the copy of the image at ``target``."""
    path = os.path.join(folder, BYTECODE)
    if not files.is_file(path):
        return
    with tarfile.open(path, "r|") as archive:
        for entry in archive:
            source = archive.extractfile(entry)
            place = os.path.normpath(os.path.join(target, entry.name))
            if source and place.startswith(target + "/") and place.endswith(_SUFFIX):
                os.makedirs(os.path.dirname(place), exist_ok=True)
                with open(place, "wb") as stream:
                    shutil.copyfileobj(source, stream)


def _keep(folder: str, overlays: List[str]) -> None:
    """Write the bytecode of ``overlays`` into one file."""
    compiled = [
        os.path.join(parent, name)
        for overlay in overlays
        for parent, _, names in os.walk(overlay)
        for name in names
        if name.endswith(_SUFFIX) and os.path.basename(parent) == "__pycache__"
    ]
    if compiled:
        with tarfile.open(os.path.join(folder, BYTECODE), "w") as archive:
            for path in sorted(compiled):
                archive.add(path, os.path.relpath(path, folder))


def _overlays(folder: str) -> List[Tuple[str, str]]:
    """Return each overlay that has modules, with its path in the container."""
    variants = os.path.join(folder, VARIANTS)
    overlays = [(os.path.join(folder, WHEELS), plans.WHEELS)]
    if files.is_folder(variants):
        overlays += [(os.path.join(variants, name), plans.VARIANT) for name in sorted(os.listdir(variants))]
    return [(source, target) for source, target in overlays if files.is_folder(os.path.join(source, LIB))]
