"""The list of an image's files, written at install to detect missing files later.

Sites remove scratch files that were not used for some weeks. An image may then lose some of its files, and a job fails
at the first missing one. Only names are compared: each folder is read once, and its files are not read.

An image and each layer that it shares have separate lists: names relative to the folder, each followed by a zero byte,
compressed with zlib.
"""

import itertools
import os
import zlib
from typing import Callable, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Sequence

from deployer.contract.base.errors import IntegrityError
from deployer.site.storage import frames
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files

LIST = "inventory"
#: Not in the list, because an image is complete without them.
_LISTS = (LIST.encode(), frames.LIST.encode())
_END = b"\0"
_ROOTFS = b"rootfs/"
#: Maximum bytes of names in the list. If there are more, no list is written, and only the number of files is compared.
_MAX_NAMES = 64 * 1024 * 1024
_MAX_COUNT = 1_000_000


class Gone(NamedTuple):
    """The files that an image lacks.

    Attributes:
        entries: number of files and folders that it had.
        missing: number of those that are missing.
        first: the first missing names; empty if the list itself is missing.
    """

    entries: int
    missing: int
    first: Sequence[str]

    def __str__(self) -> str:
        shown = ", ".join(self.first) + (", ..." if self.missing > len(self.first) else "")
        names = ": " + shown if self.first else ""
        return "%d of its %d files and folders are gone%s" % (self.missing, self.entries, names)


def write_inventory(folder: str, paths: Optional[Iterable[bytes]] = None) -> None:
    """Write the list of all content of an image's or layer's folder, unless it would be too long.

    Args:
        paths: all paths in its rootfs, if they are known: reading thousands of folders takes long.
    """
    top = os.fsencode(folder)
    if paths is None:
        entries = list(itertools.islice(_walk(top, []), _MAX_COUNT))
    else:
        entries = [name for name in os.listdir(top) if name not in _LISTS]
        entries += [_ROOTFS + path for path in itertools.islice(paths, _MAX_COUNT)]
    names = _END.join(sorted(entries)) if len(entries) < _MAX_COUNT else b""
    if not 0 < len(names) <= _MAX_NAMES:
        return
    with files.errors_named("write the list of " + folder), open(os.path.join(folder, LIST), "wb") as stream:
        stream.write(zlib.compress(names, 1))


def gone(image: InstalledImage, most: int = 3) -> Gone:
    """Return what an installed image and its layers lack, with at most ``most`` names."""
    shared = image.layers
    rootfs = shared[0] if shared else image.folder
    parts = [gone_in(folder, most, lambda: 0) for folder in (image.folder, *shared) if folder != rootfs]
    parts.append(gone_in(rootfs, most, lambda: image.manifest().image.entries))
    first = sorted(name for part in parts for name in part.first)[:most]
    return Gone(sum(part.entries for part in parts), sum(part.missing for part in parts), first)


def gone_in(folder: str, most: int, count: Callable[[], int]) -> Gone:
    """Return what a folder lacks; without a list, ``count`` returns the number of entries in its rootfs."""
    listed, hidden = _read(folder), []  # type: List[bytes], List[bytes]
    here = _walk(os.fsencode(folder), hidden)
    if not listed:  # too many files, or the list is missing too
        entries = count()
        left = sum(1 for name in here if name.startswith(_ROOTFS))
        return Gone(entries, 0 if hidden else max(0, entries - left), [])
    away = set(listed) - set(itertools.islice(here, 2 * _MAX_COUNT))
    missing = sorted(name for name in away if not name.startswith(tuple(hidden)))
    return Gone(len(listed), len(missing), [name.decode("utf-8", "backslashreplace") for name in missing[:most]])


def rootfs_names(image: InstalledImage) -> FrozenSet[bytes]:
    """Return all names, relative to the rootfs, that an image's layer contained; empty if they are not known.

    Mount points that were made for an image or a plan are not included.
    """
    listed = _read(image.layers[0]) if image.layers else []
    return frozenset(name[len(_ROOTFS) :] for name in listed if name.startswith(_ROOTFS))


def whole(store: Store, digest: str) -> Optional[InstalledImage]:
    """Return the installed image of the bundle with this digest; None if it is missing or incomplete."""
    image = store.at(store.image_folder(digest))
    return image if image and not gone(image).missing else None


def check(image: InstalledImage) -> Gone:
    """Return ``gone`` if nothing is missing; otherwise raise IntegrityError with the remedy."""
    missing = gone(image)
    if missing.missing:
        raise IntegrityError(f"{image.receipt.label}: {missing}", remedy(image))
    return missing


def remedy(image: InstalledImage) -> str:
    """Return how to make an image complete again."""
    bundle = image.bundle
    again = f"`install {bundle}`" if files.is_file(bundle) else "push the bundle again, or `install BUNDLE.tar`"
    return f"{again} installs it again; the site removes old files there: see purge_days in its profile"


def _read(folder: str) -> List[bytes]:
    try:
        return frames.inflated(os.path.join(folder, LIST), _MAX_NAMES).split(_END)
    except (FileNotFoundError, zlib.error):  # purged or damaged
        return []


def _walk(folder: bytes, hidden: List[bytes]) -> Iterator[bytes]:
    """Yield all names below ``folder``, relative to it, except the lists; links are not followed.

    Args:
        hidden: receives the folders that this user may not read, such as /root in a group's image.
    """
    pending = [b""]
    while pending:
        within = pending.pop()
        try:
            scanned = list(os.scandir(os.path.join(folder, within)))
        except FileNotFoundError:
            continue  # the folder was removed after its parent was read
        except PermissionError:
            if not within:
                raise
            hidden.append(within)
            continue
        entries = scanned if within else [entry for entry in scanned if entry.name not in _LISTS]
        yield from [within + entry.name for entry in entries]
        pending += [within + entry.name + b"/" for entry in entries if entry.is_dir(follow_symlinks=False)]
