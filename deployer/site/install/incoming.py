"""The segments that are already at a site: in kept bundles and in parts that arrived.

::

    ROOT/bundles/*.tar              kept bundles
    ROOT/incoming/DIGEST/*.part     parts of that bundle; *.end is its manifest (``contract.bundle.delta``)
    ROOT/incoming/DIGEST/*.begun    the beginning of that bundle, instead of parts, see arriving.py
    ROOT/incoming/DIGEST/bundle.tar the assembled bundle, not yet installed
"""

import fcntl
import logging
import math
import os
import shutil
import stat
import time
from contextlib import suppress
from typing import IO, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Union

from deployer.contract.base.errors import DeployerError, IntegrityError, TransferError, UsageError
from deployer.contract.bundle import delta, sealed_file
from deployer.contract.bundle.delta import Ending, Part, Range
from deployer.contract.bundle.manifest import Manifest
from deployer.site.container.node_folder import age
from deployer.site.storage.store import Store
from deployer.system import files
from deployer.system.trust.verify import opened, read_manifest_block, read_seal

BUNDLE = "bundle.tar"
BEGUN = ".begun"
_CHUNK = 1024 * 1024
_MAX_LINE = 64
_AGAIN = "push again: complete parts are not sent again"
#: The hint if the disk is full.
NO_SPACE = "free some space or quota and push or receive again: received parts stay"
_log = logging.getLogger("deployer.incoming")

#: Seconds after which a push counts as abandoned and is removed; an active push writes much more often.
_STALE = 14 * 24 * 3600
_STALE_TEMPORARY = 3600
#: Without locks, a partial file that is unchanged for this many seconds has no writer: ssh times out earlier.
_RESTS = 120


class SegmentSource(NamedTuple):
    """Where a segment's bytes are.

    Attributes:
        path: the file.
        offset: bytes from its start.
    """

    path: str
    offset: int


class Begun(NamedTuple):
    """A file with the beginning of a bundle.

    Attributes:
        path: the file.
        size: its size in bytes, which may still grow.
    """

    path: str
    size: int


class Parcel(NamedTuple):
    """A bundle that is arriving.

    Attributes:
        folder: the folder of its parts.
        ending: the bytes of its manifest and tail.
        seal: the seal in the ending.
        manifest: the manifest in the ending.
        parts: the parts that have arrived.
        begun: the partial files that have arrived, longest first.
    """

    folder: str
    ending: bytes
    seal: sealed_file.Seal
    manifest: Manifest
    parts: List[Part]
    begun: Sequence[Begun] = ()

    @property
    def arrived(self) -> int:
        """The bytes that have arrived."""
        return sum(part.size for part in self.parts) + sum(begun.size for begun in self.begun)

    def path(self, part: Part) -> str:
        """Return the path of a part."""
        return os.path.join(self.folder, part.name)

    def sources(self) -> Dict[str, SegmentSource]:
        """Return the place of each segment in parts and partial files, by its SHA-256, according to their sizes."""
        places: Dict[str, SegmentSource] = {}
        segments = iter(self.manifest.segments)
        segment = next(segments, None)
        for part in self.parts:
            while segment and segment.offset < part.offset:
                segment = next(segments, None)
            while segment and segment.offset + segment.size <= part.end:
                places[segment.sha256] = SegmentSource(self.path(part), segment.offset - part.offset)
                segment = next(segments, None)
        for path, size in self.begun[:1]:  # the shorter ones have nothing more
            for segment in self.manifest.segments:
                if segment.offset + segment.size > size:
                    break
                places.setdefault(segment.sha256, SegmentSource(path, segment.offset))
        return places

    def remove_parts(self) -> None:
        """Remove everything except the manifest, which a receive needs to continue from the assembled bundle.

        A partial file that another push is still writing is kept too.
        """
        for part in self.parts:
            os.unlink(self.path(part))
        for begun in self.begun:
            remove_unlocked(begun.path)


def folder_of(store: Store, digest: str) -> str:
    """Return the folder for the parts of the bundle with this digest. Raises UsageError if the digest is invalid."""
    short = digest.rpartition(":")[2][:32]
    if not short or any(letter not in "0123456789abcdef" for letter in short):
        raise UsageError(f"{digest!r} is not a digest")
    return os.path.join(store.incoming, short)


