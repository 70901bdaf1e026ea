"""Layers: what is unpacked once for all images of one user whose bundles have the same.

::

    ROOT/layers/KEY-UID/    rootfs/ layer.json inventory
    ROOT/layers/KEY-UID/    wheels/ variants/ bytecode.tar layer.json inventory     the overlays, if there are any
    ROOT/images/DIGEST/     rootfs -> ../../layers/KEY-UID/rootfs, and a link of the same form for each of the others

A link is the image's need for the layer; nothing is counted elsewhere. ``install`` makes the links in the folder under
construction before it looks for the layers, and they get their final place with the receipt, by one rename. Who
removes a layer first takes its name away, then looks for links again, and gives the name back if there is one. So one
of two processes always sees the other, and a kill at any step leaves at worst a layer that no image needs, which the
next ``install``, ``remove`` or ``gc`` removes.

Layers are not shared between users: files that the image closes to others, as in /root, would be closed to them.
"""

import hashlib
import json
import os
import re
import stat
from contextlib import contextmanager, suppress
from typing import Collection, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from deployer.contract import json_records
from deployer.contract.errors import IntegrityError, UsageError
from deployer.contract.manifest import Image, Segment
from deployer.site.storage import inventory, unfinished
from deployer.site.storage.store import LAYERS, Store, layer_links
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


def make_folder(store: Store) -> None:
    """Make the folder of layers.

    Raises:
        UsageError: it is not beside the folder of images, so an image's links would lead to nothing.
    """
    images, there = os.path.realpath(store.images), os.path.realpath(store.layers)
    beside = os.path.join(os.path.dirname(images), LAYERS)
    if os.path.realpath(beside) != there:
        raise UsageError(
            "%s leads to %s, but %s does not lead to %s" % (store.images, images, store.layers, beside),
            "move what is in %s, if it exists, to %s and make it a link to that folder" % (store.layers, beside),
        )
    os.makedirs(there, exist_ok=True)


def name(frames: Sequence[Segment], read_only: bool) -> str:
    """Return the name of the folder for a rootfs, as this user would unpack it now.

    The key is made of what install verifies, the digest of each frame. The layer's own digest in the manifest is a mere
    claim: by it, a bundle could bring its own rootfs under another image.

    Args:
        read_only: write permission is removed from its files.
    """
    key = hashlib.sha256(("%o %d\n" % (files.umask(), read_only)).encode())  # modes depend on these
    for frame in frames:
        key.update(("%s %d %s %s\n" % (frame.sha256, frame.size, frame.raw, frame.holds)).encode())
    return _named(key.hexdigest())


def name_of_overlays(rootfs: str, wheels: Sequence[Tuple[str, Sequence[Segment]]], image: Image, compiled: bool) -> str:
    """Return the name of the folder for the overlays of a bundle, as this user would unpack and compile them now.

    Args:
        rootfs: the name of the layer with the rootfs, whose Python compiles them.
        wheels: each wheel's name in the bundle and its segments.
        compiled: a container can be started here, so they will have bytecode.
    """
    key = hashlib.sha256(json.dumps(["overlays", rootfs, image.python, list(image.env), compiled]).encode())
    for member, segments in wheels:
        key.update(json.dumps([member, [[segment.sha256, segment.size] for segment in segments]]).encode())
    return _named(key.hexdigest())


def _named(key: str) -> str:
    """Return the name of this user's folder for what has a key."""
    return "%s-%d" % (key[:_DIGITS], os.geteuid())


@contextmanager
def claimed(store: Store, image: str, links: Mapping[str, str]) -> Iterator[None]:
    """Give the image that is under construction in ``image`` its links to layers, which may not exist yet.

    If the block fails, the links are removed, and the layers if no other image needs them.

    Args:
        links: by the name in the image's folder: the layer.
    """
    for shared, layer in links.items():
        link(image, shared, layer)
    try:
        yield
    except BaseException:
        for shared in links:
            with suppress(FileNotFoundError):  # the image has got its name, and the link with it
                os.unlink(os.path.join(image, shared))
        release(store)
        raise


def link(image: str, shared: str, layer: str) -> None:
    """Make the link ``shared`` of the image that is under construction in ``image`` to what a layer has."""
    os.symlink(os.path.join("..", "..", LAYERS, layer, shared), os.path.join(image, shared))


def publish(store: Store, layer: str, new: str, entries: int, size: int) -> None:
    """Give the finished layer in ``new`` its name, in place of an incomplete one."""
    record = json_records.stamped("layer", {"files": entries, "bytes": size})
    # No temporary name and no fsync, which on some file systems waits for all that was written before.
    with open(os.path.join(new, RECORD), "w", encoding="ascii") as stream:
        stream.write(json_records.pretty(record))
    inventory.write_inventory(new)
    folder = os.path.join(store.layers, layer)
    _clear(folder)
    unfinished.publish(new, folder, lambda: whole(store, layer) is not None)


def _clear(folder: str) -> None:
    """Take away what another user put in the place of this user's layer, or at least its name."""
    state = files.status(folder, follow=False)
    if state is None or _is_own(folder):
        return
    with suppress(OSError, UsageError):  # what is in it may not be ours to remove
        if stat.S_ISDIR(state.st_mode):
            unfinished.discard(folder)
        else:
            os.unlink(folder)


def whole(store: Store, layer: str) -> Optional[Layer]:
    """Return this user's layer of this name; None if there is none, it is incomplete, or another user made it.

    In a root folder of a group, any member can make a folder of this name.
    """
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
    """Return the folders of this user's layers. Those of others may be closed to this user."""
    ending = "-%d" % os.geteuid()
    names = [name for name in files.names(store.layers) if _FOLDER.match(name) and name.endswith(ending)]
    return [folder for folder in (os.path.join(store.layers, name) for name in names) if _is_own(folder)]


def _is_own(folder: str) -> bool:
    """Return whether a layer's folder is really this user's, whatever its name says."""
    state = files.status(folder, follow=False)
    return state is not None and stat.S_ISDIR(state.st_mode) and files.is_own(folder)


def users(store: Store, layer: str) -> List[str]:
    """Return the folders of this user's finished images that need a layer, with or without a receipt."""
    folders = []
    for name in files.names(store.images):
        folder = os.path.join(store.images, name)
        with suppress(PermissionError):  # another user's
            if not name.startswith(".") and layer in layer_links(folder):
                folders.append(folder)
    return folders


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


def release(store: Store, spared: Collection[str] = ()) -> None:
    """Remove the layers that no image needs, but for ``spared``, if permitted: those of other users may stay."""
    for folder in unused(store):
        if os.path.basename(folder) not in spared:
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
                links = layer_links(folder)
            except PermissionError:
                needed.hidden.add(_owner(folder))
                continue
            needed.names.update(links)
            if not links and not files.lexists(folder):
                renamed = True  # perhaps to its final name, which this list does not have
        if not renamed:
            return needed


def _owner(folder: str) -> int:
    try:
        return os.lstat(folder).st_uid
    except OSError as error:
        files.refuse_unseen(folder, error)
