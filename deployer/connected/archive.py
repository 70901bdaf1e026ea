"""Images in files: a `docker save` archive, an OCI archive or layout, or a flat tar; any of them compressed.

The kind is seen from the content. Sources: Docker image specification 1.2 (manifest.json); OCI image-spec 1.0.
"""

import functools
import gzip
import hashlib
import io
import json
import os
import posixpath
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import zstandard

from deployer.connected import tarreader
from deployer.connected.members import Members, Stored
from deployer.connected.rootfs import Root
from deployer.connected.scratch import Scratch
from deployer.connected.tarreader import Slice, Spooled
from deployer.contract.errors import DeployerError, IntegrityError, UsageError
from deployer.contract.tarformat import FILE, FOLDER, SYMLINK
from deployer.system import files

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"hsqs": "SquashFS"}
_MAX_DOCUMENT = 16 * 1024 * 1024
_CHUNK = 1024 * 1024
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")


class Image(NamedTuple):
    """A root filesystem and what its image says of it: ``config`` has Env and so on; ``architecture`` may be ""."""

    architecture: str
    config: dict[str, Any]
    root: Root


class _Part(NamedTuple):
    """A stretch of an open file."""

    stream: IO[bytes]
    offset: int
    size: int

    def read(self) -> bytes:
        if self.size > _MAX_DOCUMENT:
            raise UsageError(f"the image has a document of {self.size} bytes")
        return os.pread(self.stream.fileno(), self.size, self.offset)


def read(path: Path, scratch: Scratch) -> Image:
    """Return the image in a file or folder; its files stay open as long as ``scratch``. Raises UsageError."""
    if path.is_dir():
        return _image(_oci, lambda name: _file_part(path, name, scratch), scratch)
    with files.errors_named(f"read {path}"):
        try:
            stream = scratch.open(path)
        except FileNotFoundError:
            raise UsageError(f"there is no file {path}") from None
        part = _Part(stream, 0, os.fstat(stream.fileno()).st_size)
        try:
            return _read_file(part, scratch)
        except DeployerError as error:
            raise type(error)(f"{path}: {error.message}", error.hint) from error


def _read_file(part: _Part, scratch: Scratch) -> Image:
    """Index the file's tar, then see by its names what it is: contents that were passed over are at hand."""
    found = list(_layer(part, scratch))
    stored = {}
    for member in found:
        name = posixpath.normpath(os.fsdecode(member.path))
        if member.kind == FILE and isinstance(member.data, Stored):
            stored[name] = member.data
        elif member.kind == SYMLINK:  # `docker save` of old links layers that are the same
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), os.fsdecode(member.target)))
            if target in stored:
                stored[name] = stored[target]
    roots = any(member.kind == FOLDER and member.path.strip(b"./") in (b"usr", b"bin", b"etc") for member in found)
    if not roots and ("manifest.json" in stored or "oci-layout" in stored):
        opened = functools.partial(_member_part, stored)
        return _image(_docker if "manifest.json" in stored else _oci, opened, scratch)
    root = Root()
    root.apply(found)
    return Image("", {}, root)


_Opener = Callable[[str], _Part]


def _member_part(stored: dict[str, Stored], name: str) -> _Part:
    data = stored.get(posixpath.normpath(name))
    if data is None:
        raise UsageError(f"the archive is not whole: it has no {name}")
    stream, offset = data.place()
    return _Part(stream, offset, data.size)


def _file_part(folder: Path, name: str, scratch: Scratch) -> _Part:
    try:
        stream = scratch.open(folder / name)
    except OSError as error:
        hint = "a folder is an OCI layout here; a root filesystem's is given with --rootfs"
        raise UsageError(f"{folder} is no OCI layout: no {name} in it ({error.strerror})", hint) from None
    return _Part(stream, 0, os.fstat(stream.fileno()).st_size)


# ------------------------------------------------------------------------------------------------ kinds of image


class _Layered(NamedTuple):
    """An image's configuration; its layers, the lowest first, each with the digest of its bytes where that is known."""

    config: dict[str, Any]
    layers: list[tuple[_Part, str]]


def _docker(opened: _Opener) -> _Layered:
    images = _json(opened("manifest.json").read(), list)
    if len(images) != 1:
        names = ", ".join(str((image.get("RepoTags") or ["?"])[0]) for image in images)
        raise UsageError(f"the archive holds {len(images)} images: {names}", "save the one that is meant")
    config = _json(opened(str(images[0]["Config"])).read(), dict)
    parts = [opened(str(name)) for name in images[0].get("Layers") or []]
    digests = _diff_ids(config, len(parts))
    plain = [digest if _magic(part) is None else "" for part, digest in zip(parts, digests, strict=True)]
    return _Layered(config, list(zip(parts, plain, strict=True)))


