"""receive: assemble a bundle from parts and kept bundles, bit for bit, then install and keep it.

The digests in the segment table cover every byte, and install verifies the complete file. Therefore, after a small
transfer, segments of kept bundles are copied unchecked. If install then finds a damaged segment, the file is assembled
again with checks, to identify the damaged source. Parts that arrived are always checked when they are copied.
"""

import errno
import hashlib
import os
from contextlib import closing, contextmanager, suppress
from typing import IO, Iterable, Iterator, Optional, Sequence

from deployer.contract.base.errors import DeployerError, IntegrityError, TransferError, UsageError
from deployer.contract.bundle import delta
from deployer.contract.bundle.manifest import Segment
from deployer.site.install import incoming
from deployer.site.install.content import InstallProgress
from deployer.site.install.incoming import Parcel, SegmentSource
from deployer.site.install.install import InstallOutcome, install, keep
from deployer.site.storage import inventory, scans, space
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files, terminal
from deployer.system.trust.verify import opened, read_seal

#: Maximum share of a bundle in a small transfer: its parts are kept until install, so that it can be assembled again.
LITTLE = 1 / 16
#: Number of bytes after which the kernel is asked to start writing the assembled file to disk.
AT_ONCE = 32 * 1024 * 1024


def receive(
    folder: str, store: Store, progress: Optional[InstallProgress] = None, late: "Optional[Late]" = None
) -> InstallOutcome:
    """Assemble the bundle whose parts are in ``folder``, install it and keep it.

    Parts under ROOT/incoming are removed; parts elsewhere (media) are kept. After an error, nothing has a final name.

    Raises:
        UsageError: parts are missing.
        IntegrityError: a part is damaged.
        SpaceError: there is not enough space.
    """
    try:
        return _receive(folder, store, progress, late)
    except (DeployerError, FileNotFoundError) as error:
        return overtaken(folder, store, error)


def overtaken(folder: str, store: Store, error: Exception) -> InstallOutcome:
    """Return the result of another receive of this bundle if that caused ``error``; otherwise raise the error.

    The receive that ends first removes the parts and folder of the other, and has the same result.
    """
    gathered, name = os.path.split(os.path.abspath(folder))
    if gathered != os.path.abspath(store.incoming):
        raise error
    image = inventory.whole(store, name)
    if image:
        return InstallOutcome(image=image, known=True)
    gone = error.__cause__ if isinstance(error, DeployerError) else error
    if files.is_folder(folder) and not isinstance(gone, FileNotFoundError):
        raise error
    raise went_away(folder) from error


def went_away(folder: str) -> TransferError:
    """Return the error for parts that another receive has removed."""
    hint = "another receive of this bundle may be at work: wait for its end, then push again"
    return TransferError(f"parts in {folder} went away", hint)


def _receive(
    folder: str, store: Store, progress: Optional[InstallProgress], late: "Optional[Late]" = None
) -> InstallOutcome:
    parcel = incoming.open_parcel(folder)
    digest = parcel.seal.digest
    scans.take_beside(os.path.join(parcel.folder, "bundle"), store, digest)  # as push --to names it
    present = inventory.whole(store, digest)
    if present:
        return InstallOutcome(image=present, known=True, bundle=finish(store, digest, present))
    gathered = incoming.folder_of(store, digest)
    target = os.path.join(gathered, incoming.BUNDLE)
    checked = False  # an earlier receive may have copied unchecked segments
    if not (is_rebuilt(target, digest) and _has_ending(target, parcel)):  # it may have been signed in the meantime
        checked = parcel.arrived > parcel.seal.offset * LITTLE
        check_space(parcel, store, parcel.arrived if checked and parcel.folder == gathered else 0)
        # Without its parts, the file must survive a power failure; with them, it can be assembled again.
        rebuild(parcel, store, target, progress, checked, flushed=checked)
        if parcel.folder == gathered and checked:  # the image needs their space
            parcel.remove_parts()
    try:
        outcome = install(target, store, progress)
    except IntegrityError as error:
        if checked or not _is_damaged(target, parcel):  # e.g. a wrong signature: another copy would be the same
            raise
        os.unlink(target)
        try:
            rebuild(parcel, store, target, progress)
        except UsageError:  # an earlier receive removed the parts
            raise IntegrityError(error.message, "the damaged file was removed: push the bundle again") from error
        outcome = install(target, store, progress)
    if late and not checked and is_rebuilt(target, digest):
        return outcome._replace(bundle=late.keep(store, target, outcome.image))
    return outcome._replace(bundle=finish(store, digest, outcome.image))


