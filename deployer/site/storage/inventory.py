"""What an installed image consisted of when it was installed, to say later what is gone.

Sites remove files that nobody touched for some weeks from their scratch: an image loses a part of itself, and a job on
it ends with whatever its first missing file brings about. The list is written at install and compared by names alone:
one listing of each folder, no look at the files themselves.

The list is names, relative to the image's folder, each ended by a zero byte, compressed by zlib.
"""

import itertools
import os
import zlib
from typing import Iterator, List, NamedTuple, Optional, Sequence

from deployer.contract.errors import IntegrityError
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files

LIST = "inventory"
_END = b"\0"
#: Of the list, in bytes and names. There is no longer one; the number of files is compared instead.
_MAX_NAMES = 64 * 1024 * 1024
_MAX_COUNT = 1_000_000


class Gone(NamedTuple):
    """What is missing of an image: how many entries it had, how many are gone, and the first of those by name.

    ``listed`` is false where the list is gone as well; then the image's own count of its entries speaks.
    """

    entries: int
    missing: int
    first: Sequence[str]
    listed: bool = True

    def __str__(self) -> str:
        shown = ", ".join(self.first) + (", ..." if self.missing > len(self.first) else "")
        names = ": " + shown if self.first else ""
        return "%d of its %d files and folders are gone%s" % (self.missing, self.entries, names)


def write_inventory(folder: str) -> None:
    """Write the list of all that is in the folder of an image now; none if it is longer than what is read again."""
    found = list(itertools.islice(_walk(os.fsencode(folder)), _MAX_COUNT))
    names = _END.join(sorted(found)) if len(found) < _MAX_COUNT else b""
    if not 0 < len(names) <= _MAX_NAMES:
        return
    with files.errors_named("write the list of " + folder), open(os.path.join(folder, LIST), "wb") as stream:
        stream.write(zlib.compress(names, 6))


def gone(image: InstalledImage, most: int = 3) -> Gone:
    """Return what is missing of an installed image, and the names of at most ``most`` of it."""
    listed = _read(image.folder)
    if not listed:  # an image with too many files, or from before there were lists, or whose list went as well
        entries = image.manifest().image.entries
        left = sum(1 for name in _walk(os.fsencode(image.folder)) if name.startswith(b"rootfs/"))
        return Gone(entries, max(0, entries - left), [], False)
    here = set(itertools.islice(_walk(os.fsencode(image.folder)), 2 * _MAX_COUNT))
    missing = sorted(name for name in listed if name not in here)
    return Gone(len(listed), len(missing), [name.decode("utf-8", "backslashreplace") for name in missing[:most]])


def whole(store: Store, digest: str) -> Optional[InstalledImage]:
    """Return the installed image of the bundle with this digest, None where there is none or a part of it is gone."""
    image = store.at(store.image_folder(digest))
    return image if image and not gone(image).missing else None


def check(store: Store, image: InstalledImage) -> Gone:
    """Return what ``gone`` does where nothing is missing; raises IntegrityError, with what repairs it, elsewhere."""
    found = gone(image)
    if found.missing:
        raise IntegrityError("%s:%s: %s" % (image.receipt.name, image.receipt.version, found), remedy(store, image))
    return found


def remedy(store: Store, image: InstalledImage) -> str:
    """Return what makes an image whole again."""
    bundle = store.bundle(image.receipt)
    again = "`install %s`" % bundle if files.is_file(bundle) else "push the bundle again, or `install BUNDLE.tar`"
    return "%s installs it anew; the site removes old files there: see purge_days in its profile" % again


def _read(folder: str) -> List[bytes]:
    try:
        with files.open_regular(os.path.join(folder, LIST)) as stream:
            whole = zlib.decompressobj()
            names = whole.decompress(stream.read(_MAX_NAMES), _MAX_NAMES)
            return names.split(_END) if whole.eof else []
    except (FileNotFoundError, zlib.error):  # none, or a damaged one: of an older deployer, or purged
        return []


def _walk(folder: bytes) -> Iterator[bytes]:
    """Yield the names of all below ``folder`` but the list itself, relative to it; links are not followed."""
    pending = [b""]
    while pending:
        within = pending.pop()
        try:
            entries = list(os.scandir(os.path.join(folder, within)))
        except FileNotFoundError:
            continue  # a folder that went since its parent was read: so is what was in it
        for entry in entries:
            name = os.path.join(within, entry.name)
            if name == LIST.encode():
                continue
            yield name
            if entry.is_dir(follow_symlinks=False):
                pending.append(name)
