"""The packages of a root filesystem, found through the files of dpkg, rpm, apk, conda, pip and Python, and programs.

Of programs, only the tables of sections and what names their modules are read. Sources: deb822(5) and dpkg-query(1) for
the status file; Debian Policy, 12.5, and "Machine-readable debian/copyright file" for licences; the core metadata
specifications of packaging.python.org; os-release(5); apk-package(5), "Installed Database V2"; conda's documentation of
conda-meta; "RPM V4 headers" of rpm.org. rpm's older databases (Berkeley DB, ndb) are not read.
"""

import posixpath
import re
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import NamedTuple

from packaging.metadata import parse_email

from deployer.connected.bundle.about import programs
from deployer.connected.rootfs.entries import shown
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError
from deployer.contract.base.tarformat import FILE, HARDLINK, SYMLINK, TarEntry

DEB, PYPI, GENERIC, APK, CONDA, RPM = "deb", "pypi", "generic", "apk", "conda", "rpm"

DPKG_STATUS = b"var/lib/dpkg/status"
#: The folder with one status file per package in images without dpkg ("distroless"). Its checksum lists are skipped.
_STATUS_FOLDER = b"var/lib/dpkg/status.d/"
_CHECKSUMS = b".md5sums"
#: The folder with one folder per Debian package, possibly a link to another package's from the same source.
_DOCUMENTS = b"usr/share/doc"
_MAX_COPYRIGHT = 1024 * 1024
#: How a copyright file names a licence: in a machine-readable field, or by the path of its text.
_LICENCE_FIELD = re.compile(rb"^License:[ \t]*(\S.*?)[ \t\r]*$", re.MULTILINE)
_COMMON_LICENCE = re.compile(rb"/usr/share/common-licenses/([A-Za-z0-9][A-Za-z0-9.+-]*[A-Za-z0-9+])")
#: Metadata of packages that pip or setuptools installed: ``NAME-VERSION.dist-info/METADATA`` or its predecessor.
_METADATA = re.compile(rb"(?:^|/)[^/]+(?:\.dist-info/METADATA|\.egg-info/PKG-INFO|\.egg-info)$")
#: A file in every Python installation. If the image has the C headers, one of them has the exact version.
_PYTHON = re.compile(rb"^(.*/)?lib/python(3\.\d+)/os\.py$")
_PYTHON_VERSION = re.compile(rb'^#define\s+PY_VERSION\s+"([^"]+)"', re.MULTILINE)
_OS_RELEASE = (b"etc/os-release", b"usr/lib/os-release")

#: What is read of rpm, apk and conda. Numbers of rpm's tags (rpmtag.h), and of types in its headers.
_FIELDS = ("name", "version", "architecture", "license", "source")
_RPM_TAGS = {1000: "name", 1001: "number", 1002: "release", 1003: "epoch", 1014: "license", 1022: "architecture",
             1044: "source"}  # fmt: skip
_RPM_NUMBER, _RPM_TEXT = 4, 6
#: Seconds to read a database of rpm.
_RPM_SECONDS = 30.0
_APK_FIELDS = {"P": "name", "V": "version", "A": "architecture", "L": "license", "o": "source"}

_CLASSIFIER = "License :: "
#: A longer License field contains the licence text instead of its name.
_MAX_LICENCE = 100


class Package(NamedTuple):
    """A package.

    Attributes:
        kind: the type of its purl.
        name: its name.
        version: its version.
        where: the path of its metadata in the image, or the bundle member.
        architecture: the distribution's name for it, empty for other kinds.
        licences: one SPDX expression, or names, from its metadata; empty if not stated.
        sha256: the digest in hexadecimal if the package is a file (a wheel), otherwise empty.
        source: the source package, if it has another name: NAME, or NAME@VERSION. Advisories of Debian name only these.
    """

    kind: str
    name: str
    version: str
    where: str
    architecture: str = ""
    licences: tuple[str, ...] = ()
    sha256: str = ""
    source: str = ""


class System(NamedTuple):
    """The distribution according to os-release.

    Attributes:
        name: ``debian``, empty if unknown.
        version: ``12``, empty if unknown.
    """

    name: str = ""
    version: str = ""


class PackageInventory(NamedTuple):
    """The contents of a root filesystem.

    Attributes:
        system: the distribution.
        packages: the packages.
    """

    system: System = System()
    packages: tuple[Package, ...] = ()


