"""Bundles made by hand, with the contract alone: what a site's tests (Python 3.6) and the attack tests start from.

The product's writer is deployer/connected/bundle/seal.py; this one can also write what that one would refuse.
"""

import gzip
import hashlib
import io
import itertools
import json
import zipfile
import zlib
from pathlib import Path

from deployer.contract.base import json_records, tarformat
from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, SYMLINK, TarEntry
from deployer.contract.bundle import manifest as manifests
from deployer.contract.bundle import oci, sealed_file
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import (
    DATA,
    FRAME,
    HEADER,
    PADDING,
    BundleMember,
    Image,
    Manifest,
    Segment,
    WheelOverlay,
)

END = b"\0" * 1024

#: Content and entries of a small root filesystem in the order of a layer.
ENTRIES = [
    (TarEntry(FOLDER, b"bin", 0o755), b""),
    (TarEntry(FOLDER, b"etc", 0o755), b""),
    (TarEntry(FILE, b"bin/tool", 0o755, 9), b"#!/bin/sh"),
    (TarEntry(FILE, b"etc/odd\xff\nname", 0o600, 600), b"x" * 600),
    (TarEntry(HARDLINK, b"bin/same", 0o777, 0, b"bin/tool"), b""),
    (TarEntry(SYMLINK, b"etc/out", 0o777, 0, b"/nowhere"), b""),
]


def stream(entries):
    """Return the layer's tar stream of (entry, content) pairs, without its end."""
    return b"".join(
        tarformat.encode(entry) + content + b"\0" * tarformat.padding(len(content)) for entry, content in entries
    )


class Builder:
    """Collects members and segments; ``seal`` returns the whole file. Change its fields to attack."""

    def __init__(self):
        self.out = io.BytesIO()
        self.members = []
        self.segments = []

    def write(self, kind, data, raw=None, holds=None):
        self.segments.append(Segment(kind, self.out.tell(), len(data), hashlib.sha256(data).hexdigest(), raw, holds))
        self.out.write(data)

    def layer(self, name, frames, raws, holds):
        member = BundleMember(name, sum(len(frame) for frame in frames), 0o644)
        self.members.append(member)
        self.write(HEADER, sealed_file.member_header(member))
        for frame, raw, held in zip(frames, raws, holds):  # noqa: B905 (strict= came with 3.10)
            self.write(FRAME, frame, raw, held)
        if tarformat.padding(member.size):
            self.write(PADDING, b"\0" * tarformat.padding(member.size))

    def member(self, name, pieces, mode=0o644):
        size = sum(len(piece) for piece in pieces)
        member = BundleMember(name, size, mode)
        self.members.append(member)
        self.write(HEADER, sealed_file.member_header(member))
        for piece in pieces:
            self.write(DATA, piece)
        if tarformat.padding(size):
            self.write(PADDING, b"\0" * tarformat.padding(size))

    def seal(self, manifest):
        data = json_records.dumps(manifest._replace(members=self.members, segments=self.segments).record())
        return self.seal_bytes(data)

    def seal_bytes(self, data):
        seal = sealed_file.Seal(self.out.tell(), len(data), hashlib.sha256(data).hexdigest())
        return self.out.getvalue() + sealed_file.manifest_block(data) + sealed_file.tail(seal)


def compress(piece):
    packer = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(piece) + packer.flush()


def whole(entries):
    """Return the pieces of a layer, (holds, bytes) each: one for each section, then the end."""
    sections = itertools.groupby(entries, lambda pair: tarformat.SECTIONS[pair[0].kind])
    return [(section, stream(list(pairs))) for section, pairs in sections] + [(tarformat.LINKS, END)]