def check_space(parcel: Parcel, store: Store, freed: int, coming: int = 0) -> None:
    """Raise SpaceError unless there is space for the bundle, and for the image unless it may share an installed one's.

    Args:
        freed: bytes of parts that are removed before the image is written.
        coming: bytes of parts that are first copied here, and are removed with the others.
    """
    bundle, manifest = parcel.seal.offset + len(parcel.ending), parcel.manifest
    with files.errors_named("write under " + store.root, incoming.NO_SPACE):
        os.makedirs(store.images, exist_ok=True)
        if store.own():
            space.check(store.images, bundle + coming, 1)
        else:
            space.check(store.images, bundle + max(coming, manifest.unpacked - freed), manifest.image.entries)


def finish(store: Store, digest: str, image: InstalledImage) -> Optional[str]:
    """Keep the assembled bundle of an installed image and remove its parts, to complete a killed receive."""
    target = os.path.join(incoming.folder_of(store, digest), incoming.BUNDLE)
    bundle = None
    if is_rebuilt(target, digest):
        files.flush(target)
        bundle = keep(target, store, image)
    elif files.is_folder(os.path.dirname(target)) and is_rebuilt(store.bundle(image.receipt), digest):
        files.flush(store.bundle(image.receipt))  # it was kept before it was flushed
    incoming.discard(store, digest)
    return bundle


class Late:
    """A bundle that is kept before it is flushed to disk, so that a job can already start.

    Until it is flushed, the bundle that it replaces has a second name in the folder of the parts, where the segments
    of both are found. Nothing is lost if the machine fails.
    """

    def __init__(self) -> None:
        self.kept = ""

    def keep(self, store: Store, target: str, image: InstalledImage) -> str:
        """Move the assembled bundle of an installed image to its final path, and return that path."""
        before = store.bundle(image.receipt)
        spare = "%s.%d.tmp" % (target, os.getpid())
        with suppress(OSError):  # no earlier bundle, or no hard links on this file system
            os.link(before, spare)
        if not files.lexists(spare) and files.lexists(before):
            files.flush(target)
        self.kept = keep(target, store, image)
        with suppress(FileNotFoundError):  # no second name, or another push removed it: it is as old as that bundle
            os.rename(spare, target)
        return self.kept


@contextmanager
def settled(store: Store, digest: str) -> Iterator[Late]:
    """After the block, flush the bundle that was kept in it and remove its parts.

    If it cannot be flushed, it is removed and a warning is printed: the image is installed and no longer needs it. The
    block's result stays the same.
    """
    late = Late()
    try:
        yield late
    finally:
        if late.kept:
            try:
                files.flush(late.kept)
            except DeployerError as error:
                terminal.complain(["deployer: warning: " + not_kept(error)])
            else:
                incoming.discard(store, digest)


def not_kept(error: DeployerError) -> str:
    """Return the warning for an installed image whose bundle could not be kept."""
    return f"{error.message}: the bundle is not kept, and the next push sends all of it again"


def is_rebuilt(path: str, digest: str) -> bool:
    """Return whether an earlier receive has assembled the file, which install verifies in any case."""
    if not files.is_file(path):
        return False
    try:
        with opened(path) as stream:
            return read_seal(stream, path).digest == digest
    except IntegrityError:  # truncated by a power failure
        return False


def _is_damaged(path: str, parcel: Parcel) -> bool:
    """Return whether the assembled file is not the parcel's bundle, byte for byte."""
    with files.errors_named("read " + path), files.open_regular(path) as stream:
        good = undamaged(stream, parcel.manifest.segments)
    return good < parcel.seal.offset or not _has_ending(path, parcel)


def _has_ending(path: str, parcel: Parcel) -> bool:
    """Return whether a file ends with the parcel's manifest and signatures."""
    with files.errors_named("read " + path), files.open_regular(path) as stream:
        stream.seek(parcel.seal.offset)
        return stream.read(len(parcel.ending) + 1) == parcel.ending


def remove_damaged(folder: str) -> None:
    """Remove damaged parts that arrived in ``folder``, so that the next push sends them again."""
    with suppress(UsageError, IntegrityError, FileNotFoundError):  # removed by another receive
        parcel = incoming.open_parcel(folder)
        for part in parcel.parts:
            with files.open_regular(parcel.path(part)) as stream:
                good = undamaged(stream, delta.inside(parcel.manifest.segments, [part]), part.offset)
            if good < part.end:
                os.unlink(parcel.path(part))


