"""The layers of an image in the engine, read from the engine's folders if possible, otherwise saved as a tar."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker

from deployer.connected.ground import engine, progress
from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs import archive, folder
from deployer.connected.rootfs.entries import FileEntries, FileEntry
from deployer.system import files


@contextlib.contextmanager
def opened(client: docker.DockerClient, reference: str) -> Iterator[Iterator[FileEntries]]:
    """Yield an image's layers, lowest first. They can be read until the block ends."""
    layers: list[list[FileEntry]] = []
    with contextlib.suppress(folder.ForeignOverlay):  # then save the image
        layers = [list(folder.overlay_entries(layer)) for layer in layer_folders(client, reference)]
    if layers:
        yield map(iter, layers)
        return
    with Scratch(Path(tempfile.gettempdir())) as scratch, tempfile.NamedTemporaryFile() as saved:
        size = int(engine.image_config(client, reference).get("Size") or 0)
        in_folder = files.errors_named(f"save {reference} in {tempfile.gettempdir()}", "set TMPDIR")
        of_engine = engine.errors_named(client, f"save {reference}")
        with in_folder, of_engine, progress.bar("read layers", size or None) as advance:
            for chunk in client.api.get_image(reference):
                saved.write(chunk)
                advance(len(chunk))
        saved.flush()
        layered = archive.layered(Path(saved.name), scratch)
        yield (archive.entries_of(part, scratch) for part, _ in (layered.layers if layered else ()))


def layer_folders(client: docker.DockerClient, reference: str) -> list[str]:
    """Return the folders of an image's layers in the engine on this machine, lowest first.

    They never change. The list is empty unless the engine uses overlay2 and this process can read them as root.
    """
    with engine.errors_named(client, f"inspect {reference}"):
        driver: dict[str, Any] = engine.inspect(client, reference).get("GraphDriver") or {}
    data = driver.get("Data") or {}
    lower = [path for path in str(data.get("LowerDir") or "").split(":") if path]
    folders = [*reversed(lower), str(data.get("UpperDir") or "")]
    usable = driver.get("Name") == "overlay2" and os.geteuid() == 0 and all(map(files.is_folder, folders))
    return folders if usable else []
