"""What a bundle costs a site that has others: which segments it lacks, and the parts that bring them.

Pure. A *part* is a byte range of the bundle made of whole segments, so that the segment table, which has a SHA-256 for
each, checks every part without a second set of digests; its name says where it belongs. The *ending* (manifest and
tail) is sent compressed: it is the plan by which the far side puts the rest together.
"""

import base64
import binascii
import re
import zlib
from typing import FrozenSet, Iterable, List, NamedTuple, Optional, Tuple

from deployer.contract import json_records, sealed_file
from deployer.contract.errors import IntegrityError
from deployer.contract.json_records import Record
from deployer.contract.manifest import Manifest, Segment
from deployer.contract.sealed_file import Seal

SCHEMA = "held"

#: What a part is filled up to. With what ssh holds in flight (about 2 MiB) a cut then loses less than 8 MiB.
PART_SIZE = 5 * 1024 * 1024

#: Held bytes between two missing segments are sent along up to here: another part would cost more.
GAP = 4096

#: Of each SHA-256 that a site holds it tells the first 8 bytes. A chance match among a million segments has odds of
#: one in 10^7, and is found when the bundle is rebuilt: nothing is trusted because of it.
PREFIX = 8

_NAME = re.compile(r"^(\d{1,15})-(\d{1,15})\.(part|end)$")

HeldSegments = FrozenSet[bytes]


class Range(NamedTuple):
    """``size`` bytes at ``offset`` of the bundle."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class Part(Range):
    """Some of the bundle's segments."""

    @property
    def name(self) -> str:
        return "%d-%d.part" % self


class Ending(Range):
    """The bundle from its manifest's header to its last byte."""

    @property
    def name(self) -> str:
        return "%d-%d.end" % self


def read_name(name: str) -> Optional[Range]:
    """Return the Part or Ending that a file's name tells of, or None for any other name."""
    match = _NAME.match(name)
    if not match:
        return None
    kind = Part if match.group(3) == "part" else Ending
    found = kind(int(match.group(1)), int(match.group(2)))
    return found if found.name == name else None


# ---------------------------------------------------------------- what a site holds


def prefix(sha256: str) -> bytes:
    """Return the beginning of a digest given in hexadecimal."""
    return binascii.unhexlify(sha256[: 2 * PREFIX])


def held_text(digests: Iterable[str]) -> str:
    """Return the digests (hexadecimal) that a site holds as a compact text: 11 characters each."""
    return base64.b64encode(b"".join(sorted({prefix(digest) for digest in digests}))).decode("ascii")


def read_held(text: str) -> HeldSegments:
    """Return what ``held_text`` says. Raises IntegrityError."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError as error:
        raise IntegrityError("the list of what the site holds is damaged: %s" % error) from None
    if len(data) % PREFIX:
        raise IntegrityError("the list of what the site holds is cut off")
    return frozenset(data[start : start + PREFIX] for start in range(0, len(data), PREFIX))


def receipt(digests: Iterable[str]) -> Record:
    """Return the record that a site writes for who brings the next bundle on media."""
    return json_records.stamped(SCHEMA, {"segments": held_text(digests)})


def read_receipt(data: bytes, what: str) -> HeldSegments:
    """Parse a receipt. Raises UsageError, IntegrityError."""
    return read_held(json_records.loads(data, SCHEMA, what).text("segments"))


# ---------------------------------------------------------------- what it lacks


def missing(segments: Iterable[Segment], held: HeldSegments) -> List[Segment]:
    """Return the segments to send, in order; content that stands twice is sent once."""
    found = []
    known = set(held)
    for segment in segments:
        key = prefix(segment.sha256)
        if key not in known:
            known.add(key)
            found.append(segment)
    return found


def cut(segments: Iterable[Segment]) -> List[Part]:
    """Return the parts that bring ``segments``: at most PART_SIZE each, or one segment that is larger.

    No writer makes a segment of more than 8 MiB.
    """
    parts: List[Part] = []
    for segment in segments:
        end = segment.offset + segment.size
        if parts:
            last = parts[-1]
            if segment.offset - last.end <= GAP and end - last.offset <= PART_SIZE:
                parts[-1] = Part(last.offset, end - last.offset)
                continue
        parts.append(Part(segment.offset, segment.size))
    return parts


# ---------------------------------------------------------------- the ending


def compress(ending: bytes) -> bytes:
    """Return a bundle's ending as it is sent."""
    return zlib.compress(ending, 9)


def decompress(data: bytes, place: Ending) -> Tuple[bytes, Seal, Manifest]:
    """Return the ending, and the seal and manifest in it, checked. Raises IntegrityError."""
    limit = sealed_file.MAX_MANIFEST + 2 * sealed_file.TAIL
    stream = zlib.decompressobj()
    try:
        ending = stream.decompress(data, min(place.size, limit) + 1)
    except zlib.error as error:
        raise IntegrityError("%s is damaged: %s" % (place.name, error)) from None
    if len(ending) != place.size or not stream.eof or stream.unused_data:
        raise IntegrityError("%s does not have the size that its name says" % place.name)
    seal = sealed_file.read_tail(ending[-sealed_file.TAIL :], place.end)
    if seal.offset != place.offset:
        raise IntegrityError("%s starts at a different offset than its seal records" % place.name)
    return ending, seal, sealed_file.read_manifest(ending[: -sealed_file.TAIL], seal)
