"""Layers: unpacked content that one user's images share if their bundles contain the same.

::

    ROOT/layers/KEY-UID/    rootfs/ layer.json inventory
        ROOT/layers/KEY-UID/    wheels/ variants/ bytecode.tar layer.json inventory     the overlays, if any
        ROOT/images/DIGEST/     rootfs -> ../../layers/KEY-UID/rootfs, and similar links for the others

A link records that an image needs the layer; there is no other reference count. ``install`` makes the links in the
folder under construction before it checks for the layers. One rename later moves the links and the receipt to their
final place. To remove a layer, a process first removes its name, then checks for links again, and restores the name if
it finds a link. So one of two processes always detects the other. A process killed at any step leaves at worst a layer
that no image needs, which the next ``install``, ``remove`` or ``gc`` removes.

Layers are not shared between users, because another user could not read files that are private in the image, such as
those in /root.
"""

import hashlib
import json
import os
import re
import stat
from contextlib import contextmanager, suppress
from typing import Collection, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle.manifest import Image, Segment
from deployer.site.storage import inventory, unfinished
from deployer.site.storage.store import LAYERS, Store, layer_links
from deployer.system import files

RECORD = "layer.json"
#: Number of the key's digits in the name of a layer's folder.
_DIGITS = 32
_FOLDER = re.compile(r"[0-9a-f]{%d}-[0-9]+\Z" % _DIGITS)


class Layer(NamedTuple):
    """A complete layer.

    Attributes:
        folder: its folder.
        entries: number of files, folders and links.
        bytes: bytes of files, without holes.
    """

    folder: str
    entries: int
    bytes: int


def make_folder(store: Store) -> None:
    """Make the folder for layers.

    Raises:
        UsageError: it is not beside the folder of images, so the images' links would be broken.
    """
    images, there = os.path.realpath(store.images), os.path.realpath(store.layers)
    beside = os.path.join(os.path.dirname(images), LAYERS)
    if os.path.realpath(beside) != there:
        raise UsageError(
            f"{store.images} leads to {images}, but {store.layers} does not lead to {beside}",
            f"move what is in {store.layers}, if it exists, to {beside} and make it a link to that folder",
        )
    os.makedirs(there, exist_ok=True)


def name(frames: Sequence[Segment], read_only: bool) -> str:
    """Return the name of the folder for a rootfs with the modes that unpacking would give now.

    The key is computed from the frames' digests, which install verifies. The layer's digest in the manifest is only a
    claim: with it, a bundle could put its own rootfs under another image.

    Args:
        read_only: whether write permission is removed from its files.
    """
    key = hashlib.sha256(("%o %d\n" % (files.umask(), read_only)).encode())  # modes depend on these
    for frame in frames:
        key.update(("%s %d %s %s\n" % (frame.sha256, frame.size, frame.raw, frame.holds)).encode())
    return _named(key.hexdigest())


def name_of_overlays(rootfs: str, wheels: Sequence[Tuple[str, Sequence[Segment]]], image: Image, compiled: bool) -> str:
    """Return the name of the folder for the overlays of a bundle, in the form that install would give them now.

    Args:
        rootfs: the name of the layer with the rootfs, whose Python compiles them.
        wheels: each wheel's name in the bundle and its segments.
        compiled: whether a container can be started here, so that they will have bytecode.
    """
    key = hashlib.sha256(json.dumps(["overlays", rootfs, image.python, list(image.env), compiled]).encode())
    for member, segments in wheels:
        key.update(json.dumps([member, [[segment.sha256, segment.size] for segment in segments]]).encode())
    return _named(key.hexdigest())


def _named(key: str) -> str:
    """Return the name of this user's folder for a key."""
    return "%s-%d" % (key[:_DIGITS], os.geteuid())


@contextmanager
def claimed(store: Store, image: str, links: Mapping[str, str]) -> Iterator[None]:
    """Make the links to layers, which may not exist yet, in the folder ``image`` of an image under construction.

    If the block fails, the links are removed, and also the layers that no other image needs.

    Args:
        links: the layers, by the names of the links in the image's folder.
    """
    for shared, layer in links.items():
        link(image, shared, layer)
    try:
        yield
    except BaseException:
        for shared in links:
            with suppress(FileNotFoundError):  # the image, with its links, already has its final name
                os.unlink(os.path.join(image, shared))
        release(store)
        raise


