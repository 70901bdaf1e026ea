"""Base images from archives: a docker save or OCI archive is loaded with its layers; a flat tar is imported.

Before version 25, Docker loads neither OCI archives nor archives compressed with zstd. It also tags the image with the
name in the archive. So the engine receives a new archive with the same configuration and layers, under our name. The
engine still checks each layer's digest. Source: Docker image specification 1.2, "Combined Image JSON + Filesystem
Changeset Format".
"""

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import docker

from deployer.connected.ground import engine, progress
from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs import archive, machine
from deployer.contract.base.errors import DeployerError, IntegrityError, SpaceError
from deployer.contract.base.tarformat import padding
from deployer.system import files

#: The name of bases that we make. A builder that lacks one asks nobody else for it.
REPOSITORY = "localhost/deployer/base"
#: The history of a layer. Without a line for each layer, buildah builds nothing on an image; without a date, podman
#: crashes.
_STEP = {"created": "1970-01-01T00:00:00Z", "created_by": "deployer"}
_MANIFEST, _CONFIG = "manifest.json", "config.json"
_END = b"\0" * 1024


def ensure(client: docker.DockerClient, path: Path, sha256: str | None, say: Callable[[str], None]) -> str:
    """Return the tag of the base image in an archive. Load the image if the engine lacks it.

    The tag contains the file's digest.

    Args:
        sha256: the digest that the file must have, in hexadecimal; None: any.

    Raises:
        IntegrityError: the file has another digest, or the image is damaged.
        UsageError: the file is not an image.
        SpaceError: a disk is full.
        MissingTool: the engine has stopped.
    """
    digest = check(path, sha256)
    tag = f"{REPOSITORY}:{digest[:16]}"
    if engine.has_image(client, tag):
        return tag
    say(f"base: load {path.name} as {tag}")
    with Scratch(Path(tempfile.gettempdir())) as scratch, engine.errors_named(client, f"load {path}"):
        layered = archive.layered(path, scratch)
        if layered is None:
            root = archive.read_image(path, scratch).root
            load_flat(client, path, tag, machine.architecture(root), scratch)
        else:
            own = {"architecture": engine.architecture(client), "os": "linux"}  # for an image that says none
            config = dict(layered.config)
            config.update({name: own[name] for name in own if config.get(name) in (None, "", "unknown")})
            config.setdefault("history", [_STEP] * len(layered.layers))
            uncompressed = (_spooled(archive.uncompressed(part), scratch) for part, _ in layered.layers)
            _load(client, _with_layers(config, tag, uncompressed), path)
    return tag


def load_flat(client: docker.DockerClient, path: Path, tag: str, architecture: str, scratch: Scratch) -> None:
    """Load a flat tar as an image of one layer. `docker import` would label it with the engine's architecture.

    Args:
        architecture: its name in OCI; "unknown": the engine's.
    """
    state = hashlib.sha256()
    layer = _spooled(archive.flat_chunks(path, scratch), scratch, state.update)
    config = {
        "architecture": engine.architecture(client) if architecture == "unknown" else architecture,
        "os": "linux",
        "config": {},
        "history": [_STEP],
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{state.hexdigest()}"]},
    }
    _load(client, _with_layers(config, tag, [layer]), path)


def check(path: Path, sha256: str | None) -> str:
    """Return the SHA-256 of an archive. Raises IntegrityError if it differs from ``sha256`` (None: any is right)."""
    digest = digest_of(path)
    if sha256 is not None and digest != sha256:
        hint = f"base.sha256 is {sha256}"
        raise IntegrityError(f"{path} is not the base that the definition names: its SHA-256 is {digest}", hint)
    return digest


def digest_of(path: Path) -> str:
    """Return the SHA-256 of an archive, in hexadecimal."""
    with files.errors_named(f"read {path}"), progress.bar(f"read {path.name}", path.stat().st_size) as advance:
        return files.sha256_file(str(path), advance)


def _load(client: docker.DockerClient, chunks: Iterator[bytes], path: Path) -> None:
    answer: Iterator[dict[str, Any]] = client.api.load_image(chunks)  # type: ignore[no-untyped-call]
    for message in answer:
        if "error" in message:
            reason = str(message["error"])
            if engine.is_full(reason):
                raise SpaceError(f"cannot load {path}: {engine.FULL}", engine.FREE_SPACE)
            if "invalid diffID" in reason:
                raise IntegrityError(f"{path} is damaged: {reason}")
            raise DeployerError(f"cannot load {path}: {reason}")


def _with_layers(config: Mapping[str, Any], tag: str, layers: Iterable[IO[bytes]]) -> Iterator[bytes]:
    """Yield the `docker save` archive of an image with these layers, which are read one after another."""
    names = [f"{number}.tar" for number in range(len(config["rootfs"]["diff_ids"]))]
    manifest = [{"Config": _CONFIG, "RepoTags": [tag], "Layers": names}]
    yield from _member(_MANIFEST, io.BytesIO(json.dumps(manifest).encode()))
    yield from _member(_CONFIG, io.BytesIO(json.dumps(config, sort_keys=True).encode()))
    for name, layer in zip(names, layers, strict=True):
        with layer:
            yield from _member(name, layer)
    yield _END


def _spooled(chunks: Iterable[bytes], scratch: Scratch, see: Callable[[bytes], object] = lambda _: None) -> IO[bytes]:
    """Return a layer in a temporary file: in a tar, the size comes before the content. ``see`` receives each chunk."""
    spool = scratch.temporary()
    with files.errors_named(f"unpack a layer into {tempfile.gettempdir()}", "set TMPDIR to a larger disk"):
        for chunk in chunks:
            see(chunk)
            spool.write(chunk)
    return spool


def _member(name: str, stream: IO[bytes]) -> Iterator[bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    yield entry.tobuf(tarfile.GNU_FORMAT)
    yield from iter(lambda: stream.read(files.CHUNK), b"")
    yield b"\0" * padding(entry.size)
