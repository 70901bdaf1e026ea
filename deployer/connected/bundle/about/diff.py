"""diff: the files and packages that differ between two bundles, and how many bytes push must send.

Only frames that differ are decompressed, and only their files are hashed.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import IO, NamedTuple

from installer.utils import parse_wheel_filename

from deployer.connected.bundle.about import packages
from deployer.connected.bundle.about.listing import entries_of, units_of
from deployer.connected.bundle.shipment import shipment_for
from deployer.connected.ground import frames
from deployer.connected.rootfs.entries import shown
from deployer.contract.base import json_records, records
from deployer.contract.base.tarformat import TarEntry
from deployer.contract.bundle import delta, sealed_file
from deployer.contract.bundle.manifest import OURS, WHEELS
from deployer.system.trust.verify import begin, opened

_PIP = re.compile(rb"/(?:site|dist)-packages/([^/]+?)-([^/-]+)\.(?:dist|egg)-info/METADATA$")


class PackageChange(NamedTuple):
    """A package whose version differs.

    Attributes:
        kind: ``dpkg`` or ``pip``.
        name: the package.
        old: the version in the old bundle, None if absent.
        new: the version in the new bundle, None if absent.
    """

    kind: str
    name: str
    old: str | None
    new: str | None

    def line(self) -> str:
        """Return the line to print."""
        return f"{self.kind} {self.name}: {self.old or 'absent'} -> {self.new or 'absent'}"


class Difference(NamedTuple):
    """The differences of two bundles.

    Paths of files in the image start with ``/``. Other paths are bundle members, such as ``deployer/app/train.py``.

    Attributes:
        bytes_to_ship: bytes that push sends if the site has the old bundle.
        added: paths that only the new bundle has.
        removed: paths that only the old bundle has.
        changed: paths with different content or mode.
        packages: packages whose versions differ.
    """

    bytes_to_ship: int
    added: list[str]
    removed: list[str]
    changed: list[str]
    packages: list[PackageChange]

    def record(self) -> json_records.Record:
        return dict(records.plain(self))


def diff(old: str, new: str) -> Difference:
    """Compare the bundles at two paths.

    Raises:
        UsageError: a file cannot be read.
        IntegrityError: a bundle is damaged.
    """
    with ExitStack() as stack:
        a = _Bundle(stack.enter_context(opened(old)), old)
        b = _Bundle(stack.enter_context(opened(new)), new)
        held = delta.read_held(delta.held_text(segment.sha256 for segment in a.manifest.segments))
        size = shipment_for(b.stream, b.seal, b.manifest, held).size
        if a.seal.sha256 == b.seal.sha256:
            size = 0  # push sends nothing: the site has it
        before, after = {**a.members(), **a.files(b)}, {**b.members(), **b.files(a)}
        return Difference(
            size,
            sorted(after.keys() - before.keys()),
            sorted(before.keys() - after.keys()),
            sorted(path for path in before.keys() & after.keys() if before[path] != after[path]),
            _packages(a, b),
        )


def _packages(a: "_Bundle", b: "_Bundle") -> list[PackageChange]:
    changes = []
    before, after = a.packages(b), b.packages(a)
    for kind, name in sorted(before.keys() | after.keys()):
        old, new = before.get((kind, name)), after.get((kind, name))
        if old != new:
            changes.append(PackageChange(kind, name, old, new))
    return changes


class _Bundle:
    """One side of the comparison. It reads only layer units that the other side lacks."""

    def __init__(self, stream: IO[bytes], path: str) -> None:
        self.stream = stream
        bundle = begin(stream, path, ())
        self.seal, self.manifest = bundle.seal, bundle.manifest
        self._frame = frames.reader(self.manifest.codec, bundle.read)
        self._units = units_of(bundle.layer_segments())

    def members(self) -> dict[str, object]:
        """Return the members under deployer/, each with its mode and digests for comparison."""
        members: dict[str, object] = {}
        contents = sealed_file.contents(self.manifest.members, self.manifest.segments)
        for member in self.manifest.members:
            if member.name.startswith("deployer"):
                digests = [segment.sha256 for segment in contents[member.name]]
                members[shown(member.name.encode("utf-8", "surrogateescape"))] = (member.mode, digests)
        for overlay in self.manifest.overlays:
            members.update(dict.fromkeys(f"{OURS[0]}{overlay.name}/{name}" for name in overlay.wheels))
        return members

    def files(self, other: "_Bundle") -> dict[str, object]:
        """Return image entries in units that only this side has, each with its properties for comparison."""
        entries: dict[str, object] = {}
        for entry, content in self._entries(other):
            digest = hashlib.sha256()
            for piece in content:
                digest.update(piece)
            entries["/" + shown(entry.path)] = (*entry._replace(path=b""), digest.digest())
        return entries

    def packages(self, other: "_Bundle") -> dict[tuple[str, str], str]:
        """Return the versions of wheels, and of packages with metadata in units that only this side has."""
        versions = {}
        for overlay in self.manifest.overlays:
            for name in overlay.wheels if overlay.name == WHEELS else ():
                with suppress(ValueError):  # for names that pack never writes
                    wheel = parse_wheel_filename(name)
                    versions["pip", wheel.distribution] = wheel.version
        for entry, content in self._entries(other):
            match = _PIP.search(b"/" + entry.path)
            if match:
                versions["pip", match.group(1).decode()] = match.group(2).decode()
            elif entry.path == packages.DPKG_STATUS:
                for fields in packages.dpkg_paragraphs(b"".join(content)):
                    versions["dpkg", fields["Package"]] = fields["Version"]
        return versions

    def _entries(self, other: "_Bundle") -> Iterator[tuple[TarEntry, Iterator[memoryview]]]:
        known = {tuple(segment.sha256 for segment in unit) for unit in other._units}
        for unit in self._units:
            if tuple(segment.sha256 for segment in unit) not in known:
                yield from entries_of(unit, self._frame)