def of_tree(tree: FlattenedRootfs) -> PackageInventory:
    """Return the packages of a root filesystem in path order. Unreadable metadata is skipped."""
    system = System()
    installed: list[Package] = []
    pythons: list[tuple[bytes, str]] = []
    for entry in tree.entries():
        if entry.kind not in (FILE, HARDLINK):
            continue
        path = entry.path
        if path == DPKG_STATUS or (path.startswith(_STATUS_FOLDER) and not path.endswith(_CHECKSUMS)):
            installed += _of_dpkg(tree, path)
        elif path in _OS_RELEASE:
            system = _os_release(_read(tree, path)) or system
        elif path.endswith(b"os.py") and (match := _PYTHON.match(path)):
            pythons.append((match[1] or b"", match[2].decode()))
        elif path.endswith((b"METADATA", b"PKG-INFO", b".egg-info")) and _METADATA.search(path):
            package = of_metadata(_read(tree, path), "/" + shown(path))
            installed += [package] if package else []
        elif path.endswith((b"installed", b".json", b".sqlite")):
            installed += _of_database(tree, path)
        elif entry.kind == FILE and (entry.mode & 0o111 or b".so" in path):
            for kind, name, version in programs.components(tree.content(entry)):
                installed.append(Package(kind, name, version, "/" + shown(path)))
    return PackageInventory(system, (*installed, *_unpackaged(tree, pythons, installed)))


def dpkg_paragraphs(content: bytes) -> Iterator[dict[str, str]]:
    """Yield name, version, architecture, source and status of each installed package in a dpkg status file.

    The keys are dpkg's. Packages that were removed, or have only settings left, are skipped.
    """
    for paragraph in content.decode("utf-8", "replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status|Source): *(.*?) *$", paragraph, re.MULTILINE))
        status = fields.get("Status", "installed").split()
        if fields.get("Package") and fields.get("Version") and status[-1:] == ["installed"]:
            yield fields


def of_metadata(content: bytes, where: str, sha256: str = "") -> Package | None:
    """Return the Python package that core metadata describe, or None if they lack a name.

    Args:
        where: the path or member with the metadata.
        sha256: the digest of the wheel in hexadecimal, empty for an installed package.
    """
    metadata, _ = parse_email(content)
    name, version = metadata.get("name", ""), metadata.get("version", "")
    if not name or not version:
        return None
    expression, text = metadata.get("license_expression", ""), metadata.get("license", "").strip()
    licences: Iterable[str] = ()
    if expression:
        licences = [expression]
    elif text and text.upper() != "UNKNOWN" and "\n" not in text and len(text) <= _MAX_LICENCE:
        licences = [text]
    else:
        classifiers = [item for item in metadata.get("classifiers", []) if item.startswith(_CLASSIFIER)]
        licences = sorted({item.rpartition(" :: ")[2] for item in classifiers} - {"OSI Approved"})
    return Package(PYPI, name, version, where, licences=tuple(licences), sha256=sha256)


def _of_dpkg(tree: FlattenedRootfs, path: bytes) -> list[Package]:
    return [
        Package(
            DEB,
            fields["Package"],
            fields["Version"],
            "/" + shown(path),
            fields.get("Architecture", ""),
            _debian_licences(tree, fields["Package"]),
            source=fields.get("Source", "").replace(" (", "@").rstrip(")"),
        )
        for fields in dpkg_paragraphs(_read(tree, path))
    ]


def _of_database(tree: FlattenedRootfs, path: bytes) -> Iterator[Package]:
    """Yield the packages in a database of rpm, apk or conda, up to a damaged entry; none if it is another file."""
    kind, reader = next(((kind, reader) for pattern, kind, reader in _DATABASES if pattern.fullmatch(path)), ("", None))
    with suppress(sqlite3.Error, struct.error, ValueError, LookupError, AttributeError, IntegrityError):
        for known in reader(_read(tree, path)) if reader else ():
            name, version, architecture, licence, source = (str(known.get(key) or "") for key in _FIELDS)
            licences = (licence,) if 0 < len(licence) <= _MAX_LICENCE else ()
            if name and version:
                source = "" if source == name else source
                yield Package(kind, name, version, "/" + shown(path), architecture, licences, source=source)


