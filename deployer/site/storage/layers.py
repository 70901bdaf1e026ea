"""Layers: unpacked rootfs, each shared by all images of one user whose bundles have the same layer.

::

    ROOT/layers/KEY-UID/    rootfs/ layer.json inventory
    ROOT/images/DIGEST/     rootfs -> ../../layers/KEY-UID/rootfs

The link is the image's need for the layer; nothing is counted elsewhere. ``install`` makes the link in the folder under
construction before it looks for the layer, and the link gets its final place with the receipt, by one rename. Who
removes a layer first takes its name away, then looks for links again, and gives the name back if there is one. So one
of two processes always sees the other, and a kill at any step leaves at worst a layer that no image needs, which the
next ``install``, ``remove`` or ``gc`` removes.

Layers are not shared between users: files that the image closes to others, as in /root, would be closed to them.
"""

import hashlib
import os
import re
from contextlib import contextmanager, suppress
from typing import Collection, Iterator, List, NamedTuple, Optional, Sequence, Set

from deployer.contract import json_records
from deployer.contract.errors import IntegrityError, UsageError
from deployer.contract.manifest import Segment
from deployer.site.storage import inventory, unfinished
from deployer.site.storage.store import LAYERS, ROOTFS, Store, layer_link
from deployer.system import files

RECORD = "layer.json"
#: The number of digits of the key in the name of a layer's folder.
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


def name(frames: Sequence[Segment], read_only: bool) -> str:
    """Return the name of the folder for a layer, as this user would unpack it now.

    The key is made of what install verifies, the digest of each frame. The layer's own digest in the manifest is a mere
    claim: by it, a bundle could bring its own rootfs under another image.

    Args:
        read_only: write permission is removed from its files.
    """
    key = hashlib.sha256(("%o %d\n" % (files.umask(), read_only)).encode())  # modes depend on these
    for frame in frames:
        key.update(("%s %d %s %s\n" % (frame.sha256, frame.size, frame.raw, frame.holds)).encode())
    return "%s-%d" % (key.hexdigest()[:_DIGITS], os.geteuid())


@contextmanager
def claimed(store: Store, made: str, layer: str) -> Iterator[None]:
    """Give the image that is under construction in ``made`` its link to a layer, which may not exist yet.

    If the block fails, the link is removed, and the layer if no other image needs it.
    """
    link = os.path.join(made, ROOTFS)
    os.symlink(os.path.join("..", "..", LAYERS, layer, ROOTFS), link)
    try:
        yield
    except BaseException:
        with suppress(FileNotFoundError):  # the image has got its name, and the link with it
            os.unlink(link)
        release(store)
        raise


def publish(store: Store, layer: str, made: str, entries: int, size: int) -> Layer:
    """Give the finished layer in ``made`` its name, in place of an incomplete one."""
    record = json_records.stamped("layer", {"files": entries, "bytes": size})
    # No temporary name and no fsync, which on some file systems waits for all that was written before.
    with open(os.path.join(made, RECORD), "w", encoding="ascii") as stream:
        stream.write(json_records.pretty(record))
    inventory.write_inventory(made)
    unfinished.publish(made, os.path.join(store.layers, layer), lambda: whole(store, layer) is not None)
    return Layer(os.path.join(store.layers, layer), entries, size)


def whole(store: Store, layer: str) -> Optional[Layer]:
    """Return the layer of this name; None if there is none or it is incomplete."""
    folder = os.path.join(store.layers, layer)
    path = os.path.join(folder, RECORD)
    if not files.is_file(path):
        return None
    try:
        with files.open_regular(path) as stream:
            fields = json_records.loads(stream.read(), "layer", path, IntegrityError)
        found = Layer(folder, fields.number("files"), fields.number("bytes"))
    except IntegrityError:
        return None
    return found if not inventory.gone_of_layer(folder, found.entries).missing else None


def users(store: Store, layer: str) -> List[str]:
    """Return the folders of this user's finished images that need a layer, with or without a receipt."""
    found = []
    for name in files.names(store.images):
        folder = os.path.join(store.images, name)
        with suppress(PermissionError):  # another user's
            if not name.startswith(".") and layer_link(folder) == layer:
                found.append(folder)
    return found


def unused(store: Store, without: Collection[str] = ()) -> List[str]:
    """Return the folders of layers that no image needs, if the images in the folders ``without`` are not counted."""
    there = [name for name in files.names(store.layers) if _FOLDER.match(name)]
    needed = _needed(store, without) if there else _Needed(set(), set())
    return [os.path.join(store.layers, name) for name in there if not needed.has(name)]


def is_layer(path: str) -> bool:
    """Return whether ``path`` is that of a layer's folder, by its names."""
    parent, name = os.path.split(path)
    return os.path.basename(parent) == LAYERS and bool(_FOLDER.match(name))


def discard(folder: str) -> None:
    """Remove the layer in ``folder`` unless an image needs it."""
    store = Store(os.path.dirname(os.path.dirname(folder)))
    unfinished.discard(folder, lambda: _needed(store).has(os.path.basename(folder)))


def release(store: Store, spared: str = "") -> None:
    """Remove the layers that no image needs, but for ``spared``, if permitted: those of other users may stay."""
    for folder in unused(store):
        if os.path.basename(folder) != spared:
            with suppress(OSError, UsageError):
                discard(folder)


class _Needed(NamedTuple):
    """The names of layers that images need, and the users whose images cannot be looked at."""

    names: Set[str]
    hidden: Set[int]

    def has(self, layer: str) -> bool:
        return layer in self.names or int(layer.rpartition("-")[2]) in self.hidden


def _needed(store: Store, without: Collection[str] = ()) -> _Needed:
    """Return which layers are needed, also by images under construction."""
    while True:
        needed, renamed = _Needed(set(), set()), False
        for name in files.names(store.images):
            folder = os.path.join(store.images, name)
            if folder in without or name.startswith(unfinished.REMOVING):
                continue
            try:
                layer = layer_link(folder)
            except PermissionError:
                needed.hidden.add(_owner(folder))
                continue
            if layer:
                needed.names.add(layer)
            elif not files.lexists(folder):
                renamed = True  # perhaps to its final name, which this list does not have
        if not renamed:
            return needed


def _owner(folder: str) -> int:
    try:
        return os.lstat(folder).st_uid
    except OSError as error:
        files.refuse_unseen(folder, error)
