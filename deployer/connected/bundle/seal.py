"""Write a bundle: members in order, segments that cover every byte, then manifest and seal."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO

from deployer.connected.bundle.layer.compress import Pressed
from deployer.connected.bundle.layer.known_layers import DamagedLayer
from deployer.connected.rootfs.entries import Extent, Stored
from deployer.contract.base import json_records, tarformat
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.base.tarformat import BLOCK
from deployer.contract.bundle import manifest as manifests
from deployer.contract.bundle import oci, sealed_file
from deployer.contract.bundle.manifest import DATA, FRAME, HEADER, MAX_MEMORY, PADDING, BundleMember, Manifest, Segment
from deployer.system import file_identity

_DATA_SEGMENT = 8 * 1024 * 1024
_FLUSH_EVERY = 32 * 1024 * 1024


class BundleWriter:
    """Write the members of a bundle to a seekable binary ``stream``, and keep the segment table."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._offset = 0
        self._stands = False  # the layer was already there and was not read
        self.members: list[BundleMember] = []
        self.segments: list[Segment] = []

    @classmethod
    def after(cls, stream: IO[bytes], members: Iterable[BundleMember], segments: Iterable[Segment]) -> "BundleWriter":
        """Return a writer that continues after these members. ``stream`` already has them and is at their end."""
        writer = cls(stream)
        writer.members, writer.segments = list(members), list(segments)
        writer._offset = stream.tell()
        return writer

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._stream.fileno()

    def member(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Append a member. Members over 8 MiB have several segments."""
        pieces = (data[start : start + _DATA_SEGMENT] for start in range(0, len(data), _DATA_SEGMENT))
        self.pieces(name, len(data), pieces, mode)

    def pieces(self, name: str, size: int, pieces: Iterable[bytes], mode: int = 0o644) -> None:
        """Append a member of ``size`` bytes from non-empty pieces. Each piece becomes a segment."""
        with self._announced(name, size, mode):
            for piece in pieces:
                self._segment(DATA, piece)

    def frames(self, name: str, size: int, frames: Iterable[Pressed]) -> None:
        """Append a member of ``size`` bytes from frames, whose digests are trusted."""
        with self._announced(name, size, 0o644):
            self._frames(frames, lambda _: None)

    @contextmanager
    def _announced(self, name: str, size: int, mode: int) -> Iterator[None]:
        """Write the header of a member, and its padding after the block, which writes ``size`` bytes."""
        member = BundleMember(name, size, mode)
        self.members.append(member)
        self._segment(HEADER, sealed_file.member_header(member))
        end = self._offset + size
        yield
        if self._offset != end:
            raise AssertionError(f"{name} does not have the {size} bytes announced")
        self._pad(size)

    def contents(self) -> dict[str, Stored]:
        """Return the non-empty members written so far, for reading."""
        self._stream.flush()  # readers bypass the buffer
        stored = {}
        for name, segments in sealed_file.contents(self.members, self.segments).items():
            size = sum(segment.size for segment in segments)
            if size:
                stored[name] = Stored(self._stream, size, (Extent(0, segments[0].offset, size),))
        return stored

    def written(self, manifest: Manifest) -> "UnsealedBundle":
        """Return the bundle written so far, for reading. ``manifest`` needs no members or segments."""
        self._stream.flush()  # readers bypass the buffer
        whole = manifest._replace(members=list(self.members), segments=list(self.segments))
        return UnsealedBundle(self._stream, whole, self._stands)

    def blob(self, data: bytes) -> oci.Blob:
        """Append an OCI blob, named by its digest."""
        blob = oci.blob(data)
        self.member(blob.member, data)
        return blob

    def layer(self, frames: Iterable[Pressed]) -> oci.Blob:
        """Append the layer, frame by frame, and return its descriptor.

        Its header contains the digest and the size. These are known only at the end, so the header is written last.
        """
        state = hashlib.sha256()
        place, header_offset, start = len(self.segments), self._offset, self._offset + BLOCK
        self._stream.write(b"\0" * BLOCK)
        self._offset = start
        self._frames(frames, state.update)
        blob = oci.Blob("sha256:" + state.hexdigest(), self._offset - start)
        member = layer_member(blob)
        self.members.append(member)
        header = sealed_file.member_header(member)
        if len(header) != BLOCK:
            raise AssertionError("a blob's name fits one header")
        self.segments.insert(place, Segment(HEADER, header_offset, BLOCK, hashlib.sha256(header).hexdigest()))
        self._stream.seek(header_offset)
        self._stream.write(header)
        self._stream.seek(self._offset)
        self._pad(blob.size)
        return blob

    def _frames(self, frames: Iterable[Pressed], see: Callable[[bytes], object]) -> None:
        with _Flusher(self._stream) as flusher:
            for holds, raw, (data, sha256) in frames:
                see(data)
                self.segments.append(Segment(FRAME, self._offset, len(data), sha256, raw, holds))
                self._stream.write(data)
                self._offset += len(data)
                flusher.wrote(len(data))
            flusher.settle()

    def standing_layer(self, layer: oci.Blob, frames: Iterable[Segment]) -> None:
        """Skip the layer that the stream already has here, with its header. It ends after the last frame."""
        self._stands = True
        member = layer_member(layer)
        header = sealed_file.member_header(member)
        self.members.append(member)
        self.segments.append(Segment(HEADER, self._offset, len(header), hashlib.sha256(header).hexdigest()))
        self.segments += frames
        self._offset += len(header) + layer.size
        self._stream.seek(self._offset)
        self._pad(layer.size)

    def seal(self, manifest: Manifest) -> str:
        """Write the manifest and the tail. Return the bundle's digest.

        Args:
            manifest: needs no members or segments.

        Raises:
            UsageError: a site could not read the bundle: it has too many files, or too long names.
        """
        whole = manifest._replace(members=self.members, segments=self.segments)
        sealed_file.check(whole, self._offset)  # write only what can be verified
        data = json_records.dumps(whole.record())
        if len(data) > sealed_file.MAX_MANIFEST or json_records.memory(data) > MAX_MEMORY:
            hint = "put many small data files into a few archives; about 90,000 files are possible"
            raise UsageError(f"the bundle has too many files: {len(self.members)} besides the image's", hint)
        _check_readable(whole)
        seal = sealed_file.Seal(self._offset, len(data), hashlib.sha256(data).hexdigest())
        self._stream.write(sealed_file.manifest_block(data))
        self._stream.write(sealed_file.tail(seal))
        return seal.digest

    def _segment(self, kind: str, data: bytes) -> None:
        self.segments.append(Segment(kind, self._offset, len(data), hashlib.sha256(data).hexdigest()))
        self._stream.write(data)
        self._offset += len(data)

    def _pad(self, size: int) -> None:
        if tarformat.padding(size):
            self._segment(PADDING, b"\0" * tarformat.padding(size))


def layer_member(layer: oci.Blob) -> BundleMember:
    """Return the member that holds a layer."""
    return BundleMember(layer.member, layer.size, 0o644)


def _check_readable(manifest: Manifest) -> None:
    """Raise UsageError if a site would refuse the manifest. The long segment table is trusted and skipped."""
    try:
        manifests.read(json_records.dumps(manifest._replace(segments=[]).record()), "this")
    except IntegrityError as error:
        raise UsageError(f"no site could read the bundle: {error.message}", error.hint) from error


class UnsealedBundle:
    """An unsealed bundle. Its writer made the bytes, so only a layer that was already there is verified."""

    def __init__(self, stream: IO[bytes], manifest: Manifest, verifies: bool = False) -> None:
        self._stream = stream
        self._verifies = verifies
        self.manifest = manifest

    def read(self, segment: Segment) -> bytes:
        """Return a segment's bytes.

        Raises:
            DamagedLayer: the layer was already there and is damaged.
        """
        data = file_identity.reader(self._stream.fileno())(segment.offset, segment.size)
        if self._verifies and segment.kind == FRAME and hashlib.sha256(data).hexdigest() != segment.sha256:
            raise DamagedLayer("a bundle in the cache is damaged")
        return data


class _Flusher(ThreadPoolExecutor):
    """Flush written bytes to disk in another thread, so the last flush before the rename is short."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(1, "flush")
        self._stream = stream
        self._written = 0
        self._flushes: list[Future[None]] = []

    def wrote(self, count: int) -> None:
        self._written += count
        if self._written >= _FLUSH_EVERY:
            self._written = 0
            self._flushes.append(self.submit(getattr(os, "fdatasync", os.fsync), self._stream.fileno()))

    def settle(self) -> None:
        """Wait, and raise the first error. Linux reports a write error only once, so the last flush would miss it."""
        for flush in self._flushes:
            flush.result()
