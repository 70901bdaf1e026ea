"""Delta push: the segments of a bundle that a site lacks, and the parts in which they are sent.

Pure. A *part* is a byte range of the bundle that consists of whole segments. Its name gives its position. The segment
table has a SHA-256 per segment and thus verifies every part without a second set of digests. The *ending* (manifest and
tail) is sent compressed; the site needs it to assemble the rest.
"""

import base64
import binascii
import re
import zlib
from typing import FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle import sealed_file
from deployer.contract.bundle.manifest import Manifest, Segment

SCHEMA = "held"

#: The empty file on each of several media: its number and how many there are. It only makes messages better.
MEDIUM, MEDIUM_NAME = "medium-%d-of-%d", re.compile(r"^medium-([1-9]\d{0,2})-of-([1-9]\d{0,2})$")
#: The end of an encrypted file's name. Decrypted, it is a stream as ``push`` sends it.
ENCRYPTED = ".age"

#: Parts are filled up to this size. With about 2 MiB in flight in ssh, a broken connection loses less than 8 MiB.
PART_SIZE = 5 * 1024 * 1024

#: The largest gap, in bytes, that is sent although the site has it: starting another part would cost more.
GAP = 4096

#: The site reports the first 8 bytes of each SHA-256 that it has. The odds of a false match among a million segments
#: are 1 in 10^7. The assembled bundle is verified in full, which detects a false match.
PREFIX = 8

#: The line sent after the last part: the site then installs what has arrived.
END = b"install\n"

#: The hint if data from an earlier push is damaged. It was removed, so the next push sends it again.
SEND_AGAIN = "push again, or copy that part again"

_NAME = re.compile(r"^(\d{1,15})-(\d{1,15})\.(part|end)$")

HeldSegments = FrozenSet[bytes]


class Range(NamedTuple):
    """A byte range of the bundle.

    Attributes:
        offset: bytes from the start of the bundle.
        size: bytes.
    """

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size

    @property
    def name(self) -> str:
        return "%d-%d.%s" % (*self, "part" if isinstance(self, Part) else "end")


class Part(Range):
    """A part: some of the bundle's segments."""


class Ending(Range):
    """The bundle from the header of its manifest to its last byte."""


def read_name(name: str) -> Optional[Range]:
    """Return the Part or Ending that a file is named after; None for any other name."""
    match = _NAME.match(name)
    if not match:
        return None
    kind = Part if match.group(3) == "part" else Ending
    place = kind(int(match.group(1)), int(match.group(2)))
    return place if place.name == name else None


# ---------------------------------------------------------------- what a site has


def prefix(sha256: str) -> bytes:
    """Return the first bytes of a hexadecimal digest."""
    return binascii.unhexlify(sha256[: 2 * PREFIX])


def held_text(digests: Iterable[str]) -> str:
    """Return the hexadecimal digests that a site has as compact text: 11 characters each."""
    return base64.b64encode(b"".join(sorted({prefix(digest) for digest in digests}))).decode("ascii")


def read_held(text: str) -> HeldSegments:
    """Parse the text of ``held_text``. Raises IntegrityError."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError as error:
        raise IntegrityError(f"the list of what the site holds is damaged: {error}") from None
    if len(data) % PREFIX:
        raise IntegrityError("the list of what the site holds is cut off")
    return frozenset(data[start : start + PREFIX] for start in range(0, len(data), PREFIX))


def receipt(digests: Iterable[str]) -> json_records.Record:
    """Return the record that a site writes for carrying the next bundle there on media."""
    return json_records.stamped(SCHEMA, {"segments": held_text(digests)})


def read_receipt(data: bytes, what: str) -> HeldSegments:
    """Parse a receipt. Raises UsageError, IntegrityError."""
    return read_held(json_records.loads(data, SCHEMA, what).text("segments"))


# ---------------------------------------------------------------- what it lacks


def missing(segments: Iterable[Segment], held: HeldSegments) -> List[Segment]:
    """Return the segments to send, in order; repeated content is sent once."""
    lacking = []
    known = set(held)
    for segment in segments:
        key = prefix(segment.sha256)
        if key not in known:
            known.add(key)
            lacking.append(segment)
    return lacking


def cut(segments: Iterable[Segment]) -> List[Part]:
    """Return the parts that contain ``segments``: at most PART_SIZE bytes each, or one larger segment.

    No writer makes a segment larger than 8 MiB.
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


def inside(segments: Iterable[Segment], parts: Iterable[Part]) -> Iterator[Segment]:
    """Yield the segments that are in ``parts``. Both arguments are in bundle order."""
    places = iter(parts)
    part = next(places, None)
    for segment in segments:
        while part and part.end <= segment.offset:
            part = next(places, None)
        if part and part.offset <= segment.offset:
            yield segment


# ---------------------------------------------------------------- the ending


def compress(ending: bytes) -> bytes:
    """Return the ending of a bundle, compressed for sending."""
    return zlib.compress(ending, 9)


def decompress(data: bytes, place: Ending) -> Tuple[bytes, sealed_file.Seal, Manifest]:
    """Return the ending with its verified seal and manifest. Raises IntegrityError."""
    limit = sealed_file.MAX_MANIFEST + 2 * sealed_file.TAIL
    stream = zlib.decompressobj()
    try:
        ending = stream.decompress(data, min(place.size, limit) + 1)
    except zlib.error as error:
        raise IntegrityError(f"{place.name} is damaged: {error}") from None
    if len(ending) != place.size or not stream.eof or stream.unused_data:
        raise IntegrityError(f"{place.name} does not have the size that its name says")
    seal = sealed_file.read_tail(ending[-sealed_file.TAIL :], place.end)
    if seal.offset != place.offset:
        raise IntegrityError(f"{place.name} starts at a different offset than its seal records")
    return ending, seal, sealed_file.read_manifest(ending[: -sealed_file.TAIL], seal)
