"""The sources of a bundle's image: a definition, an engine, a file, or a folder."""

import contextlib
import functools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployer.connected.bundle.contents import Contents
from deployer.connected.ground import progress
from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs import archive, folder, tarreader
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.connected.rootfs.entries import FileEntries
from deployer.connected.rootfs.merge import Rootfs
from deployer.connected.rootfs.tarreader import Spooled
from deployer.contract.base.errors import DeployerError, UsageError
from deployer.contract.bundle.manifest import OURS, VARIANTS, WHEELS, DataNeed

if TYPE_CHECKING:  # slow, and needed only by some sources
    import docker

    from deployer.connected.image.definition.definition import Definition
    from deployer.connected.site_profile.profile import Profile

_log = logging.getLogger("deployer.sources")


def from_definition(
    definition: "Definition", families: Sequence[str] | None = None, accept: Sequence[str] = ()
) -> Contents:
    """Return the contents for a definition: its built image, jobs, app folder, data, wheelhouse and Horovod variants.

    Args:
        families: the MPI families that must have a variant of Horovod; None: all. Existing variants are included.
        accept: codes of ``lint`` to ignore when the app folder is compared with the image.

    Raises:
        Refused: the image or a variant was not built from the current definition.
    """
    from deployer.connected.image.definition import fetched

    fetched.check_data(definition.folder, {name: data.choice for name, data in definition.hub_data.items()})
    if definition.is_data:
        return Contents(definition.name, definition.version, None, data=definition.data_folders)
    from deployer.connected.bundle.about import provenance
    from deployer.connected.image.bases import alone
    from deployer.connected.image.wheelhouse import wheelhouse

    fetched.check(definition.folder, definition.fetched)
    file = alone.ready(definition)
    image, variants = "", dict[str, Path]()
    if file is None:
        with alone.engine_or_archive(definition):
            image, variants = _built(definition, families)
        contents = from_image(image, definition.name, definition.version)
    else:
        contents = from_archive(file, definition.name, definition.version)
    needs = [DataNeed(name, data.bundle) for name, data in sorted(definition.data.items()) if data.bundle]
    carried = {f"{OURS[0]}{WHEELS}/{path.name}": path for path in wheelhouse.ready(definition)}
    carried.update({f"{OURS[0]}{VARIANTS}/{abi}/{path.name}": path for abi, path in variants.items()})
    made = functools.partial(provenance.of_definition, definition, image, file, dict(carried))
    own = provenance.carried(provenance.own_files(definition))
    carried.update({f"{provenance.PREFIX}{name}": path for name, path in own.items()})
    contents = contents._replace(
        jobs=definition.own_jobs, app=definition.app_folder, carried=carried, mpi=definition.families
    )
    if definition.horovod:
        contents = contents._replace(mpi=[abi for abi in definition.families or () if abi in variants])
    return contents._replace(
        data=definition.data_folders, needs=needs, accept=accept, lean=definition.lean, provenance=made
    )


def families_for(definition: "Definition", profiles: "Sequence[Profile]") -> list[str] | None:
    """Return the MPI families for which a definition needs variants of Horovod at some sites; None: all.

    The first family is the image's own MPI. It is always needed, because ranks may start inside-out with it.

    Raises:
        Refused: a site has none of the definition's MPI families.
    """
    if not profiles or not definition.horovod or not definition.families:
        return None
    from deployer.connected.site_profile.plan import make_plans

    label = f"{definition.name}:{definition.version}"
    used = {plan.abi for profile in profiles for plan in make_plans(profile, label, definition.families)}
    return [abi for abi in definition.families if abi in used or abi == definition.families[0]]


def _built(definition: "Definition", families: Sequence[str] | None) -> tuple[str, dict[str, Path]]:
    """Return the engine's image that was built from the current definition, and its variants of Horovod."""
    from deployer.connected.image import inputs
    from deployer.connected.image.last_build import last_build

    last, variants = last_build(definition, families)
    return inputs.current(definition, [last] if definition.horovod else [last, definition.tag]), variants


