"""Known layers: what earlier packs derived from an image, kept beside its frames for reuse.

A layer is known if everything that affects its bytes is the same: the image's identity, the codec, deployer's sources
and the versions of its libraries. Then the image is not read, and the frames are copied from the bundle in the frame
cache.

A record is one file: its key, the digest of the rest, and the rest as JSON. A damaged record, or one with another key,
is not used. The frames are verified during the copy, as ``copied`` describes.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import deployer
from deployer.connected.bundle.layer.codecs import Codec
from deployer.connected.bundle.layer.compress import Pressed
from deployer.connected.bundle.layer.framecache import CachedFrame
from deployer.connected.ground import frames
from deployer.connected.linker.families import MpiUser
from deployer.connected.rootfs.entries import FileContent, InMemory
from deployer.connected.rootfs.secrets import Secret
from deployer.contract.base import tarformat
from deployer.contract.base.errors import DeployerError
from deployer.contract.base.tarformat import FILE, HARDLINK, TarEntry
from deployer.contract.bundle import oci
from deployer.contract.bundle.manifest import Segment
from deployer.system.workers import cores

if TYPE_CHECKING:  # slow to import, and needed only at the end
    from deployer.connected.bundle.about.packages import PackageInventory

_log = logging.getLogger("deployer.known_layers")

#: Bytes of frames to read before writing them.
_AHEAD = 32 * 1024 * 1024
#: The encoding of file names in a record: any bytes, as with ``os.fsdecode`` on Linux, but faster.
_AS_TEXT = ("utf-8", "surrogateescape")
#: Bytes in the first line of a record: two digests.
_KEYS = 2 * 65
#: The libraries that the frames, the packages and the SBOM depend on.
_LIBRARIES = ("zstandard", "packaging", "cyclonedx-python-lib", "packageurl-python", "license-expression")


class DamagedLayer(DeployerError):
    """A known layer does not match its digests. The image must be read."""


class KnownLayer(NamedTuple):
    """A layer and the known facts about its image.

    Attributes:
        identity: ``ArchiveImage.identity``.
        architecture: the OCI name of the architecture.
        config: the image's configuration.
        python: the path of its Python, None if it has none.
        changes: the number of paths that flatten changed, by kind of change.
        layer: the descriptor of the layer.
        raw: the descriptor of the uncompressed layer.
        holes: bytes of frames with only zeros.
        segments: the frames, with their offsets in the bundle of the cache.
        keys: their keys in the frame cache.
        entries: the entries in the layer's order.
        packages: the image's packages. Use ``inventory``, which also works for records that were read.
        users: the files that are linked to MPI; None: not checked yet.
        secrets: the secrets in its files.
        sbom: the SBOM of a bundle with this layer: a digest of its other inputs, then its pieces; or empty.
    """

    identity: str
    architecture: str
    config: Mapping[str, Any]
    python: str | None
    changes: Mapping[str, int]
    layer: oci.Blob
    raw: oci.Blob
    holes: int
    segments: Sequence[Segment]
    keys: Sequence[str]
    entries: Sequence[TarEntry]
    packages: "PackageInventory"
    users: Sequence[MpiUser] | None
    secrets: Sequence[Secret]
    sbom: Sequence[str] = ()

    def written(self) -> str:
        """Return the record as text."""
        record = {
            **self._asdict(),
            "entries": [
                [part.decode(*_AS_TEXT) if isinstance(part, bytes) else part for part in e] for e in self.entries
            ],
        }
        return json.dumps(record, separators=(",", ":"))

    @staticmethod
    def read(text: bytes) -> "KnownLayer":
        """Return the layer written by ``written``."""
        found = json.loads(text)
        users = found["users"]
        found.update(
            layer=oci.Blob(*found["layer"]),
            raw=oci.Blob(*found["raw"]),
            segments=[Segment(*fields) for fields in found["segments"]],
            entries=[
                TarEntry(kind.encode(), path.encode(*_AS_TEXT), mode, size, target.encode(*_AS_TEXT))
                for kind, path, mode, size, target in found["entries"]
            ],
            secrets=[Secret(*fields) for fields in found["secrets"]],
            users=None if users is None else [MpiUser(*fields) for fields in users],
        )
        return KnownLayer(**found)


def inventory(known: KnownLayer) -> "PackageInventory":
    """Return the packages of the image."""
    from deployer.connected.bundle.about.packages import Package, PackageInventory, System

    system, packages = known.packages  # lists if read from a file: their classes are slow to import
    listed = (Package(*fields)._replace(licences=tuple(fields[5])) for fields in packages)
    return PackageInventory(System(*system), tuple(listed))


# ------------------------------------------------------------------------------------------------ keys and records


def image_key(identity: str, lean: bool, codec: Codec) -> str:
    """Return the key of an image for these tools; "" if the identity is unknown."""
    words = identity, lean, json.dumps(codec.record()), *_tools()
    return hashlib.sha256(json.dumps(words).encode()).hexdigest() if identity else ""


@functools.cache
def _tools() -> tuple[str, ...]:
    """Return what determines a layer besides the image: library versions and a digest of our own files.

    A version number could be forgotten. All files count, because nearly any of them may affect a layer or its
    record.
    """
    top = Path(deployer.__file__).parent
    state = hashlib.sha256()
    for path in sorted(top.rglob("*")):
        if path.suffix == ".pyc" or not path.is_file():
            continue
        source = path.read_bytes()
        state.update(f"{path.relative_to(top)}\0{len(source)}\0".encode() + source)
    return (sys.version, *map(importlib.metadata.version, _LIBRARIES), state.hexdigest())


def record(image: str, known: KnownLayer) -> str:
    """Return the text of a record."""
    text = known.written()
    return f"{image} {hashlib.sha256(text.encode()).hexdigest()}\n{text}"


class LayerRecord(NamedTuple):
    """A record in the cache. Only its first line has been read.

    Attributes:
        path: the file.
        sha256: the digest of the rest, in hexadecimal.
    """

    path: Path
    sha256: str

    def load(self) -> KnownLayer | None:
        """Return the layer, or None if the record is damaged or gone."""
        try:
            text = self.path.read_bytes().partition(b"\n")[2]
            if hashlib.sha256(text).hexdigest() == self.sha256:
                return KnownLayer.read(text)
            _log.debug("%s is damaged", self.path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.debug("%s cannot be read: %s", self.path, error)
        return None


def records(image: str, paths: Iterable[Path]) -> Iterator[LayerRecord]:
    """Yield the records of an image, from the files that may be records."""
    for path in paths:
        with contextlib.suppress(OSError), open(path, "rb") as stream:
            keys = stream.readline(_KEYS).decode("ascii", "replace").split()
            if len(keys) == 2 and keys[0] == image:
                yield LayerRecord(path, keys[1])


# ------------------------------------------------------------------------------------------------ its content


class KnownBundle(NamedTuple):
    """A known layer, and the open cached bundle with its frames."""

    layer: KnownLayer
    bundle: IO[bytes]


def copied(known: KnownBundle) -> Iterator[Pressed]:
    """Yield the frames, each with its digest from the bundle's segment table.

    Raises:
        DamagedLayer: a frame has a different digest.
    """
    waiting: deque[tuple[Segment, Future[bytes]]] = deque()
    ahead = 0
    with ThreadPoolExecutor(cores(), "copy") as pool:
        try:
            for segment in known.layer.segments:
                waiting.append((segment, pool.submit(_verified, known.bundle, segment)))
                ahead += segment.size
                while ahead > _AHEAD:
                    first, data = waiting.popleft()
                    yield _pressed(first, data.result())
                    ahead -= first.size
            for first, data in waiting:
                yield _pressed(first, data.result())
        finally:
            for _, data in waiting:
                data.cancel()


def _pressed(segment: Segment, data: bytes) -> Pressed:
    return Pressed(segment.holds or "", segment.raw or 0, CachedFrame(data, segment.sha256))


def _verified(bundle: IO[bytes], segment: Segment) -> bytes:
    try:
        data = os.pread(bundle.fileno(), segment.size, segment.offset)
    except OSError as error:
        raise DamagedLayer(f"a bundle in the cache cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != segment.sha256:
        raise DamagedLayer("a bundle in the cache is damaged")
    return data


class KnownTree:
    """The root filesystem of a known layer. File contents are read from the bundle in the cache."""

    def __init__(self, known: KnownBundle, codec: Mapping[str, Any]) -> None:
        self._known, bundle = known
        self._entries = {entry.path: entry for entry in self._known.entries}
        self._frame = functools.lru_cache(2)(frames.reader(codec, functools.partial(_verified, bundle)))

    def entries(self) -> Iterable[TarEntry]:
        """Return the entries in the layer's order."""
        return self._known.entries

    def find(self, path: bytes) -> TarEntry | None:
        """Return the entry at a path relative to the root, without following links. A hard link gives its file."""
        entry = self._entries.get(path)
        return self._entries.get(entry.target) if entry and entry.kind == HARDLINK else entry

    def content(self, entry: TarEntry) -> FileContent:
        """Return a file's content. Reading raises DamagedLayer if the bundle in the cache is damaged."""
        return _InFrames(self._frame, self._known, self._starts[entry.path], entry.size) if entry.size else InMemory()

    @functools.cached_property  # not `cache`: it would keep every tree
    def _starts(self) -> Mapping[bytes, int]:
        """Return the offset of each file's content in the uncompressed layer."""
        starts, position = {}, 0
        for entry in self._known.entries:
            position += tarformat.header_size(entry)
            if entry.kind == FILE:
                starts[entry.path] = position
            position += entry.size + tarformat.padding(entry.size)
        return starts


class _InFrames:
    """The content of a file in a known layer."""

    def __init__(self, frame: Callable[[Segment], bytes], known: KnownLayer, start: int, size: int) -> None:
        self.size = size
        self._read_at = frames.across(frame, known.segments, 0, start, size)

    def read(self, start: int, length: int) -> bytes:
        return self._read_at(start, length)
