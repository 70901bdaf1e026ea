"""Definitions whose image is only the base, in a file that is built and packed without a Docker engine.

The base is an archive or is made from Debian packages. There is no Dockerfile, no ``python`` and no ``horovod``.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from deployer.connected.image.bases import base as bases
from deployer.connected.image.bases import imported
from deployer.connected.image.definition.definition import Base, Definition
from deployer.connected.image.definition.settings import BuildSettings
from deployer.contract.base.errors import MissingTool, Refused


def build(base: Base, folder: Path, host: BuildSettings, say: Callable[[str], None], offline: bool) -> Path:
    """Return the image file. Make a Debian base if the cache lacks it.

    Args:
        folder: the definition's folder.
        host: apt's proxies and mirror.
        offline: download nothing.

    Raises:
        IntegrityError: an archive does not have the digest in the definition.
        DeployerError: an error of ``base.debian_tarball``.
    """
    return _archive(base, folder) or bases.debian_tarball(base, host, say, offline)


def ready(definition: Definition) -> Path | None:
    """Return the image file of a definition, or None if its image is in the engine.

    Raises:
        Refused: it is not built yet, or not from the current definition.
        IntegrityError: as in ``build``.
    """
    if definition.base is None or definition.needs_engine:
        return None
    path = _archive(definition.base, definition.folder) or bases.tarball_of(definition.base)
    if not path.is_file():
        hint = f"build it: {definition.again}"
        raise Refused(f"cannot pack {definition.name}:{definition.version}: it is not built", hint)
    return path


@contextlib.contextmanager
def engine_or_archive(definition: Definition) -> Iterator[None]:
    """Add the way without an engine to a MissingTool error, if the definition's image is just a registry's image."""
    try:
        yield
    except MissingTool as error:
        image = definition.base.image if definition.base else None
        if image is None or definition.dockerfile_path or definition.python or definition.horovod:
            raise
        copied = f"skopeo copy docker://{image} docker-archive:{definition.folder}/base.tar"
        raise MissingTool(
            error.message, f"{error.hint}; or do without an engine: {copied}, and write `base: {{archive: base.tar}}`"
        ) from error


def _archive(base: Base, folder: Path) -> Path | None:
    """Return the archive with the base, or None if it is made from packages."""
    if base.archive is None:
        return None
    path = folder / base.archive
    if base.sha256 is not None:
        imported.check(path, base.sha256)
    return path
