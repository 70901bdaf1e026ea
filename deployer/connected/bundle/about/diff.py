"""diff: the files and packages that differ between two bundles, and how many bytes push must send.

Only frames that differ are decompressed, and only their files are hashed.
"""

import hashlib
import itertools
import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import IO, NamedTuple

from packageurl import PackageURL

from deployer.connected.bundle.about import sbom
from deployer.connected.bundle.about.listing import entries_of, units_of
from deployer.connected.bundle.shipment import shipment_for
from deployer.connected.ground import frames
from deployer.connected.image.lint import secrets
from deployer.connected.rootfs.entries import InMemory, shown
from deployer.connected.rootfs.package_files import PackageFiles
from deployer.connected.rootfs.secrets import MAX_SIZE, in_files
from deployer.contract.base.tarformat import FILE, TarEntry
from deployer.contract.bundle import delta, sealed_file
from deployer.contract.bundle.manifest import APP_PREFIX, DATA_PREFIX, OURS, SBOM_MEMBER
from deployer.contract.rules.findings import Finding
from deployer.system.trust.verify import begin, opened


class PackageChange(NamedTuple):
    """A package whose version differs.

    Attributes:
        kind: that of its purl, for instance ``deb`` or ``pypi``.
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
        secrets: what ``lint`` finds in added and changed files, and in variables.
    """

    bytes_to_ship: int
    added: list[str]
    removed: list[str]
    changed: list[str]
    packages: list[PackageChange]
    secrets: list[Finding]


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
        added = sorted(after.keys() - before.keys())
        changed = sorted(path for path in before.keys() & after.keys() if before[path] != after[path])
        versions = _packages(a, b)
        found = list(b.secrets(a, {*added, *changed}))
        return Difference(size, added, sorted(before.keys() - after.keys()), changed, versions, found)


def _packages(a: "_Bundle", b: "_Bundle") -> list[PackageChange]:
    before, after = a.packages(), b.packages()
    both = sorted(before.keys() | after.keys())
    return [PackageChange(*key, before.get(key), after.get(key)) for key in both if before.get(key) != after.get(key)]


class _Bundle:
    """One side of the comparison. It reads only layer units that the other side lacks."""

    def __init__(self, stream: IO[bytes], path: str) -> None:
        self.stream = stream
        bundle = begin(stream, path, ())
        self.seal, self.manifest, self._read = bundle.seal, bundle.manifest, bundle.read
        self._listed = PackageFiles()
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
            digest, path = hashlib.sha256(), os.fsdecode(entry.path)
            if PackageFiles.is_list(path):
                whole = b"".join(content)
                self._listed.add(path, whole)
                digest.update(whole)
            else:
                for piece in content:
                    digest.update(piece)
            entries[_name(entry)] = (*entry._replace(path=b""), digest.digest())
        return entries

    def packages(self) -> dict[tuple[str, str], str]:
        """Return the versions of the packages in the SBOM, by kind and name."""
        versions: dict[tuple[str, str], list[str]] = {}
        for item in sbom.parsed(sealed_file.small(self.manifest, SBOM_MEMBER, self._read)).get("components", ()):
            if item.get("purl"):
                key = PackageURL.from_string(item["purl"]).type, item["name"]
                versions.setdefault(key, []).append(item.get("version", ""))
        return {key: ", ".join(sorted({*several})) for key, several in versions.items()}

    def secrets(self, other: "_Bundle", paths: Collection[str]) -> Iterator[Finding]:
        """Yield the secrets in some files, except in packages that ``files`` has read, and in new variables."""
        small = ((e, pieces) for e, pieces in self._entries(other) if e.kind == FILE and e.size <= MAX_SIZE)
        files = ((os.fsdecode(e.path), InMemory(b"".join(pieces))) for e, pieces in small if _name(e) in paths)
        contents = sealed_file.contents(self.manifest.members, self.manifest.segments)
        names = (member.name for member in self.manifest.members if member.size <= MAX_SIZE)
        mine = (n for n in names if n.startswith((APP_PREFIX, DATA_PREFIX)) and shown(os.fsencode(n)) in paths)
        members = ((name, InMemory(b"".join(map(self._read, contents[name])))) for name in mine)
        env = {"Env": [entry for entry in self.manifest.image.env if entry not in other.manifest.image.env]}
        return secrets.in_image(in_files(itertools.chain(files, members), self._listed), env)

    def _entries(self, other: "_Bundle") -> Iterator[tuple[TarEntry, Iterator[memoryview]]]:
        known = {tuple(segment.sha256 for segment in unit) for unit in other._units}
        for unit in self._units:
            if tuple(segment.sha256 for segment in unit) not in known:
                yield from entries_of(unit, self._frame)


def _name(entry: TarEntry) -> str:
    return "/" + shown(entry.path)
