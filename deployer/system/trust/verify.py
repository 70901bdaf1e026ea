"""verify: check every byte of a bundle against its segment table, and its signatures against the site's policies.

Only a Verification makes a VerifiedBundle, after every segment has passed, and only a VerifiedBundle can be installed.
Signatures are verified and checked against policies over the raw bytes of bundle.json, before anything parses them.
They are verified even if no policy requires them. The file is opened once and read through that descriptor. Bytes are
used only where they were hashed, so that the checked bytes are the used bytes. ``verify`` also compares the layer's own
digest, the OCI name of the same bytes. install does not, because a second hash of the layer would cost more than it is
worth (docs/adr/0005).
"""

import hashlib
import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence

from deployer.contract.base.errors import IntegrityError, Refused, UsageError
from deployer.contract.bundle import sealed_file
from deployer.contract.bundle.manifest import Manifest, Segment
from deployer.contract.bundle.sealed_file import Seal
from deployer.system import files

if TYPE_CHECKING:
    from deployer.system.trust.policy import Policy
    from deployer.system.trust.trust import Trust

#: Called with the number of bytes that were just processed.
Progress = Callable[[int], None]

_CHUNK = 1024 * 1024
#: A segment is read at once; writers make segments of at most 8 MiB, and frames of at most codec.MAX_RAW.
MAX_SEGMENT = 32 * 1024 * 1024
_HINT = "the file is damaged or was changed: send it again; nothing was installed"


class Arriving(NamedTuple):
    """A bundle whose file still grows, from its start on, while it is verified and used.

    Attributes:
        stream: the open file.
        seal: its seal, which arrived first.
        block: the bytes from the manifest's header to the tail, likewise.
        comes: waits a moment and returns whether more may arrive. Workers call it too.
    """

    stream: IO[bytes]
    seal: Seal
    block: bytes
    comes: Callable[[], bool]


class VerifiedBundle:
    """A bundle whose every byte was checked. Only ``Verification.finish`` makes one. ``trust`` gives its signers."""

    def __init__(self, seal: Seal, manifest: Manifest, manifest_bytes: bytes, whose: "Trust") -> None:
        self.trust = whose
        self.seal = seal
        self.digest = seal.digest
        self.manifest = manifest
        #: bundle.json as it is in the file.
        self.manifest_bytes = manifest_bytes


class Verification:
    """A bundle that is being verified: seal, manifest and table are checked already, the other bytes are not.

    This is a pure state machine over the table. Bytes come out only after their digest was checked; a segment that
    passed is noted; and ``finish`` makes the VerifiedBundle when none is left. A caller that reads a bundle once, and
    publishes its output only after ``finish``, thus verifies and uses the same bytes in one pass.
    """

    def __init__(
        self,
        stream: IO[bytes],
        path: str,
        seal: Seal,
        data: bytes,
        manifest: Manifest,
        whose: "Trust",
        comes: Optional[Callable[[], bool]] = None,
    ) -> None:
        #: Who signed it.
        self.trust = whose
        self._descriptor = stream.fileno()
        self._path = path
        self.seal = seal
        self.digest = seal.digest
        self._comes = comes
        self.manifest = manifest
        #: bundle.json as it is in the file; its digest is in the seal.
        self.manifest_bytes = data
        self._left = {segment.offset: segment for segment in manifest.segments if segment.size}

    def member_segments(self, name: str) -> List[Segment]:
        """Return the content segments of a member, in order."""
        return sealed_file.member_segments(self.manifest, name)

    def layer_segments(self) -> List[Segment]:
        """Return the segments of the layer."""
        return self.member_segments(sealed_file.layer_member(self.manifest))

    def read(self, segment: Segment) -> bytes:
        """Return a segment's bytes, checked. Safe in a forked process, whose parent must then call ``passed``.

        Raises:
            IntegrityError: the digest differs, or the segment is larger than any writer makes it.
        """
        with _named(self._path):
            if segment.size > MAX_SEGMENT:
                raise IntegrityError("the %s at byte %d has %d bytes" % (segment.kind, segment.offset, segment.size))
            data = self._pread(segment.offset, segment.size)
            if hashlib.sha256(data).hexdigest() != segment.sha256:
                raise IntegrityError("the %s at byte %d does not match its digest" % (segment.kind, segment.offset))
            return data

    def read_from(self, stream: IO[bytes], comes: Callable[[], bool]) -> None:
        """Read segments from another file, which still grows. ``comes`` is as in ``Arriving``."""
        self._descriptor, self._comes = stream.fileno(), comes

    def passed(self, segment: Segment) -> None:
        """Note that a segment was read and matched its digest."""
        self._left.pop(segment.offset, None)

    def check(self, segments: Iterable[Segment], progress: Optional[Progress] = None) -> Iterator[bytes]:
        """Read segments, note that they passed, and yield their bytes."""
        for segment in segments:
            data = self.read(segment)
            self.passed(segment)
            if progress:
                progress(segment.size)
            yield data

    def left(self) -> List[Segment]:
        """Return the segments that have not passed yet, in the order of the file."""
        return [self._left[offset] for offset in sorted(self._left)]

    def finish(self) -> VerifiedBundle:
        """Return the bundle as a verified one, now that every segment has passed."""
        if self._left:
            raise AssertionError("%d segments were never checked" % len(self._left))
        return VerifiedBundle(self.seal, self.manifest, self.manifest_bytes, self.trust)

    def _pread(self, offset: int, size: int) -> bytes:
        with files.errors_named("read " + self._path):
            # Return when the file has the bytes, or will not get them.
            while self._comes and os.fstat(self._descriptor).st_size < offset + size and self._comes():
                pass
            data = os.pread(self._descriptor, size, offset)
            while len(data) < size:  # one read returns at most 2 GiB, and less after a signal
                more = os.pread(self._descriptor, size - len(data), offset + len(data))
                if not more:
                    raise IntegrityError("the file ends in the middle of a segment")
                data += more
        return data


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Yield the open file of a bundle. Raises UsageError if it cannot be opened."""
    try:
        stream = files.open_regular(path, _CHUNK)
    except OSError as error:
        hint = "give the path of a bundle, a .tar file"
        raise UsageError(f"cannot open {path}: {error.strerror}", hint) from error
    with stream:
        yield stream


def read_seal(stream: IO[bytes], path: str) -> Seal:
    """Return the seal at the end of an open bundle. It contains the file's claims, which are not verified yet."""
    size = size_of(stream)
    if size < sealed_file.TAIL:
        raise IntegrityError("%s is not a bundle: it has %d bytes" % (path, size), _HINT)
    stream.seek(size - sealed_file.TAIL)
    with _named(path):
        return sealed_file.read_tail(stream.read(sealed_file.TAIL), size)


