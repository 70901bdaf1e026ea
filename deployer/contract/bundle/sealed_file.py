"""The sealed file: the position of its manifest, and the check that its segment table matches its members.

Pure: bytes in, exceptions out. A bundle is ``members | bundle.json | seal``. The seal is one tar record of 10,240 bytes
at the end of the file. It holds the manifest's offset and digest and any signatures, so that signing rewrites only the
tail. The segment table covers everything before bundle.json, and bundle.json is covered by its digest. The tail and the
headers are functions of what they describe and are compared byte for byte. A later format that adds to the seal must
raise its min_reader: unknown fields, which readers skip elsewhere, would be bytes that no check covers.
"""

import functools
import hashlib
import re
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from deployer.contract.base import json_records, tarformat
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.base.tarformat import BLOCK, TarEntry
from deployer.contract.bundle import manifest as manifests
from deployer.contract.bundle import oci, sshsig
from deployer.contract.bundle.manifest import DATA, FRAME, HEADER, MAX_RAW, PADDING, BundleMember, Manifest, Segment

MANIFEST_FILE = "deployer/bundle.json"
SEAL_FILE = "deployer/seal.json"
TAIL = 10240
_SEAL_SIZE = TAIL - 3 * BLOCK  # one header before it, and tar's end (two empty blocks) after it
_MODE = 0o644
_HEX = re.compile(r"^[0-9a-f]{64}$")

#: A manifest is in memory several times during parsing; manifest.MAX_MEMORY limits its content.
MAX_MANIFEST = 64 * 1024 * 1024
#: A larger manifest is not kept after it was read, because docs/limits.md promises how much memory an install needs.
_MAX_KEPT = 1024 * 1024


class Seal(NamedTuple):
    """The seal of a bundle.

    Attributes:
        offset: where the tar header of bundle.json starts.
        size: bytes of bundle.json.
        sha256: of bundle.json, hexadecimal.
        signatures: OpenSSH signatures over the bytes of bundle.json, as ``sshsig`` reads them, sorted; may be empty.
    """

    offset: int
    size: int
    sha256: str
    signatures: Tuple[bytes, ...] = ()

    @property
    def digest(self) -> str:
        """Return the bundle's digest, which people can compare by phone or on paper."""
        return "sha256:" + self.sha256

    @property
    def end(self) -> int:
        """Return where the tail starts."""
        return self.offset + BLOCK + self.size + tarformat.padding(self.size)


def member_header(member: BundleMember) -> bytes:
    """Return the tar header of a member of the bundle."""
    try:
        name = member.name.encode("utf-8")
    except UnicodeEncodeError:
        raise IntegrityError(f"a member's name is not Unicode text: {member.name!r}") from None
    tarformat.check_path(name)
    if member.mode > 0o777:  # the most that a header can hold
        raise IntegrityError(f"a member has the mode {member.mode:o}: {member.name!r}")
    return tarformat.encode(TarEntry(tarformat.FILE, name, member.mode, member.size))


def manifest_block(data: bytes) -> bytes:
    """Return bundle.json as in the file: header, content and padding."""
    header = member_header(BundleMember(MANIFEST_FILE, len(data), _MODE))
    return header + data + b"\0" * tarformat.padding(len(data))


def tail(seal: Seal) -> bytes:
    """Return the last 10,240 bytes of the file. Raises UsageError if the signatures do not fit."""
    fields = {"offset": seal.offset, "size": seal.size, "sha256": seal.sha256}
    signed = {"signatures": [sshsig.encode(blob) for blob in seal.signatures]} if seal.signatures else {}
    content = json_records.dumps(json_records.stamped("seal", dict(fields, **signed)))
    if len(content) > _SEAL_SIZE:
        raise UsageError("the seal has no room for another signature", "a signature of an ed25519 key is the smallest")
    header = member_header(BundleMember(SEAL_FILE, _SEAL_SIZE, _MODE))
    return header + content.ljust(_SEAL_SIZE, b"\n") + b"\0" * (2 * BLOCK)


