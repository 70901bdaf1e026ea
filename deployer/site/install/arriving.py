"""Install a bundle while it arrives (docs/adr/0007).

A second process reads the stream and writes the bundle's file from start to end. It fills the gaps between the parts
that arrive with segments from kept bundles or an earlier push. This process verifies and unpacks each segment as soon
as it is in the file. Apart from the waiting, a complete file is installed in the same way. The file gets its final name
when it is complete.

If the connection is lost, the partial file is kept (``*.begun``), and the next push does not send its content again.
"""

import os
from contextlib import closing, suppress
from typing import IO, List, Optional

from deployer.contract.base.errors import DeployerError, IntegrityError, TransferError
from deployer.contract.bundle import sealed_file
from deployer.contract.bundle.delta import Part
from deployer.contract.bundle.manifest import Segment
from deployer.site.install import incoming
from deployer.site.install import receive as receiving
from deployer.site.install.content import InstallProgress
from deployer.site.install.incoming import Begun, Parcel
from deployer.site.install.install import InstallOutcome, install
from deployer.site.storage.store import Store
from deployer.system import files, workers
from deployer.system.trust.verify import Arriving

#: Seconds between two checks for bytes that have not arrived.
_LOOK_SECONDS = 0.02


def take(
    stream: IO[bytes],
    store: Store,
    digest: str,
    progress: Optional[InstallProgress] = None,
    late: Optional[receiving.Late] = None,
) -> InstallOutcome:
    """Take the parts of a bundle from ``stream``, install it and keep it.

    A small transfer is received completely before the install. During a larger one, the install already runs.

    Args:
        late: keeps the bundle of a small transfer before it is flushed to disk.

    Raises:
        TransferError: the stream ended too early. The bytes that arrived are kept.
        IntegrityError: a part is damaged.
        Refused: a policy forbids the bundle.
        SpaceError: there is not enough space.
    """
    folder = incoming.folder_of(store, digest)
    try:
        if incoming.take(stream, store, digest, receiving.LITTLE):
            return receiving.receive(folder, store, progress, late)
        try:
            return _install(stream, incoming.open_parcel(folder), store, progress)
        except (DeployerError, FileNotFoundError) as error:
            return receiving.overtaken(folder, store, error)
    except (IntegrityError, TransferError):
        receiving.remove_damaged(folder)
        raise


def _install(stream: IO[bytes], parcel: Parcel, store: Store, progress: Optional[InstallProgress]) -> InstallOutcome:
    digest = parcel.seal.digest
    path = os.path.join(parcel.folder, os.urandom(8).hex() + incoming.BEGUN)
    with files.errors_named("write " + path, incoming.NO_SPACE):
        target = open(path, "x+b", buffering=0)
    with target:
        growing = _Growing(parcel, store, path, target)
        with workers.Beside(lambda: growing.take(stream)) as receiver:
            block = parcel.ending[: -sealed_file.TAIL]
            arriving = Arriving(target, parcel.seal, block, lambda: not receiver.has_ended(_LOOK_SECONDS))
            try:
                try:
                    outcome = install(path, store, progress, arriving=arriving)
                except DeployerError:
                    if receiver.has_ended():
                        receiver.result()  # raises the reason if bytes are missing
                    raise
            except (IntegrityError, TransferError):
                receiver.end()
                growing.cut_damage()
                raise
            failure: Optional[DeployerError] = None
            if not outcome.known:
                try:
                    receiver.result()
                except DeployerError as error:  # after the last byte that install needs
                    failure = error
    bundle = receiving.finish(store, digest, outcome.image)
    if failure and not bundle and not receiving.is_rebuilt(store.bundle(outcome.image.receipt), digest):
        outcome = outcome._replace(warnings=(*outcome.warnings, receiving.not_kept(failure)))
    return outcome._replace(bundle=bundle)


class _Growing:
    """The file of a bundle that is written from start to end.

    Args:
        parcel: the parts that arrived earlier.
        path: the new file.
        target: the same file, open and unbuffered.
    """

    def __init__(self, parcel: Parcel, store: Store, path: str, target: IO[bytes]) -> None:
        incoming.lock(target)
        self._parcel = parcel
        self._path = path
        self._target = target
        self._whole = os.path.join(parcel.folder, incoming.BUNDLE)
        self._sources = receiving.SegmentSources(parcel, store)
        self._segments = iter(parcel.manifest.segments)
        self._next: Optional[Segment] = next(self._segments, None)
        self._begun: List[Begun] = list(parcel.begun)
        self._size = self._flushed = 0

    def take(self, stream: IO[bytes]) -> None:
        """Write the whole bundle, in a separate process. Raises the errors of ``incoming.take`` and ``receive``."""
        with files.errors_named("write " + self._path, incoming.NO_SPACE), closing(self._sources):
            try:
                for part in incoming.announcements(stream):
                    self._take(stream, part)
                self._fill(self._parcel.seal.offset)
                incoming.write(self._target, self._parcel.ending)
                os.rename(self._path, self._whole)
            except FileNotFoundError:
                raise receiving.went_away(self._parcel.folder) from None

    def _take(self, stream: IO[bytes], part: incoming.Announced) -> None:
        whole = isinstance(part.place, Part) and part.size == part.place.size
        if not whole or part.place.end > self._parcel.seal.offset:
            raise incoming.not_a_part(part.name)
        self._fill(part.place.offset)
        if self._size != part.place.offset:
            raise incoming.not_a_part(part.name)
        incoming.copy(stream, self._target, part.size)
        self._wrote(part.place.end)
        if self._next and self._next.offset != self._size:  # a part has only whole segments
            raise incoming.not_a_part(part.name)

    def _fill(self, end: int) -> None:
        """Write the segments before ``end`` from local sources, and check them."""
        while self._next and self._next.offset < end:
            segment = self._next
            self._sources.require([segment])
            incoming.write(self._target, self._sources.content(segment))
            self._wrote(segment.offset + segment.size)

    def _wrote(self, end: int) -> None:
        """Record that the file has all bytes before ``end``."""
        self._size = end
        while self._next and self._next.offset + self._next.size <= end:
            self._sources.add(self._next, self._path)  # repeated content is sent only once
            self._next = next(self._segments, None)
        while self._begun and self._begun[-1].size <= end:
            incoming.remove_unlocked(self._begun.pop().path)
        if end - self._flushed > receiving.AT_ONCE:
            files.begin_flush(self._target.fileno(), self._flushed, end - self._flushed)
            self._flushed = end

    def cut_damage(self) -> None:
        """Cut the file before the first damaged segment, so that the next push sends the rest again."""
        with files.errors_named("write " + self._path):
            good = receiving.undamaged(self._target, self._parcel.manifest.segments)
            if good < self._parcel.seal.offset:
                for path in filter(self._is_named, (self._path, self._whole)):
                    with suppress(FileNotFoundError):
                        os.rename(path, self._path)
                    os.ftruncate(self._target.fileno(), good)

    def _is_named(self, path: str) -> bool:
        """Return whether ``path`` is still the file's name: other users may write to a group's folder."""
        state = files.status(path, follow=False)
        return state is not None and os.path.samestat(state, os.fstat(self._target.fileno()))
