"""bundle.json: a bundle's content, the changes that flatten made, and one segment table for the whole file."""

import functools
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Type

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import DeployerError, IntegrityError, UsageError
from deployer.contract.base.json_records import Fields, Record
from deployer.contract.base.tarformat import HOLDINGS
from deployer.contract.base.text import is_label
from deployer.contract.bundle.job import Job
from deployer.contract.site import mount_points

SCHEMA = "bundle"

# Like a name, it is used in file names and shown on terminals: only characters that a definition allows.
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_MAX_TEXT = 100

#: Members with one of these prefixes are written beside the image when the bundle is installed.
OURS = ("deployer/", "deployer.pyz")
#: Prefix of members of the app folder.
APP_PREFIX = "deployer/app/"
#: Prefix of plans: ``deployer/plans/SITE.json``, and ``deployer/plans/SITE/PARTITION.json`` for further partitions.
PLANS_PREFIX = "deployer/plans/"
#: Prefix of data folders, ``deployer/data/NAME/...``.
DATA_PREFIX = "deployer/data/"
#: The members with the SBOM, and with how it was built.
SBOM_MEMBER, PROVENANCE_MEMBER = "deployer/sbom.cdx.json", "deployer/provenance.json"
#: Prefix of the kit, which contains tools that a site may lack.
KIT_PREFIX = "deployer/kit/"
#: Overlays: the wheelhouse, Horovod's variants (``variants/ABI``), and udocker.
WHEELS, VARIANTS, ENGINE = "wheels", "variants", "engine"
_OVERLAY = re.compile(rf"(?:{WHEELS}|{ENGINE}|{VARIANTS}/[a-z0-9]+(?:-[a-z0-9]+)*)\Z")
OVERLAYS_PREFIX = "deployer/overlays/"
#: The folders of an overlay for PYTHONPATH and PATH.
LIB, BIN = "lib", "bin"

# Kinds of segments. Every byte of the file belongs to one of these.
HEADER = "header"  # the 512-byte tar header of a member (a long name never needs more: see tarformat)
DATA = "data"  # a member's content, or a part of it
FRAME = "frame"  # one independently compressed piece of the layer
PADDING = "padding"  # zeros up to the next multiple of 512

_KINDS = (HEADER, DATA, FRAME, PADDING)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")

#: The most bytes of a decompressed frame, which is held in memory. No writer makes a larger frame
#: (connected/bundle/layer/layer.py).
MAX_RAW = 16 * 1024 * 1024

#: Bytes of memory for parsing bundle.json (json_records.memory): enough for 92,000 data files, or for 370,000
#: segments, which are 190 GB of image. The parsed data and the rest of the program stay below 512 MiB.
MAX_MEMORY = json_records.MAX_LARGE


def _is_sha256(text: Any) -> bool:
    return isinstance(text, str) and _SHA256.match(text) is not None


class Segment(NamedTuple):
    """A byte range of the bundle with its digest.

    Attributes:
        kind: HEADER, DATA, FRAME or PADDING.
        offset: bytes from the start of the bundle.
        size: bytes.
        sha256: hexadecimal.
        raw: only for a frame: its size in bytes when decompressed.
        holds: only for a frame: one of ``tarformat.HOLDINGS``.
    """

    kind: str
    offset: int
    size: int
    sha256: str
    raw: Optional[int] = None
    holds: Optional[str] = None

    def record(self) -> Record:
        return records.short(self)

    @staticmethod
    def usual(record: Any) -> "Optional[Segment]":
        """Return what ``read`` returns for a record in the common form; None for any other record."""
        try:
            segment = Segment(**record)
        except TypeError:  # missing or unknown fields, or not an object
            return None
        holds_known = segment.holds is None or segment.holds in HOLDINGS
        texts = segment.kind in _KINDS and holds_known and _is_sha256(segment.sha256)
        numbers = [segment.offset, segment.size] if segment.raw is None else [segment.offset, segment.size, segment.raw]
        return segment if texts and all(type(number) is int and number >= 0 for number in numbers) else None


class BundleMember(NamedTuple):
    """A member of the bundle's tar.

    Attributes:
        name: its path in the tar.
        size: bytes of its content.
        mode: its permission bits.
    """

    name: str
    size: int
    mode: int

    @staticmethod
    def read(fields: Fields) -> "BundleMember":
        return records.read(BundleMember, fields, name=fields.path("name"))


