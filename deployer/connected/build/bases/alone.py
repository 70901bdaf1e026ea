"""Definitions whose image is only the base: a file that is built and packed without a Docker engine.

The base is made from Debian packages or is an archive. There is no Dockerfile, and neither ``python`` nor ``horovod``.
"""

from collections.abc import Callable
from pathlib import Path

from deployer.connected.build.bases import base as bases
from deployer.connected.build.bases import imported
from deployer.connected.build.definition import Base, Definition
from deployer.connected.build.settings import BuildSettings
from deployer.contract.errors import Refused


def build(base: Base, folder: Path, host: BuildSettings, say: Callable[[str], None], offline: bool) -> Path:
    """Return the image file. A Debian base is made if the cache lacks it.

    Args:
        folder: the definition's folder.
        host: apt's proxies and mirror.
        offline: download nothing.

    Raises:
        IntegrityError: an archive does not have the digest that the definition names.
        DeployerError: as ``base.debian_tarball`` raises.
    """
    return _archive(base, folder) or bases.debian_tarball(base, host, say, offline)


def ready(definition: Definition) -> Path | None:
    """Return the image file of a definition, or None if its image is in the engine.

    Raises:
        Refused: it is not built from the current definition.
        IntegrityError: as ``build`` raises.
    """
    if definition.base is None or definition.needs_engine:
        return None
    path = _archive(definition.base, definition.folder) or bases.tarball_of(definition.base)
    if not path.is_file():
        hint = f"build it: deployer build {definition.folder}"
        raise Refused(f"cannot pack {definition.name}:{definition.version}: it is not built", hint)
    return path


def _archive(base: Base, folder: Path) -> Path | None:
    """Return the archive that a base is; None if it is made of packages."""
    if base.archive is None:
        return None
    path = folder / base.archive
    if base.sha256 is not None:
        imported.check(path, base.sha256)
    return path