def from_image(reference: str, name: str, version: str) -> Contents:
    """Return the contents for an image in the running engine."""
    identity = functools.partial(_identity, reference)
    return Contents(name, version, functools.partial(read_image, reference), identity=identity)


def from_archive(path: Path, name: str, version: str) -> Contents:
    """Return the contents for an image file: `docker save`, OCI archive or flat tar (plain, gzip, zstd).

    The path may also be the folder of an OCI layout.
    """
    return Contents(name, version, functools.partial(archive.read_image, path))


def from_folder(path: Path, name: str, version: str) -> Contents:
    """Return the contents for a root filesystem in a folder."""
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder", "if it is a root filesystem in a file, give it with --archive")

    def read(_: Scratch) -> ArchiveImage:
        root = Rootfs()
        root.apply(folder.entries_of(str(path)), whiteouts=False)
        return ArchiveImage("", {}, root)

    return Contents(name, version, read)


# ------------------------------------------------------------------------------------------------ the engine


def read_image(reference: str, scratch: Scratch) -> ArchiveImage:
    """Return an image from the running engine. Raises MissingTool without an engine, UsageError without the image."""
    from deployer.connected.ground import engine

    with contextlib.closing(engine.connect()) as client:
        config = engine.image_config(client, reference)
        same = str(config["Id"])  # use this image even if a build moves the tag
        root = _from_layer_folders(client, same) or _from_export(client, same, config, scratch)
        return ArchiveImage(str(config["Architecture"]), config, root, _identity_of(client, config))


def _identity(reference: str) -> str:
    from deployer.connected.ground import engine

    with contextlib.closing(engine.connect()) as client:
        return _identity_of(client, engine.image_config(client, reference))


def _identity_of(client: "docker.DockerClient", config: dict[str, Any]) -> str:
    """Return the identity of an image in the engine: its record, with the digests of its layers.

    It includes the engine's address, because only that engine vouches for the digests. It also includes the way of
    reading: an export and the layers' folders have different files that flatten removes, and the manifest counts them.
    """
    from deployer.connected.ground import engine
    from deployer.connected.rootfs import imagelayers

    way = "folders" if imagelayers.layer_folders(client, str(config["Id"])) else "export"
    return json.dumps([engine.address(), way, config], sort_keys=True)


def _from_layer_folders(client: "docker.DockerClient", reference: str) -> Rootfs | None:
    """Return the image's root from the engine's layer folders, or None if impossible.

    The folders never change, and reading them takes a tenth of the time of an export. It requires root, and a local
    engine with overlay2. Anything unexpected is not an error, because the export always works.
    """
    from deployer.connected.rootfs import imagelayers

    folders = imagelayers.layer_folders(client, reference)
    if not folders:
        return None
    root = Rootfs()
    try:
        for layer in folders:
            root.apply(folder.overlay_entries(layer))
    except DeployerError as error:
        _log.debug("the engine's layers are exported: %s", error.message)
        return None
    return root


def _from_export(client: "docker.DockerClient", reference: str, config: dict[str, Any], scratch: Scratch) -> Rootfs:
    from deployer.connected.ground import engine

    root = Rootfs()
    with progress.bar("export", int(config.get("Size") or 0) or None) as advance:
        root.apply(_layer_entries(engine.rootfs_chunks(client, reference), advance, scratch), whiteouts=False)
    return root


def _layer_entries(chunks: Iterator[bytes], advance: Any, scratch: Scratch) -> FileEntries:
    chunk, position = b"", 0

    def read(size: int) -> bytes:
        nonlocal chunk, position
        if position == len(chunk):
            chunk, position = next(chunks, b""), 0
            advance(len(chunk))
        data = chunk[position : position + size]
        position += len(data)
        return data

    yield from tarreader.entries_of(Spooled(read, scratch.spool))
    for _ in chunks:  # read to the end, so the engine can close the stream
        pass