def undamaged(stream: IO[bytes], segments: Iterable[Segment], start: int = 0) -> int:
    """Return the place in a bundle up to which segments are undamaged, in a file that begins at ``start``."""
    for segment in segments:
        stream.seek(segment.offset - start)
        if hashlib.sha256(stream.read(segment.size)).hexdigest() != segment.sha256:
            return segment.offset
    return start + stream.tell()


def rebuild(
    parcel: Parcel,
    store: Store,
    target: str,
    progress: Optional[InstallProgress] = None,
    checked: bool = True,
    flushed: bool = True,
) -> None:
    """Write the parcel's bundle to ``target``, completely or not at all.

    Args:
        checked: also check the segments that come from kept bundles.
        flushed: as in ``files.published``; in any case, writing to disk starts while the file is made and installed.
    """
    sources = SegmentSources(parcel, store, checked)
    sources.require(parcel.manifest.segments)
    total = parcel.seal.offset
    with files.published(target, flushed=flushed, hint=incoming.NO_SPACE) as stream, closing(sources):
        begun = done = 0
        for segment in parcel.manifest.segments:
            stream.write(sources.content(segment))
            done += segment.size
            if done - begun > AT_ONCE:
                files.begin_flush(stream.fileno(), begun, done - begun)
                begun = done
            if progress:
                progress(segment.size, total)
        stream.write(parcel.ending)


class SegmentSources:
    """The bytes of a parcel's bundle, from its parts or else from kept bundles. Only one file is open at a time."""

    def __init__(self, parcel: Parcel, store: Store, checked: bool = True) -> None:
        self._checked = checked
        self._parcel = parcel
        self._store = store
        self._ours = parcel.folder == incoming.folder_of(store, parcel.seal.digest)
        self._came = parcel.sources()
        self._kept = incoming.kept(store)
        self._growing = ""
        self._path = ""
        self._stream: Optional[IO[bytes]] = None

    def require(self, segments: Sequence[Segment]) -> None:
        """Raise UsageError unless all these segments are available."""
        absent = [item for item in segments if item.sha256 not in self._came and item.sha256 not in self._kept]
        if absent:
            raise UsageError(
                "%d bytes of the bundle are neither in %s nor in a kept bundle; the first are at %d"
                % (sum(item.size for item in absent), self._parcel.folder, absent[0].offset),
                "copy all parts here, or push again, with this site's receipt or with --full",
            )

    def add(self, segment: Segment, path: str) -> None:
        """Record that this push's partial file has this segment."""
        self._growing = path
        self._came[segment.sha256] = SegmentSource(path, segment.offset)

    def close(self) -> None:
        """Close the open file, if any."""
        if self._stream:
            self._stream.close()
        self._stream = None

    def content(self, segment: Segment) -> bytes:
        """Return a segment's bytes. If a part is damaged, remove it for the next push, and raise IntegrityError."""
        try:
            data = self._find(segment)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # ENOENT: removed; ESTALE: removed while open, on NFS
                raise
            data = None
        if data is None:  # during a slow transfer, another push may have replaced a kept bundle
            self.close()
            self._kept = incoming.kept(self._store)
            self.require([segment])
            data = self._find(segment)
        if data is not None:
            return data
        came = segment.sha256 in self._came
        damaged = (self._came if came else self._kept)[segment.sha256].path
        if came and self._ours and damaged != self._growing:
            if damaged.endswith(incoming.BEGUN):
                incoming.remove_unlocked(damaged, True)
            else:
                os.unlink(damaged)
        raise IntegrityError(
            "%s is damaged: the %s for byte %d does not have its digest" % (damaged, segment.kind, segment.offset),
            delta.SEND_AGAIN if came else "remove that file, and push again",
        )

    def _find(self, segment: Segment) -> Optional[bytes]:
        """Return a segment's bytes; None if no file has them at the place in its table."""
        for sources in (self._came, self._kept):
            source = sources.get(segment.sha256)
            if source:
                data = self._read(source, segment.size)
                if not self._checked and sources is self._kept and len(data) == segment.size:
                    return data
                if hashlib.sha256(data).hexdigest() == segment.sha256:
                    return data
        return None

    def _read(self, source: SegmentSource, size: int) -> bytes:
        if self._stream is None or self._path != source.path:
            self.close()
            self._stream, self._path = files.open_regular(source.path), source.path
        self._stream.seek(source.offset)
        return self._stream.read(size)
