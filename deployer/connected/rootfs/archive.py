"""Images in files: a `docker save` archive, an OCI archive or layout, a flat tar, compressed or not; SIF or SquashFS.

The kind is detected from the content. Sources: Docker image specification 1.2 (manifest.json); OCI image-spec 1.0.
"""

import contextlib
import functools
import gzip
import io
import os
import posixpath
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import zstandard

from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs import sif, tarreader
from deployer.connected.rootfs.entries import FileEntries, FileEntry, Stored
from deployer.connected.rootfs.merge import Rootfs
from deployer.connected.rootfs.tarreader import Slice, Spooled
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, UsageError
from deployer.contract.base.tarformat import FILE, FOLDER, SYMLINK
from deployer.contract.base.text import counted
from deployer.system import files

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}
_MAX_DOCUMENT = 16 * 1024 * 1024
_CHUNK = 1024 * 1024
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")


class ArchiveImage(NamedTuple):
    """An image read from a file or folder.

    Attributes:
        architecture: its name in OCI, "" if the image does not state it.
        config: the image's configuration (``Env``, ``Cmd`` and so on), empty for a flat tar.
        root: the root filesystem.
        identity: a text that two images share only if they are identical, "" if unknown.
    """

    architecture: str
    config: dict[str, Any]
    root: Rootfs
    identity: str = ""


class ArchivePart(NamedTuple):
    """A byte range of an open file.

    Attributes:
        stream: the file.
        offset: the start in bytes.
        size: bytes.
    """

    stream: IO[bytes]
    offset: int
    size: int

    def read(self) -> bytes:
        if self.size > _MAX_DOCUMENT:
            raise UsageError(f"the image has a document of {self.size} bytes")
        return os.pread(self.stream.fileno(), self.size, self.offset)


class Layered(NamedTuple):
    """An image in layers.

    Attributes:
        config: the image's configuration.
        layers: the layers, lowest first, each with the digest of its bytes, "" if unknown.
    """

    config: dict[str, Any]
    layers: list[tuple[ArchivePart, str]]


def read_image(path: Path, scratch: Scratch) -> ArchiveImage:
    """Return the image in a file or folder. ``scratch`` keeps its files open.

    Raises:
        UsageError: there is no image, or it is broken.
    """
    if path.is_dir():
        return _image(_documents(_oci, lambda name: _file_part(path, name, scratch)), scratch)
    with _opened(path, scratch) as part:
        found = _kind(part, scratch)
        if isinstance(found, Layered):
            return _image(found, scratch)
        root = Rootfs()
        root.apply(found, whiteouts=False)
        return ArchiveImage("", {}, root)


def layered(path: Path, scratch: Scratch) -> Layered | None:
    """Return the layers of the image in a `docker save` or OCI archive, or None for a flat tar.

    Raises:
        UsageError: there is no image, or it is broken.
    """
    with _opened(path, scratch) as part:
        found = _kind(part, scratch)
        if isinstance(found, Layered):
            return found
        tops = {entry.path.strip(b"./").partition(b"/")[0] for entry in found}
        if not tops & {b"bin", b"lib", b"sbin", b"usr"}:
            raise UsageError("it is neither an image nor a root filesystem: it has none of /bin, /lib, /sbin, /usr")
        return None


def flat_chunks(path: Path, scratch: Scratch) -> Iterator[bytes]:
    """Yield the bytes of a flat tar, uncompressed. Raises UsageError if the tar is broken."""
    with _opened(path, scratch) as part:
        yield from uncompressed(part)


def uncompressed(part: ArchivePart) -> Iterator[bytes]:
    """Yield the bytes of a layer, uncompressed. Raises UsageError if the layer is broken."""
    read = _reader(part, _magic(part))
    with _broken_codec():
        yield from iter(lambda: read(_CHUNK), b"")


