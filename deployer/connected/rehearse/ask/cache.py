"""Remove everything that rehearsals keep: the folder in the cache and the volume in the Docker engine."""

import contextlib
import fcntl
from collections.abc import Callable

from docker.errors import APIError, NotFound

from deployer.connected.ground import caches, engine
from deployer.connected.rehearse.ask.container import KEPT, reap, volume_name, volume_record
from deployer.contract.base.errors import MissingTool, Refused
from deployer.system import files

#: The root folder of the simulated site in the cache.
ROOT = "root"
_BUSY = "wait until it has ended"


def remove(dry_run: bool, warn: Callable[[str], None]) -> caches.Pruned:
    """Remove the folder and the volume.

    Args:
        dry_run: only return the size of the folder, without removing anything.
        warn: receives a warning for each thing that could not be removed.

    Raises:
        Refused: a rehearsal is running.
    """
    folder = caches.REHEARSE.folder
    held = caches.usage(caches.REHEARSE)
    was_used = volume_record().is_file() or (folder / KEPT).is_dir()
    if dry_run and was_used:
        warn(f"the size of the Docker volume {volume_name()} is not counted")
    if not dry_run and files.is_folder(str(folder)):
        with open(folder / "used", "a") as used:
            try:
                fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused("a rehearsal runs", _BUSY) from None
            if was_used:
                _remove_volume(warn)
            files.remove_tree(str(folder))
    return caches.Pruned(held.cache.name, held.entries, held.bytes)


def _remove_volume(warn: Callable[[str], None]) -> None:
    """Remove the volume, which a rehearsal has used."""
    name = volume_name()
    try:
        client = engine.connect()
    except MissingTool as error:
        warn(f"the Docker volume {name} is left: {error.message}")
        return
    with contextlib.closing(client), engine.errors_named(client, f"remove the volume {name}"):
        reap(client, name)  # a container that was never started keeps the volume in use
        try:
            client.api.remove_volume(name)
        except NotFound:
            pass
        except APIError as error:
            if error.status_code != 409:
                raise
            raise Refused(f"a rehearsal uses the Docker volume {name}", _BUSY) from error
