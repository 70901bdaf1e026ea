"""A file with several bundles: one name and version, each for a different processor.

Pure. The file is ``bundle | bundle | ... | ending``, each bundle without the two empty blocks that end a tar. So every
bundle keeps its own seal and signatures, and ``push`` sends one of them as if it were alone. The ending is an OCI image
index of all of them, whose ``index.json`` replaces those before it when the tar is unpacked, and then one tar record
with the table of the bundles. It is a function of the table and is compared byte for byte. No signature covers it:
a reader opens the bundle that it names and compares what the two state.
"""

from typing import List, NamedTuple, Sequence

from deployer.contract.base import json_records, records, tarformat
from deployer.contract.base.errors import IntegrityError
from deployer.contract.base.tarformat import BLOCK
from deployer.contract.bundle import oci, sealed_file
from deployer.contract.bundle.manifest import BundleMember, Manifest, check_label
from deployer.contract.elf import machines

SCHEMA = "architectures"
TABLE_FILE = "deployer/architectures.json"
#: Bytes of the empty blocks at the end of a bundle, which its copy in such a file lacks.
END = 2 * BLOCK
_TABLE_SIZE = sealed_file.TAIL - BLOCK - END
_MODE = 0o644


class OneOfSeveral(NamedTuple):
    """A bundle in the file.

    Attributes:
        architecture: its architecture's name in OCI.
        size: bytes of the bundle alone.
        sha256: its digest, hexadecimal.
        manifest_digest: the digest of its image manifest.
        manifest_size: bytes of its image manifest.
    """

    architecture: str
    size: int
    sha256: str
    manifest_digest: str
    manifest_size: int

    @staticmethod
    def of(manifest: Manifest, seal: sealed_file.Seal, size: int) -> "OneOfSeveral":
        """Return what the table states about a bundle of ``size`` bytes."""
        image = oci.blob(sealed_file.image_manifest(manifest))
        return OneOfSeveral(manifest.image.architecture, size, seal.sha256, image.digest, image.size)

    @property
    def machine(self) -> str:
        """Return the kernel's name of its architecture."""
        return machines.kernel_name(self.architecture) or self.architecture


class Several(NamedTuple):
    """The table of the bundles, in the order of the file.

    Attributes:
        name: the name of each.
        version: the version of each.
        bundles: the bundles.
    """

    name: str
    version: str
    bundles: Sequence[OneOfSeveral]

    def offset(self, one: OneOfSeveral) -> int:
        """Return where a bundle starts in the file."""
        return sum(each.size - END for each in self.bundles[: list(self.bundles).index(one)])

    def paths(self, file: str) -> List[str]:
        """Return the names FILE:MACHINE of the bundles in a file."""
        return [f"{file}:{name}" for name in self.machines]

    @property
    def machines(self) -> List[str]:
        """Return the kernel's names of the architectures."""
        return [one.machine for one in self.bundles]


def ending(several: Several) -> bytes:
    """Return the bytes after the last bundle. Raises IntegrityError if the table is too large."""
    blobs = [(one.architecture, oci.Blob(one.manifest_digest, one.manifest_size)) for one in several.bundles]
    images = oci.image_index(blobs)
    index = oci.index_of(oci.INDEX_TYPE, oci.blob(images), several.name, several.version)
    table = json_records.dumps(json_records.stamped(SCHEMA, records.plain(several)))
    if len(table) > _TABLE_SIZE:
        raise IntegrityError("the table of architectures is too large")
    members = [
        (oci.blob(images).member, images),
        (oci.INDEX_FILE, index),
        (TABLE_FILE, table.ljust(_TABLE_SIZE, b"\n")),
    ]
    parts = [sealed_file.member_header(BundleMember(name, len(data), _MODE)) + _padded(data) for name, data in members]
    return b"".join(parts) + b"\0" * END


def is_table(tail: bytes) -> bool:
    """Return whether the last 10,240 bytes of a file are a table of several bundles."""
    return TABLE_FILE.encode() + b"\0" == tail[: len(TABLE_FILE) + 1]


def read(tail: bytes, file_size: int) -> Several:
    """Parse the last 10,240 bytes of a file of ``file_size`` bytes. The caller compares ``ending``.

    Raises:
        IntegrityError: the table is damaged, or does not match the file.
    """
    what = "the table of architectures"
    fields = json_records.loads(tail[BLOCK : BLOCK + _TABLE_SIZE], SCHEMA, what, IntegrityError)
    several = records.read(Several, fields)
    check_label(several.name, several.version, IntegrityError)
    known = {one.architecture for one in several.bundles if one.size >= sealed_file.TAIL and not one.size % BLOCK}
    if not known <= machines.BY_OCI.keys() or len(known) != len(several.bundles):
        raise IntegrityError(f"{what} is invalid")
    if sum(one.size - END for one in several.bundles) + len(ending(several)) != file_size:
        raise IntegrityError(f"{what} does not match the file: the file was truncated or extended")
    return several


def _padded(data: bytes) -> bytes:
    return data + b"\0" * tarformat.padding(len(data))