def link(image: str, shared: str, layer: str) -> None:
    """Make the link ``shared`` to a layer's content in the folder ``image`` of an image under construction."""
    os.symlink(os.path.join("..", "..", LAYERS, layer, shared), os.path.join(image, shared))


def publish(
    store: Store, layer: str, new: str, entries: int, size: int, paths: Optional[Iterable[bytes]] = None
) -> None:
    """Give the finished layer in ``new`` its name, replacing an incomplete one; ``paths`` as in ``write_inventory``."""
    record = json_records.stamped("layer", {"files": entries, "bytes": size})
    # No temporary name and no fsync, which on some file systems waits for everything written before.
    with open(os.path.join(new, RECORD), "w", encoding="ascii") as stream:
        stream.write(json_records.pretty(record))
    inventory.write_inventory(new, paths)
    unfinished.publish(new, os.path.join(store.layers, layer), lambda: whole(store, layer) is not None)


def whole(store: Store, layer: str) -> Optional[Layer]:
    """Return this user's layer with this name; None if it is missing, incomplete, or another user's."""
    folder = os.path.join(store.layers, layer)
    path = os.path.join(folder, RECORD)
    if not _is_own(folder) or not files.is_file(path):
        return None
    try:
        with files.open_regular(path) as stream:
            fields = json_records.loads(stream.read(), "layer", path, IntegrityError)
        complete = Layer(folder, fields.number("files"), fields.number("bytes"))
    except IntegrityError:
        return None
    return complete if not inventory.gone_in(folder, 0, lambda: complete.entries).missing else None


def own(store: Store) -> List[str]:
    """Return the folders of this user's layers; other users' layers may be unreadable."""
    ending = "-%d" % os.geteuid()
    names = [name for name in files.names(store.layers) if _FOLDER.match(name) and name.endswith(ending)]
    return [folder for folder in (os.path.join(store.layers, name) for name in names) if _is_own(folder)]


def _is_own(folder: str) -> bool:
    """Return whether this user owns a layer's folder, regardless of its name."""
    state = files.status(folder, follow=False)
    return state is not None and stat.S_ISDIR(state.st_mode) and files.is_own(folder)


def users(store: Store, layer: str) -> List[str]:
    """Return the folders of this user's finished images that need a layer, with or without a receipt."""
    folders = (os.path.join(store.images, name) for name in files.names(store.images) if not name.startswith("."))
    return [folder for folder in folders if layer in layer_links(folder)]


def unused(store: Store, without: Collection[str] = ()) -> List[str]:
    """Return the folders of layers that no image needs, ignoring the images in the folders ``without``."""
    there = [name for name in files.names(store.layers) if _FOLDER.match(name)]
    needed = _needed(store, without) if there else set()
    return [os.path.join(store.layers, name) for name in there if name not in needed]


def is_layer(path: str) -> bool:
    """Return whether ``path`` has the form of a path of a layer's folder."""
    parent, name = os.path.split(path)
    return os.path.basename(parent) == LAYERS and bool(_FOLDER.match(name))


def discard(folder: str) -> None:
    """Remove the layer in ``folder`` unless an image needs it."""
    store = Store(os.path.dirname(os.path.dirname(folder)))
    unfinished.discard(folder, lambda: os.path.basename(folder) in _needed(store))


def release(store: Store, spared: Collection[str] = ()) -> None:
    """Remove the layers that no image needs, except ``spared`` and those that this user may not remove."""
    for folder in unused(store):
        if os.path.basename(folder) not in spared:
            with suppress(OSError, UsageError):
                discard(folder)


def _needed(store: Store, without: Collection[str] = ()) -> Set[str]:
    """Return the names of the layers that images need, including those under construction."""
    while True:
        needed: Set[str] = set()
        renamed = False
        for name in files.names(store.images):
            folder = os.path.join(store.images, name)
            if folder in without or name.startswith(unfinished.REMOVING):
                continue
            links = layer_links(folder)
            needed.update(links)
            if not links and not files.lexists(folder):
                renamed = True  # perhaps to its final name, which is not in this list
        if not renamed:
            return needed