def read_tail(data: bytes, file_size: int) -> Seal:
    """Parse the last 10,240 bytes of a file of ``file_size`` bytes. Raises IntegrityError."""
    if len(data) != TAIL or SEAL_FILE.encode() not in data[:100]:
        raise IntegrityError("the file is not a bundle, or its end is missing")
    fields = json_records.loads(data[BLOCK : BLOCK + _SEAL_SIZE], "seal", "the bundle's seal", IntegrityError)
    texts = fields.texts("signatures") if "signatures" in fields.record else []
    signatures = tuple(sshsig.decode(text) for text in texts)
    seal = Seal(fields.number("offset"), fields.number("size"), fields.text("sha256"), signatures)
    if not _HEX.match(seal.sha256) or seal.size > MAX_MANIFEST or seal.end + TAIL != file_size:
        raise IntegrityError("the bundle's seal does not match the file: the file was truncated or extended")
    if tail(seal) != data or sorted(set(signatures)) != list(signatures):
        raise IntegrityError("the bundle's tail is not in its canonical form")
    return seal


def manifest_bytes(block: bytes, seal: Seal) -> bytes:
    """Return bundle.json, which a signature covers, from ``block``, the bytes from ``seal.offset`` to the tail."""
    data = block[BLOCK : BLOCK + seal.size]
    if block != manifest_block(data) or hashlib.sha256(data).hexdigest() != seal.sha256:
        raise IntegrityError("the bundle's manifest does not match its seal")
    return data


def read_manifest(block: bytes, seal: Seal) -> Manifest:
    """Check and parse bundle.json from ``block``."""
    return parse_manifest(manifest_bytes(block, seal), seal)


def parse_manifest(data: bytes, seal: Seal) -> Manifest:
    """Parse bundle.json, whose bytes ``manifest_bytes`` has verified.

    An install needs each manifest several times, and manifests have thousands of segments. Therefore the last ones are
    kept, except large ones, which would need too much memory. The result is shared and must not be changed.
    """
    return (_kept if len(data) <= _MAX_KEPT else _parse)(data, seal)


def _parse(data: bytes, seal: Seal) -> Manifest:
    manifest = manifests.read(data, MANIFEST_FILE)
    check(manifest, seal.offset)
    return manifest


_kept = functools.lru_cache(maxsize=4)(_parse)


def check(manifest: Manifest, end: int) -> None:
    """Raise IntegrityError unless the segment table matches the file that the members describe, from 0 to ``end``."""
    _check_names([member.name for member in manifest.members] + [MANIFEST_FILE, SEAL_FILE])
    position = 0
    segments = iter(manifest.segments)

    def take(kind: str) -> Segment:
        nonlocal position
        segment = next(segments, None)
        if segment is None or segment.kind != kind or segment.offset != position or not _HEX.match(segment.sha256):
            raise IntegrityError("the segment table has a gap or a stray segment at byte %d" % position)
        position += segment.size
        return segment

    def take_known(kind: str, data: bytes) -> None:
        segment = take(kind)
        if segment.size != len(data) or segment.sha256 != hashlib.sha256(data).hexdigest():
            raise IntegrityError("the %s at byte %d does not match the member list" % (kind, segment.offset))

    layer, raw_size = layer_member(manifest), 0
    framed = {layer, *(overlay.member for overlay in manifest.overlays)}
    for member in manifest.members:
        take_known(HEADER, member_header(member))
        content_end = position + member.size
        while position < content_end:
            segment = take(FRAME if member.name in framed else DATA)
            _check_content(segment)
            raw_size += segment.raw or 0 if member.name == layer else 0
        if position != content_end:
            raise IntegrityError(f"the segments of {member.name} do not end where the member ends")
        if tarformat.padding(member.size):
            take_known(PADDING, b"\0" * tarformat.padding(member.size))
    if next(segments, None) is not None or position != end:
        raise IntegrityError("the segment table does not end where the manifest starts")
    if manifest.image.raw_size != raw_size:
        raise IntegrityError("the frames do not add up to the size of the image")  # the space check relies on that size
    by_member = contents(manifest.members, manifest.segments)
    _check_overlays(manifest, by_member)
    _check_oci(manifest, by_member)


def _check_overlays(manifest: Manifest, by_member: Dict[str, List[Segment]]) -> None:
    """Raise IntegrityError unless each overlay is one member without links, because the host writes into overlays."""
    names = [overlay.member for overlay in manifest.overlays]
    if len(set(names)) < len(names) or not by_member.keys() >= set(names):
        raise IntegrityError("an overlay is missing, or is listed twice")
    for overlay in manifest.overlays:
        ends = [segment.raw or 0 for segment in by_member[overlay.member] if segment.holds == tarformat.LINKS]
        if sum(ends) != 2 * BLOCK:
            raise IntegrityError(f"the overlay {overlay.name} has links, or does not end")