def size_of(stream: IO[bytes]) -> int:
    """Return the bytes of an open bundle."""
    return os.fstat(stream.fileno()).st_size


def read_manifest_block(stream: IO[bytes], seal: Seal) -> bytes:
    """Return the bytes from the manifest's header to the tail."""
    stream.seek(seal.offset)
    return stream.read(seal.end - seal.offset)


def begin(
    stream: IO[bytes], path: str, policies: "Optional[Sequence[Policy]]" = None, arriving: Optional[Arriving] = None
) -> Verification:
    """Check signatures, seal, manifest and segment table of an open bundle; the Verification checks the other bytes.

    Args:
        path: names the file in errors.
        policies: the policies that apply; None: those of ``policy.load()``.
        arriving: the bundle is not complete yet; the Verification waits for what it reads.

    Raises:
        IntegrityError: the bundle is damaged, or a signature is wrong.
        Refused: a policy does not accept the bundle.
    """
    from deployer.system.trust import trust  # only here: its imports are slow, and push's `known` and `take` do without

    seal = arriving.seal if arriving else read_seal(stream, path)
    with _named(path), files.errors_named("read " + path):
        block = arriving.block if arriving else read_manifest_block(stream, seal)
        data = sealed_file.manifest_bytes(block, seal)
        whose = trust.establish(data, seal.signatures, policies)
        manifest = sealed_file.parse_manifest(data, seal)
        return Verification(stream, path, seal, data, manifest, whose, arriving.comes if arriving else None)


def verify(
    stream: IO[bytes], path: str, progress: Optional[Progress] = None, policies: "Optional[Sequence[Policy]]" = None
) -> VerifiedBundle:
    """Check every byte of an open bundle and return it as a VerifiedBundle. Raises as ``begin`` does.

    ``progress`` is called with the bytes checked since its last call.
    """
    return verify_rest(begin(stream, path, policies), path, progress)


def verify_rest(verification: Verification, path: str, progress: Optional[Progress] = None) -> VerifiedBundle:
    """Check every byte that ``begin`` did not check, as ``verify`` does."""
    from concurrent.futures import ThreadPoolExecutor  # only here: its import is slow, and install does without

    layer = hashlib.sha256()
    with ThreadPoolExecutor(1) as beside:  # the layer's own digest takes as long as those of its segments
        last = beside.submit(layer.update, b"")
        for data in verification.check(verification.layer_segments(), progress):
            last.result()
            last = beside.submit(layer.update, data)
    if "sha256:" + layer.hexdigest() != verification.manifest.image.layer_digest:
        raise IntegrityError(f"{path}: the layer does not match its digest", _HINT)
    for _ in verification.check(verification.left(), progress):
        pass
    return verification.finish()


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Name the file in the errors of a bundle, with a hint."""
    try:
        yield
    except Refused as error:
        raise Refused(f"{path}: {error.message}", error.hint) from error
    except IntegrityError as error:
        raise IntegrityError(f"{path}: {error.message}", error.hint or _HINT) from error
