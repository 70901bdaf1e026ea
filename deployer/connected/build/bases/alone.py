"""A definition that is its base alone: its image is a file, which needs no Docker engine to be built or packed.

The base is made of Debian packages or is an archive. There is no Dockerfile, and neither ``python`` nor ``horovod``.
"""

from collections.abc import Callable
from pathlib import Path

from deployer.connected.build.bases import base as bases
from deployer.connected.build.bases import imported
from deployer.connected.build.definition import Base, Definition
from deployer.connected.build.settings import BuildSettings
from deployer.contract.errors import Refused


def build(base: Base, folder: Path, host: BuildSettings, say: Callable[[str], None], offline: bool) -> Path:
    """Return the file that is the image, made if need be. ``folder`` is the definition's.

    Raises IntegrityError if an archive is not the one that the definition names, and what ``base.debian`` raises.
    """
    return _archive(base, folder) or bases.debian_tarball(base, host, say, offline)


def ready(definition: Definition) -> Path | None:
    """Return the file that is the image of a definition as it is now; None if it needs the engine.

    Raises Refused if it is not built, and IntegrityError as ``build`` does.
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