def build(
    pieces=None,
    extra=(),
    name="tiny",
    version="1.0",
    jobs=(),
    raws=None,
    layer_digest=None,
    python=None,
    architecture="amd64",
):
    """Return the bytes of a bundle whose layer has the uncompressed ``pieces`` (holds, bytes), gzip frames.

    ``extra`` are more members: (name, bytes), or with the mode as a third. Wheels become overlays, as pack makes them.
    """
    pieces = whole(ENTRIES) if pieces is None else pieces
    holds = [held for held, _ in pieces]
    pieces = [piece for _, piece in pieces]
    frames = [compress(piece) for piece in pieces]
    raws = [len(piece) for piece in pieces] if raws is None else raws
    builder = Builder()
    builder.member("deployer.pyz", [b"not really one"], mode=0o755)
    builder.member(oci.LAYOUT_FILE, [oci.LAYOUT])
    layer = oci.blob(b"".join(frames))
    layer = layer._replace(digest=layer_digest or layer.digest)
    builder.layer(layer.member, frames, raws, holds)
    raw = hashlib.sha256(b"".join(pieces)).hexdigest()
    config = oci.config(architecture, {"Env": ["PATH=/bin"]}, "sha256:" + raw)
    builder.member(oci.blob(config).member, [config])
    image_manifest = oci.manifest(oci.blob(config), layer, "gzip")
    builder.member(oci.blob(image_manifest).member, [image_manifest])
    builder.member(oci.INDEX_FILE, [oci.index(oci.blob(image_manifest), name, version, architecture)])
    wheels = {}
    for member, data, *mode in extra:
        if member.endswith(".whl"):
            folder, _, file_name = member[len("deployer/") :].rpartition("/")
            wheels.setdefault(manifests.ENGINE if folder == "kit" else folder, {})[file_name] = data
        else:
            builder.member(member, [data], *mode)
    overlays = [overlay(builder, overlay_name, found) for overlay_name, found in sorted(wheels.items())]
    image = Image(
        oci.blob(config).digest, layer.digest, architecture, ["PATH=/bin"], "/", [], [], python, sum(raws), len(ENTRIES)
    )
    manifest = Manifest(name, version, {"name": "gzip", "version": "1", "level": 6}, {}, image, {}, list(jobs), [], [])
    return builder.seal(manifest._replace(overlays=overlays))


def write(path, *pieces, **options):
    """Write what `build` makes into a file and return its path."""
    path.write_bytes(build(*pieces, **options))
    return path


def overwrite(path, data, at=0):
    """Put ``data`` over what a file has from byte ``at`` on."""
    with open(path, "r+b") as stream:
        stream.seek(at)
        stream.write(data)


def flip(path, at):
    """Change one bit of a file's byte ``at``."""
    overwrite(path, bytes([Path(path).read_bytes()[at] ^ 1]), at)


def overlay(builder, name, wheels):
    """Write the files of wheels, bytes by file name, as an overlay."""
    files = {}
    for data in wheels.values():
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files.update(("lib/" + info, archive.read(info)) for info in archive.namelist())
    folders = {path[:end] for path in files for end in range(len(path)) if path[end] == "/"}
    entries = [(TarEntry(FOLDER, path.encode(), 0o755), b"") for path in sorted(folders)]
    entries += [(TarEntry(FILE, path.encode(), 0o644, len(data)), data) for path, data in sorted(files.items())]
    made = WheelOverlay(name, sorted(wheels), len(entries), sum(map(len, files.values())))
    pieces = whole(entries)
    frames = [compress(piece) for _, piece in pieces]
    builder.layer(made.member, frames, [len(piece) for _, piece in pieces], [held for held, _ in pieces])
    return made


def reseal(data, change):
    """Return the bundle ``data`` with its manifest record changed by ``change(record)`` and sealed again."""
    seal = sealed_file.read_tail(data[-sealed_file.TAIL :], len(data))
    start = seal.offset + tarformat.BLOCK
    record = json_records.loads(data[start : start + seal.size], manifests.SCHEMA, "test").record
    change(record)
    builder = Builder()
    builder.out.write(data[: seal.offset])
    return builder.seal_bytes(json_records.dumps(record))


def with_seal(data, change):
    """Return the bundle ``data`` with its seal's record changed by ``change(record)``, in a right tar record."""
    content = data[-sealed_file.TAIL :][tarformat.BLOCK : -len(END)]
    record = json.loads(content.decode())
    change(record)
    return with_seal_bytes(data, json_records.dumps(record))


def with_seal_bytes(data, content):
    """Return the bundle ``data`` with ``content`` as its seal, padded as a seal is."""
    size = sealed_file.TAIL - tarformat.BLOCK - len(END)
    header = data[-sealed_file.TAIL :][: tarformat.BLOCK]
    return data[: -sealed_file.TAIL] + header + content.ljust(size, b"\n") + END


JOB = Job("hello", ["python3", "hello.py"], 2, 1, 1, "00:10:00")
gunzip = gzip.decompress
