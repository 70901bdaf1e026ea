"""The layers of an image in the engine, one by one: from the folders in which it keeps them, else saved."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker

from deployer.connected import archive, folder, progress
from deployer.connected.builders import engine
from deployer.connected.members import Members
from deployer.connected.scratch import Scratch


@contextlib.contextmanager
def opened(client: docker.DockerClient, reference: str) -> Iterator[Iterator[Members]]:
    """Yield an image's layers, the lowest first; they can be read until the block ends."""
    folders = layer_folders(client, reference)
    if folders:
        yield (folder.overlay_members(layer) for layer in folders)
        return
    with Scratch(Path(tempfile.gettempdir())) as scratch, tempfile.NamedTemporaryFile() as saved:
        size = int(engine.image_config(client, reference).get("Size") or 0)
        with engine.errors_named(client, f"save {reference}"), progress.bar("read layers", size or None) as advance:
            for chunk in client.api.get_image(reference):
                saved.write(chunk)
                advance(len(chunk))
        saved.flush()
        layered = archive.layered(Path(saved.name), scratch)
        yield (archive.members(part, scratch) for part, _ in (layered.layers if layered else ()))


def layer_folders(client: docker.DockerClient, reference: str) -> list[str]:
    """Return the folders in which an engine on this machine keeps the layers of an image, the lowest first.

    They never change. Only root may read them, and only where the engine uses overlay2; else there are none.
    """
    with engine.errors_named(client, f"inspect {reference}"):
        driver: dict[str, Any] = engine.inspect(client, reference).get("GraphDriver") or {}
    data = driver.get("Data") or {}
    lower = [path for path in str(data.get("LowerDir") or "").split(":") if path]
    folders = [*reversed(lower), str(data.get("UpperDir") or "")]
    usable = driver.get("Name") == "overlay2" and os.geteuid() == 0 and all(map(os.path.isdir, folders))
    return folders if usable else []