@contextlib.contextmanager
def _opened(path: Path, scratch: Scratch) -> Iterator[ArchivePart]:
    """Yield an archive as one part. Errors in the block mention the archive."""
    with files.errors_named(f"read {path}"):
        try:
            stream = scratch.open(path)
        except FileNotFoundError:
            raise UsageError(f"there is no file {path}") from None
        try:
            yield ArchivePart(stream, 0, os.fstat(stream.fileno()).st_size)
        except DeployerError as error:
            raise type(error)(f"{path}: {error.message}", error.hint) from error


def _kind(part: ArchivePart, scratch: Scratch) -> Layered | list[FileEntry]:
    """Index the file's tar, then detect the kind of image from the names in it, unless it is in SquashFS."""
    start = os.pread(part.stream.fileno(), 64, part.offset)
    if start.startswith(sif.SQUASHFS) or sif.is_sif(start):
        config, tar = sif.unpacked(part.stream, scratch)
        return Layered(config, [(ArchivePart(tar, 0, os.fstat(tar.fileno()).st_size), "")])
    found = list(entries_of(part, scratch))
    stored = {}
    for entry in found:
        name = posixpath.normpath(os.fsdecode(entry.path))
        if entry.kind == FILE and isinstance(entry.data, Stored):
            stored[name] = entry.data
        elif entry.kind == SYMLINK:  # old versions of `docker save` write links to identical layers
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), os.fsdecode(entry.target)))
            if target in stored:
                stored[name] = stored[target]
    roots = any(entry.kind == FOLDER and entry.path.strip(b"./") in (b"usr", b"bin", b"etc") for entry in found)
    if not roots and ("manifest.json" in stored or "oci-layout" in stored):
        opened = functools.partial(_stored_part, stored)
        return _documents(_docker if "manifest.json" in stored else _oci, opened)
    return found


_Opener = Callable[[str], ArchivePart]


def _stored_part(stored: dict[str, Stored], name: str) -> ArchivePart:
    data = stored.get(posixpath.normpath(name))
    if data is None:
        raise UsageError(f"the archive is incomplete: it has no {name}")
    stream, offset = data.place()
    return ArchivePart(stream, offset, data.size)


def _file_part(folder: Path, name: str, scratch: Scratch) -> ArchivePart:
    try:
        stream = scratch.open(folder / name)
    except OSError as error:
        hint = "--archive accepts OCI layout folders; if it is a root filesystem, give it with --rootfs"
        raise UsageError(f"{folder} is not an OCI layout: it has no {name} ({error.strerror})", hint) from None
    return ArchivePart(stream, 0, os.fstat(stream.fileno()).st_size)


# ------------------------------------------------------------------------------------------------ kinds of image


def _docker(opened: _Opener) -> Layered:
    images = _json(opened("manifest.json").read(), list)
    if len(images) != 1:
        names = ", ".join(str((image.get("RepoTags") or ["?"])[0]) for image in images)
        raise UsageError(f"the archive holds {len(images)} images: {names}", "save only one of them")
    config = _json(opened(str(images[0]["Config"])).read(), dict)
    parts = [opened(str(name)) for name in images[0].get("Layers") or []]
    layers = zip(parts, _diff_ids(config, len(parts)), strict=True)
    return Layered(config, [(part, "" if _magic(part) else digest) for part, digest in layers])


def _oci(opened: _Opener) -> Layered:
    opened("oci-layout")
    descriptor = _one(_json(opened("index.json").read(), dict))
    while descriptor.get("mediaType") in _INDEXES:
        descriptor = _one(_json(_blob(opened, descriptor).read(), dict))
    manifest = _json(_blob(opened, descriptor).read(), dict)
    config = _json(_blob(opened, manifest["config"]).read(), dict)
    _diff_ids(config, len(manifest["layers"]))
    layers = [(_blob(opened, layer, check=False), str(layer["digest"])) for layer in manifest["layers"]]
    return Layered(config, layers)