def open_parcel(folder: str) -> Parcel:
    """Read the parcel in ``folder``. Raises UsageError if it has no manifest, IntegrityError if it is damaged."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        hint = "give the folder that push --to wrote"
        raise UsageError(f"cannot read {folder}: {error.strerror}", hint) from error
    places = [place for place in map(delta.read_name, names) if place]
    endings = [place for place in places if isinstance(place, Ending)]
    if len(endings) != 1:
        hint = "give the folder that push --to wrote, with all its files"
        if any(name.endswith(delta.ENCRYPTED) for name in names):
            hint = "it is encrypted: install it with `receive`, then inspect the installed image"
        what = "no bundle's parts" if not endings else "parts of several bundles"
        raise UsageError(f"{folder} contains {what}", hint)
    place = endings[0]
    path = os.path.join(folder, place.name)
    with files.errors_named("read " + path), files.open_regular(path) as stream:
        data = stream.read(sealed_file.MAX_MANIFEST)
    ending, seal, manifest = delta.decompress(data, place)
    parts = parts_in(folder)
    paths = [os.path.join(folder, name) for name in names if name.endswith(BEGUN)]
    # Another push may have renamed or removed a file.
    states = [(path, files.status(path, follow=False)) for path in paths]
    begun = [Begun(path=path, size=state.st_size) for path, state in states if state and stat.S_ISREG(state.st_mode)]
    begun.sort(key=lambda beginning: -beginning.size)
    return Parcel(folder=folder, ending=ending, seal=seal, manifest=manifest, parts=parts, begun=begun)


def parts_in(folder: str) -> List[Part]:
    """Return the complete parts in a folder, in order."""
    places = map(delta.read_name, files.names(folder))
    parts = (place for place in places if isinstance(place, Part))
    return sorted(part for part in parts if os.path.getsize(os.path.join(folder, part.name)) == part.size)


def remove_unlocked(path: str, damaged: bool = False) -> None:
    """Remove a partial file, unless a push is still writing it.

    Args:
        damaged: the next push cannot use the file, so remove it even if only its age could reveal an active push.
    """
    with suppress(OSError):  # it is gone, another user's, or not a file
        # An exclusive lock on NFS requires a file that is open for writing.
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            state = os.fstat(descriptor)
            rests = damaged or time.time() - state.st_mtime > _RESTS
            if stat.S_ISREG(state.st_mode) and lock(descriptor, rests):
                os.unlink(path)
        finally:
            os.close(descriptor)


def lock(opened: Union[int, IO[bytes]], without: bool = True) -> bool:
    """Lock a partial file, and return whether no other push has locked it.

    Args:
        without: the answer on a file system without locks.
    """
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without
    return True


def kept(store: Store) -> Dict[str, SegmentSource]:
    """Return the place of each segment in the kept bundles, by its SHA-256, according to their tables.

    The bytes are hashed when they are used. A file that is not a bundle, or has a newer format, is ignored.
    """
    segments: Dict[str, SegmentSource] = {}
    for path in _bundles(store):
        try:
            with opened(path) as stream:
                seal = read_seal(stream, path)
                manifest = sealed_file.read_manifest(read_manifest_block(stream, seal), seal)
        except DeployerError as error:
            _log.debug("%s holds nothing: %s", path, error.message)
            continue
        for segment in manifest.segments:
            segments.setdefault(segment.sha256, SegmentSource(path, segment.offset))
    return segments


def _bundles(store: Store) -> Iterator[str]:
    for name in files.names(store.bundles):
        if name.endswith(".tar"):
            yield os.path.join(store.bundles, name)
    for name in files.names(store.incoming):
        path = os.path.join(store.incoming, name, BUNDLE)
        if files.is_file(path):
            yield path


def held(store: Store, digest: str) -> Iterable[str]:
    """Return the SHA-256 of each segment of the bundle with this digest that need not be sent."""
    digests = set(kept(store))
    # The push sends the manifest first, so it is missing if nothing has arrived, or if another push has just ended.
    try:
        with suppress(UsageError, IntegrityError, FileNotFoundError):
            digests |= set(open_parcel(folder_of(store, digest)).sources())
    except DeployerError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    return digests


def take(stream: IO[bytes], store: Store, digest: str, share: float = math.inf) -> bool:
    """Write the parts from ``stream`` into their folder, and return whether all have arrived.

    Each part consists of a line ``NAME SIZE`` and SIZE bytes, and gets its name when it is complete. ``delta.END``
    follows the last part.

    Args:
        share: stop when more than this share of the bundle has arrived.

    Raises:
        TransferError: the stream ended before ``delta.END``. All complete parts are kept.
        SpaceError: the disk is full.
    """
    folder = folder_of(store, digest)
    whole = came = 0
    for announced in announcements(stream):
        # Not flushed: its size or digests reveal a part emptied by a power failure, and it is sent again.
        with files.published(os.path.join(folder, announced.name), flushed=False, hint=NO_SPACE) as target:
            copy(stream, target, announced.size)
        came += announced.size
        if isinstance(announced.place, Ending):
            whole = announced.place.offset
        if whole and came > whole * share:
            return False
    return True


def take_ahead(stream: IO[bytes], store: Store, token: str) -> None:
    """Take parts of a bundle whose digest is not known yet, as ``take`` does. After an error, none is kept."""
    try:
        take(stream, store, token)
    except DeployerError:
        discard(store, token)
        raise


def adopted(store: Store, token: str, digest: str) -> List[Part]:
    """Move the parts that came ahead to the folder of their bundle, and return them."""
    came, target = folder_of(store, token), folder_of(store, digest)
    parts = parts_in(came)
    with files.errors_named("move " + came):
        os.makedirs(target, exist_ok=True)
        for part in parts:
            os.rename(os.path.join(came, part.name), os.path.join(target, part.name))
    discard(store, token)
    return parts


class Announced(NamedTuple):
    """The header of the next item on a stream.

    Attributes:
        name: the name of the part or the ending.
        place: its place in the bundle.
        size: the number of bytes that follow: the part, or the compressed ending.
    """

    name: str
    place: Range
    size: int


def announcements(stream: IO[bytes]) -> Iterator[Announced]:
    """Yield the headers up to ``delta.END``; the caller reads each item from ``stream``. Raises TransferError."""
    while True:
        line = stream.readline(_MAX_LINE)
        if line == delta.END:
            return
        if not line.endswith(b"\n") and len(line) < _MAX_LINE:
            raise TransferError("the connection closed between two parts", _AGAIN)
        name, _, size = line.decode("ascii", "replace").rstrip("\n").partition(" ")
        place = delta.read_name(name)
        if not line.endswith(b"\n") or not size.isdigit() or place is None:
            raise not_a_part(line)
        yield Announced(name, place, int(size))


def not_a_part(received: object) -> TransferError:
    """Return the error for unexpected content on a stream."""
    return TransferError(f"received {received!r} instead of a part", "does the site's login shell read from stdin?")


def copy(source: IO[bytes], target: IO[bytes], size: int) -> None:
    """Copy ``size`` bytes to an open file. Raises TransferError if the source ends too early."""
    while size:
        chunk = source.read(min(size, _CHUNK))
        if not chunk:
            raise TransferError("the connection closed inside a part", _AGAIN)
        size -= len(chunk)
        write(target, chunk)


def write(target: IO[bytes], data: bytes) -> None:
    """Write all of ``data`` to a file, which may be unbuffered."""
    view = memoryview(data)
    while view:
        view = view[target.write(view) :]


def discard(store: Store, digest: str) -> None:
    """Remove the parts of an installed bundle. Parts that cannot be removed are left to ``remove_stale``."""
    folder = folder_of(store, digest)
    try:
        files.remove_tree(folder)
    except (DeployerError, OSError) as error:
        _log.debug("%s stays: %s", folder, error)


def stale(store: Store) -> Iterator[str]:
    """Yield abandoned pushes, and unfinished files of killed ``take`` and ``receive`` processes."""
    for name in files.names(store.incoming):
        folder = os.path.join(store.incoming, name)
        if age(folder) > _STALE:
            yield folder
            continue
        for below in files.names(folder):
            path = os.path.join(folder, below)
            named = below == BUNDLE or below.endswith(BEGUN) or delta.read_name(below) or delta.MEDIUM_NAME.match(below)
            if not named and age(path) > _STALE_TEMPORARY:
                yield path


def remove_stale(store: Store) -> None:
    """Remove what ``stale`` yields. Call this before ``held``, because the push does not send what ``held`` lists."""
    for path in list(stale(store)):
        if files.is_folder(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # another push was faster, or it is another user's
                os.unlink(path)
