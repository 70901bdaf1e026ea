"""What the tests of flatten and pack share: members and layers made by hand, and images made of them."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Sequence
from typing import Any

from deployer.connected.rootfs import tarreader
from deployer.connected.rootfs.entries import FileEntry
from deployer.connected.rootfs.merge import Rootfs
from deployer.connected.rootfs.tarreader import Spooled


class Kept(io.FileIO):
    """A spool without a name, in memory, that closes without a word when nothing refers to it any more."""

    def __init__(self) -> None:
        super().__init__(os.memfd_create("spool"), "r+b")

    def __del__(self) -> None:
        self.close()


def members(tar: bytes) -> list[FileEntry]:
    """Return the members of a tar, read as from a pipe."""
    return list(tarreader.entries_of(Spooled(io.BytesIO(tar).read, Kept())))


def root_of(*layers: bytes) -> Rootfs:
    """Return the root filesystem that these layers make."""
    root = Rootfs()
    for layer in layers:
        root.apply(members(layer))
    return root


def layer(entries: Iterable[tuple[str, Any]]) -> bytes:
    """Return a layer: a name and bytes (a file), None (a folder), "-> x" (a link) or "= x" (a hard link)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, what in entries:
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            if what is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(what, bytes):
                info.size = len(what)
            else:
                sign, _, info.linkname = what.partition(" ")
                info.type = tarfile.SYMTYPE if sign == "->" else tarfile.LNKTYPE
            tar.addfile(info, io.BytesIO(what if isinstance(what, bytes) else b""))
    return stream.getvalue()


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def image_config(layers: Sequence[bytes]) -> bytes:
    return json.dumps(
        {
            "architecture": "arm64",
            "os": "linux",
            "config": {"Env": ["A=b"], "Cmd": ["sh"], "WorkingDir": "/w", "Labels": {"x": "y"}, "User": "me"},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        }
    ).encode()


def docker_archive(layers: Sequence[bytes], tags: Sequence[str] = ("a:1",)) -> dict[str, bytes]:
    """Return the files of a `docker save` archive."""
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    listed = [{"Config": "c.json", "RepoTags": [tag], "Layers": names} for tag in tags]
    blobs = dict(zip(names, layers, strict=True))
    return {**blobs, "c.json": image_config(layers), "manifest.json": json.dumps(listed).encode()}


def oci_archive(layers: Sequence[bytes], packed: Sequence[bytes] | None = None) -> dict[str, bytes]:
    """Return the files of an OCI layout; ``packed`` are the layers as they are stored, when not plain."""
    blobs = list(layers if packed is None else packed)
    config = image_config(layers)
    manifest = json.dumps(
        {"config": {"digest": digest(config)}, "layers": [{"digest": digest(blob)} for blob in blobs]}
    ).encode()
    index = json.dumps({"manifests": [{"digest": digest(manifest)}]}).encode()
    stored = {"blobs/" + digest(blob).replace(":", "/"): blob for blob in (config, manifest, *blobs)}
    return {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index, **stored}


def archive(files: dict[str, bytes]) -> bytes:
    return layer(files.items())
