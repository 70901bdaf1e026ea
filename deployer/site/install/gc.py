"""gc: find files that are no longer needed under the root folder, and remove them."""

import os
from contextlib import suppress
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from deployer.contract.base.errors import DeployerError, Refused, Unknown
from deployer.site.container import caches
from deployer.site.container.node_folder import age
from deployer.site.install import incoming
from deployer.site.install.remove import check_rest, check_unused
from deployer.site.storage import data, layers, scans, unfinished
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files
from deployer.system.trust import verify

#: In seconds.
_DAY = 24 * 3600


class Garbage(NamedTuple):
    """A file or folder to remove.

    Attributes:
        path: its path.
        reason: why it can be removed.
        spared: why it must still be kept, or None.
    """

    path: str
    reason: str
    spared: Optional[str] = None


def find(store: Store, keep: int) -> List[Garbage]:
    """Return the files and folders that can be removed under the root folder.

    These are leftovers of interrupted installs and pushes, bundles except the last of each name, images except the
    newest ``keep`` of each name, layers that no other image needs, and their caches. An image is listed as spared if a
    job uses it or another bundle needs its data.
    """
    garbage = [
        Garbage(path, "left by an install, a removal or a run that was killed")
        for folder in (store.root, store.images, store.layers, store.jobs)
        for path in unfinished.stale(folder)
    ]
    garbage += [Garbage(path, "left by a push that was not taken up again") for path in incoming.stale(store)]
    garbage += [Garbage(path, "not the last bundle of its name") for path in _old_bundles(store)]
    # A scan is sent before its bundle.
    old = (path for path in scans.unused(store) if age(path) > _DAY)
    garbage += [Garbage(path, "the scan of a bundle that is not installed") for path in old]
    garbage += [
        Garbage(path, "the rest of an image: its receipt is gone or damaged", _objection(check_rest, store, path))
        for path in store.rests()
    ]
    kept: Dict[str, int] = {}
    for image in store.own():  # the newest first
        name = image.receipt.name
        kept[name] = kept.get(name, 0) + 1
        if kept[name] > keep:
            reason = "%s:%s, not among the newest %d of its name" % (name, image.receipt.version, keep)
            garbage.append(Garbage(image.folder, reason, _use(store, image)))
    going = {item.path for item in garbage if not item.spared}
    unused = layers.unused(store, going)
    garbage += [Garbage(path, "no image needs this layer") for path in unused]
    return garbage + [Garbage(path, "compiled for an image that is gone") for path in caches.unused(store, unused)]


def collect(garbage: List[Garbage]) -> List[Garbage]:
    """Remove everything that is not spared, and return all items."""
    return [item if item.spared else _removed(item) for item in garbage]


def _removed(item: Garbage) -> Garbage:
    with files.errors_named("remove " + item.path):
        if layers.is_layer(item.path):
            layers.discard(item.path)
        elif files.is_folder(item.path):
            unfinished.discard(item.path)
        else:
            os.unlink(item.path)
    return item


def _objection(check: Callable[[Store, Any], None], store: Store, what: Any) -> Optional[str]:
    try:
        check(store, what)
    except (Refused, Unknown) as error:
        return error.message
    return None


def _use(store: Store, image: InstalledImage) -> Optional[str]:
    objection = _objection(check_unused, store, image)
    if objection:
        return objection
    needing = data.users(store, image)
    return "{} needs its data".format(", ".join(needing)) if needing else None


def _old_bundles(store: Store) -> List[str]:
    names = files.names(store.bundles)
    paths = [os.path.join(store.bundles, name) for name in names if name.endswith(".tar")]
    known: List[Tuple[float, str, str]] = []
    for path in paths:
        # Not a bundle, or one of a newer format: it is kept.
        with suppress(DeployerError), verify.opened(path) as stream:
            known.append((os.fstat(stream.fileno()).st_mtime, path, verify.begin(stream, path).manifest.name))
    last = {name: path for _, path, name in sorted(known)}
    return [path for _, path, name in sorted(known, reverse=True) if path != last[name]]