def _one(index: dict[str, Any]) -> dict[str, Any]:
    """Return the descriptor of the only image in an index. Attestations are ignored."""
    found = [
        entry for entry in index.get("manifests") or [] if (entry.get("platform") or {}).get("os", "linux") == "linux"
    ]
    if len(found) != 1:
        names = ", ".join(
            str((entry.get("annotations") or {}).get("org.opencontainers.image.ref.name"))
            + "/" + str((entry.get("platform") or {}).get("architecture"))
            for entry in found
        )  # fmt: skip
        hint = "copy only one of them, with skopeo copy"
        raise UsageError(f"the layout holds {len(found)} Linux images: {names}", hint)
    return dict(found[0])


def _blob(opened: _Opener, descriptor: dict[str, Any], check: bool = True) -> ArchivePart:
    digest = str(descriptor["digest"])
    part = opened("blobs/" + digest.replace(":", "/"))
    if check:
        _check(part, digest)
    return part


def _diff_ids(config: dict[str, Any], layers: int) -> list[str]:
    digests = [str(digest) for digest in (config.get("rootfs") or {}).get("diff_ids") or []]
    if len(digests) != layers:
        raise UsageError(f"the image has {counted(layers, 'layer')}, and {len(digests)} in its configuration")
    return digests


def _documents(kind: Callable[[_Opener], Layered], opened: _Opener) -> Layered:
    """Read an image's documents."""
    try:
        found = kind(opened)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"the image has an invalid document: {error}") from error
    if found.config.get("os", "linux") != "linux":
        raise UsageError(f"the image is for {found.config['os']}, not for Linux")
    return found


def _image(layered: Layered, scratch: Scratch) -> ArchiveImage:
    """Apply an image's layers, while another thread checks their digests."""
    root = Rootfs()
    for part, digest in layered.layers:
        if digest:
            scratch.check_beside(functools.partial(_check, part, digest))
        root.apply(entries_of(part, scratch))
    return ArchiveImage(str(layered.config.get("architecture") or ""), dict(layered.config.get("config") or {}), root)


def _check(part: ArchivePart, digest: str) -> None:
    if f"sha256:{files.sha256(_raw(part))}" != digest:
        raise IntegrityError(f"the image is damaged: a blob does not have its digest {digest}")


def _json(data: bytes, kind: type) -> Any:
    found = json_records.parse(data, "a document of the image")
    if not isinstance(found, kind):
        raise UsageError("the image has an invalid document")
    return found


# ------------------------------------------------------------------------------------------------ layers


def _magic(part: ArchivePart) -> bytes | None:
    start = os.pread(part.stream.fileno(), min(6, part.size), part.offset)
    for magic, name in _OTHERS.items():
        if start.startswith(magic):
            hint = "give a plain, gzip or zstd tar"
            raise UsageError(f"it is compressed with {name}, which deployer cannot read", hint)
    return next((magic for magic in (_GZIP, _ZSTD) if start.startswith(magic)), None)


def entries_of(part: ArchivePart, scratch: Scratch) -> FileEntries:
    """Yield a layer's entries. If the layer is compressed, write file contents to the spool."""
    magic = _magic(part)
    if magic is None:
        yield from tarreader.entries_of(Slice(*part))
        return
    read = _reader(part, magic)
    with _broken_codec():
        yield from tarreader.entries_of(Spooled(read, scratch.spool))
        while read(_CHUNK):  # read the zeros after the tar's end, because the codec's own checksum follows them
            pass


@contextlib.contextmanager
def _broken_codec() -> Iterator[None]:
    """Convert errors of a decompressor into UsageError."""
    try:
        yield
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UsageError(f"the compressed tar is broken or cut off: {error}") from error


def _raw(part: ArchivePart) -> io.BufferedReader:
    """Return the part as a separate stream, because other threads read from the file too."""
    return io.BufferedReader(files.Window(part.stream.fileno(), part.offset, part.size), _CHUNK)


def _reader(part: ArchivePart, magic: bytes | None) -> Callable[[int], bytes]:
    """Return a function that reads the next bytes of a layer, uncompressed."""
    raw = _raw(part)
    if magic == _ZSTD:
        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, read_size=_CHUNK).read
    return gzip.GzipFile(fileobj=raw).read if magic else raw.read