def _apk(content: bytes) -> Iterator[dict[str, str]]:
    for paragraph in content.decode("utf-8", "replace").split("\n\n"):
        yield {_APK_FIELDS[key]: text for key, text in re.findall(r"^([PVALo]):(.*)$", paragraph, re.MULTILINE)}


def _conda(content: bytes) -> Iterator[dict[str, str]]:
    yield json_records.parse(content, "conda-meta", IntegrityError)


def _rpm(content: bytes) -> Iterator[dict[str, str]]:
    until = time.monotonic() + _RPM_SECONDS
    with tempfile.NamedTemporaryFile(prefix="deployer-rpm-") as file:
        file.write(content)
        file.flush()
        with closing(sqlite3.connect(f"file:{file.name}?mode=ro&immutable=1", uri=True)) as database:
            # The maker of an image could put a view there, which runs for ever.
            database.set_progress_handler(lambda: time.monotonic() > until, 100_000)
            for (header,) in database.execute("SELECT blob FROM Packages ORDER BY hnum"):
                yield _rpm_header(header)


def _rpm_header(header: bytes) -> dict[str, str]:
    count, _ = struct.unpack_from(">II", header)
    fields: dict[str, str] = {}
    for tag, kind, offset, _ in struct.iter_unpack(">IIII", header[8 : 8 + 16 * count]):
        start = 8 + 16 * count + offset
        if tag in _RPM_TAGS and kind == _RPM_NUMBER:
            fields[_RPM_TAGS[tag]] = f"{struct.unpack_from('>I', header, start)[0]}:"
        elif tag in _RPM_TAGS and kind == _RPM_TEXT:
            fields[_RPM_TAGS[tag]] = header[start : header.index(b"\0", start)].decode("utf-8", "replace")
    return {**fields, "version": f"{fields.get('epoch', '')}{fields['number']}-{fields['release']}"}


#: The databases that are one file: its path, the kind of the packages, and the reader.
_DATABASES: tuple[tuple[re.Pattern[bytes], str, Callable[[bytes], Iterator[Mapping[str, object]]]], ...] = (
    (re.compile(rb"(usr/)?lib/apk/db/installed"), APK, _apk),
    (re.compile(rb"(.*/)?conda-meta/[^/]+\.json"), CONDA, _conda),
    (re.compile(rb"(usr/lib/sysimage|var/lib)/rpm/rpmdb\.sqlite"), RPM, _rpm),
)


def _debian_licences(tree: FlattenedRootfs, name: str) -> tuple[str, ...]:
    """Return Debian's names of all licences in a package's copyright file; empty if none are found."""
    folder = posixpath.join(_DOCUMENTS, name.encode())
    entry = tree.find(folder)
    if entry and entry.kind == SYMLINK:
        folder = posixpath.normpath(posixpath.join(b"/", _DOCUMENTS, entry.target)).lstrip(b"/")
    entry = tree.find(folder + b"/copyright")
    if entry is None or entry.kind != FILE or entry.size > _MAX_COPYRIGHT:
        return ()
    content = _read(tree, entry.path)
    found = _LICENCE_FIELD.findall(content) if content.startswith(b"Format:") else _COMMON_LICENCE.findall(content)
    names = {text.decode("utf-8", "replace") for text in found if len(text) <= _MAX_LICENCE}
    return tuple(sorted(names))


def _unpackaged(tree: FlattenedRootfs, pythons: list[tuple[bytes, str]], packages: list[Package]) -> Iterator[Package]:
    """Yield Python installations that belong to no Debian package: compiled or unpacked ones."""
    debian = {package.name for package in packages if package.kind == DEB}
    for prefix, line in pythons:
        if prefix == b"usr/" and f"libpython{line}-stdlib" in debian:
            continue
        header = _PYTHON_VERSION.search(_read(tree, prefix + b"include/python%s/patchlevel.h" % line.encode()))
        where = "/" + shown(prefix + b"lib/python" + line.encode())
        yield Package(GENERIC, "python", header[1].decode() if header else line, where, licences=("PSF-2.0",))


def _os_release(content: bytes) -> System | None:
    fields = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', content.decode("utf-8", "replace"), re.MULTILINE))
    return System(fields["ID"], fields.get("VERSION_ID", "")) if fields.get("ID") else None


def _read(tree: FlattenedRootfs, path: bytes) -> bytes:
    """Return the content of a file, or empty bytes if it does not exist."""
    content = tree.content(TarEntry(FILE, path, 0))
    return content.read(0, content.size)