def layer_member(manifest: Manifest) -> str:
    """Return the name of the member that is the layer."""
    return oci.Blob(manifest.image.layer_digest, 0).member


def member_segments(manifest: Manifest, name: str) -> List[Segment]:
    """Return the content segments of a member, in order. Raises IntegrityError if the member does not exist."""
    by_member = contents(manifest.members, manifest.segments)
    if name not in by_member:
        raise IntegrityError(f"the bundle has no member {name}")
    return by_member[name]


def small(manifest: Manifest, name: str, read: Callable[[Segment], bytes]) -> Optional[bytes]:
    """Return a member's bytes, or None if the bundle has no such member. Raises IntegrityError if it is too large.

    Args:
        read: returns the bytes of a segment after checking its digest.
    """
    segments = contents(manifest.members, manifest.segments).get(name, ())
    if sum(segment.size for segment in segments) > MAX_MANIFEST:
        raise IntegrityError(f"{name} is too large to be read")
    return b"".join(map(read, segments)) or None


def contents(members: Iterable[BundleMember], segments: Iterable[Segment]) -> Dict[str, List[Segment]]:
    """Return the content segments of every member, in order. The manifest must have been checked."""
    by_member: Dict[str, List[Segment]] = {}
    content = iter([segment for segment in segments if segment.kind in (DATA, FRAME)])
    for member in members:
        by_member[member.name] = []
        left = member.size
        while left:
            segment = next(content)
            by_member[member.name].append(segment)
            left -= segment.size
    return by_member


def _check_content(segment: Segment) -> None:
    is_frame = segment.raw is not None and segment.holds in tarformat.HOLDINGS
    if segment.size == 0 or is_frame != (segment.kind == FRAME):
        raise IntegrityError("the segment at byte %d is empty or lacks a field" % segment.offset)
    if (segment.raw or 0) > MAX_RAW:
        raise IntegrityError("the frame at byte %d announces %d bytes" % (segment.offset, segment.raw or 0))


def _check_names(names: List[str]) -> None:
    """Raise IntegrityError unless all members can exist beside each other in one folder."""
    if len(set(names)) != len(names):
        raise IntegrityError("a member appears twice in the bundle")
    folders = {name[:end] for name in names for end in range(len(name)) if name[end] == "/"}
    if folders.intersection(names):
        raise IntegrityError("a member of the bundle is both a file and a folder")


def image_manifest(manifest: Manifest) -> bytes:
    """Return the image manifest of a bundle. Raises IntegrityError if it lacks the configuration or the layer."""
    sizes = {member.name: member.size for member in manifest.members}
    codec = str(manifest.codec["name"])
    if codec not in oci.LAYER_TYPES:
        raise IntegrityError(f"unknown codec of the layer: {codec!r}")

    def blob(digest: str) -> oci.Blob:
        name = oci.Blob(digest, 0).member
        if not re.match(r"^sha256:[0-9a-f]{64}$", digest) or name not in sizes:
            raise IntegrityError(f"the bundle has no blob {digest}")
        return oci.Blob(digest, sizes[name])

    return oci.manifest(blob(manifest.image.config_digest), blob(manifest.image.layer_digest), codec)


def _check_oci(manifest: Manifest, by_member: Dict[str, List[Segment]]) -> None:
    """Raise IntegrityError unless the OCI documents match config, layer, name and version."""
    of_image = image_manifest(manifest)
    index = oci.index(oci.blob(of_image), manifest.name, manifest.version, manifest.image.architecture)
    config = manifest.image.config_digest
    expected = {
        oci.LAYOUT_FILE: hashlib.sha256(oci.LAYOUT).hexdigest(),
        oci.INDEX_FILE: hashlib.sha256(index).hexdigest(),
        oci.blob(of_image).member: hashlib.sha256(of_image).hexdigest(),
        oci.Blob(config, 0).member: config.split(":")[1],
    }
    for name, sha256 in expected.items():
        if [segment.sha256 for segment in by_member.get(name, ())] != [sha256]:
            raise IntegrityError(f"{name} does not match config and layer")