class Image(NamedTuple):
    """The image of a bundle: its configuration and its layer.

    Attributes:
        config_digest: the digest of the image's configuration.
        layer_digest: the digest of the compressed layer.
        architecture: Docker's name for the architecture, for instance amd64.
        env: each environment variable as NAME=VALUE.
        workdir: the working folder of the image's processes.
        entrypoint: the entrypoint's words.
        cmd: the default command's words.
        python: the path of a Python in the image, or None.
        raw_size: bytes of the uncompressed layer.
        entries: number of files, folders and links.
        holes: bytes of ``raw_size`` that are zeros and need no space in an unpacked layer.
    """

    config_digest: str
    layer_digest: str
    architecture: str
    env: List[str]
    workdir: str
    entrypoint: List[str]
    cmd: List[str]
    python: Optional[str]
    raw_size: int
    entries: int
    holes: int = 0

    @property
    def written(self) -> int:
        """The most bytes that the unpacked layer needs."""
        return max(self.raw_size - self.holes, 0)

    @staticmethod
    def read(fields: Fields) -> "Image":
        words = {name: fields.words(name) for name in ("entrypoint", "cmd")}
        return records.read(Image, fields, env=fields.assignments("env"), **words)


class DataNeed(NamedTuple):
    """A data folder from another bundle. Jobs read that bundle's folder of the same name at /deployer/data/DATA.

    Attributes:
        data: the name of the folder.
        bundle: NAME or NAME:VERSION.
    """

    data: str
    bundle: str

    @staticmethod
    def read(fields: Fields) -> "DataNeed":
        need = records.read(DataNeed, fields)
        name, _, version = need.bundle.partition(":")
        check_label(need.data, "0", IntegrityError)
        check_label(name, version or "0", IntegrityError)
        return need


class WheelOverlay(NamedTuple):
    """Unpacked wheels, in frames like the layer. An install writes them beside the image.

    Attributes:
        name: WHEELS, ENGINE, or ``variants/ABI``: its folder in an installed image.
        wheels: the file names of the wheels.
        entries: number of files and folders, with the bytecode of its modules.
        bytes: their size.
    """

    name: str
    wheels: List[str]
    entries: int
    bytes: int

    @property
    def member(self) -> str:
        return f"{OVERLAYS_PREFIX}{self.name}.tar"

    @staticmethod
    def read(fields: Fields) -> "WheelOverlay":
        overlay = records.read(WheelOverlay, fields)
        if not _OVERLAY.match(overlay.name):
            raise fields.error(f"{fields.what}: invalid name of an overlay: {overlay.name!r}")
        return overlay


class Manifest(NamedTuple):
    """The content of bundle.json.

    Attributes:
        name: the bundle's name.
        version: the bundle's version.
        codec: the codec's name, its library's version and its level.
        tools: the versions of the tools that the bytes depend on.
        image: the image.
        changes: how often flatten made each kind of change.
        jobs: the jobs of the definition.
        members: the members of the tar, in the order of the file.
        segments: the segment table.
        needs: data folders of other bundles.
        mpi: the MPI families (``plan.ABIS``) that its programs can use, the image's own first.
        mount_points: folders that are made in the image when it is unpacked.
        overlays: the unpacked wheels.
    """

    name: str
    version: str
    codec: Dict[str, Any]
    tools: Dict[str, str]
    image: Image
    changes: Dict[str, int]
    jobs: List[Job]
    members: List[BundleMember]
    segments: List[Segment]
    needs: Sequence[DataNeed] = ()
    mpi: Sequence[str] = ()
    mount_points: Sequence[str] = ()
    overlays: Sequence[WheelOverlay] = ()

    @property
    def is_data(self) -> bool:
        """Whether the bundle has only data: its image is empty and cannot run anything."""
        return self.image.entries == 0

    @property
    def unpacked(self) -> int:
        """The most bytes that an install writes, for the image, the files beside it, and the site half."""
        return self.image.written + sum(member.size for member in self.members if member.name.startswith(OURS))

    def record(self) -> Record:
        """Return the manifest as a JSON record."""
        return json_records.stamped(SCHEMA, records.plain(self))


def check_label(name: str, version: str, error: Type[DeployerError] = UsageError) -> None:
    """Raise ``error`` unless ``name`` and ``version`` are valid for a bundle."""
    if not (is_label(name) and _VERSION.match(version) and len(version) <= _MAX_TEXT):
        hint = "a name is like digits-horovod, a version like 1.0.0; 100 characters at most"
        raise error(f"a bundle cannot be called {name!r} in version {version!r}", hint)


def read(data: bytes, what: str) -> Manifest:
    """Parse bundle.json. Raises IntegrityError if it is malformed, UsageError for a newer format."""
    fields = json_records.loads(data, SCHEMA, what, IntegrityError, limit=MAX_MEMORY)
    codec = fields.child("codec")
    codec.text("name")
    for key in (key for key, value in codec.record.items() if isinstance(value, str)):
        codec.text(key)
    check_label(fields.text("name"), fields.text("version"), IntegrityError)
    segments = fields.many("segments", Segment.usual, functools.partial(records.read, Segment))
    return records.read(Manifest, fields, codec=codec.record, segments=segments, mount_points=_mount_points(fields))


def _mount_points(fields: Fields) -> Sequence[str]:
    try:
        return tuple(map(mount_points.check, fields.texts("mount_points")))
    except UsageError as error:
        raise IntegrityError(f"{fields.what}: {error.message}") from error