def _oci(opened: _Opener) -> _Layered:
    opened("oci-layout")
    descriptor = _one(_json(opened("index.json").read(), dict))
    while descriptor.get("mediaType") in _INDEXES:
        descriptor = _one(_json(_blob(opened, descriptor).read(), dict))
    manifest = _json(_blob(opened, descriptor).read(), dict)
    config = _json(_blob(opened, manifest["config"]).read(), dict)
    _diff_ids(config, len(manifest["layers"]))
    layers = [(_blob(opened, layer, check=False), str(layer["digest"])) for layer in manifest["layers"]]
    return _Layered(config, layers)


def _one(index: dict[str, Any]) -> dict[str, Any]:
    """Return the descriptor of the one image of an index; attestations beside it are none."""
    found = [
        entry for entry in index.get("manifests") or [] if (entry.get("platform") or {}).get("os", "linux") == "linux"
    ]
    if len(found) != 1:
        names = ", ".join(
            str((entry.get("annotations") or {}).get("org.opencontainers.image.ref.name"))
            + "/" + str((entry.get("platform") or {}).get("architecture"))
            for entry in found
        )  # fmt: skip
        raise UsageError(
            f"the layout holds {len(found)} Linux images: {names}", "copy the one that is meant: skopeo copy"
        )
    return dict(found[0])


def _blob(opened: _Opener, descriptor: dict[str, Any], check: bool = True) -> _Part:
    digest = str(descriptor["digest"])
    part = opened("blobs/" + digest.replace(":", "/"))
    if check:
        _check(part, digest)
    return part


def _diff_ids(config: dict[str, Any], layers: int) -> list[str]:
    digests = [str(digest) for digest in (config.get("rootfs") or {}).get("diff_ids") or []]
    if len(digests) != layers:
        raise UsageError(f"the image has {layers} layers, and {len(digests)} in its configuration")
    return digests


def _image(kind: Callable[[_Opener], _Layered], opened: _Opener, scratch: Scratch) -> Image:
    """Read an image's documents and apply its layers; their digests are checked beside the work."""
    try:
        config, layers = kind(opened)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"the image has a document of another form: {error}") from error
    if config.get("os", "linux") != "linux":
        raise UsageError(f"the image is for {config['os']}, not for Linux")
    root = Root()
    for part, digest in layers:
        if digest:
            scratch.check_beside(functools.partial(_check, part, digest))
        root.apply(_layer(part, scratch))
    return Image(str(config.get("architecture") or ""), dict(config.get("config") or {}), root)


def _check(part: _Part, digest: str) -> None:
    state = hashlib.sha256()
    for start in range(0, part.size, _CHUNK):
        state.update(os.pread(part.stream.fileno(), min(_CHUNK, part.size - start), part.offset + start))
    if f"sha256:{state.hexdigest()}" != digest:
        raise IntegrityError(f"the image is damaged: a blob does not have its digest {digest}")


def _json(data: bytes, kind: type) -> Any:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise UsageError(f"the image has a document that is no JSON: {error}") from error
    if not isinstance(found, kind):
        raise UsageError("the image has a document of another form")
    return found


# ------------------------------------------------------------------------------------------------ layers


def _magic(part: _Part) -> bytes | None:
    start = os.pread(part.stream.fileno(), min(6, part.size), part.offset)
    for magic, name in _OTHERS.items():
        if start.startswith(magic):
            raise UsageError(f"it is compressed with {name}, which is not read here", "give a plain, gzip or zstd tar")
    return next((magic for magic in (_GZIP, _ZSTD) if start.startswith(magic)), None)


def _layer(part: _Part, scratch: Scratch) -> Members:
    """Yield a layer's members; contents of one that is compressed go to the spool."""
    magic = _magic(part)
    if magic is None:
        yield from tarreader.members(Slice(*part))
        return
    raw = io.BufferedReader(_Window(part), _CHUNK)
    stream = _decoder(raw, magic)
    try:
        yield from tarreader.members(Spooled(stream.read, scratch.spool))
        while stream.read(_CHUNK):  # zeros behind the end, and with them the codec's own check
            pass
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UsageError(f"the compressed tar is broken or cut off: {error}") from error


class _Decoder(Protocol):
    def read(self, size: int) -> bytes: ...


def _decoder(raw: Any, magic: bytes) -> _Decoder:
    if magic == _GZIP:
        return gzip.GzipFile(fileobj=raw, mode="rb")
    decoder: _Decoder = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, read_size=_CHUNK)
    return decoder


class _Window(io.RawIOBase):
    """A part of a file as a stream of its own."""

    def __init__(self, part: _Part) -> None:
        self._part = part
        self._done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._part.size - self._done)
        data = os.pread(self._part.stream.fileno(), size, self._part.offset + self._done)
        buffer[: len(data)] = data
        self._done += len(data)
        return len(data)
