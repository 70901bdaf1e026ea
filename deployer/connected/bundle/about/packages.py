"""The packages of a root filesystem, found through the files of dpkg, pip and Python.

Only those few files are read. Sources: deb822(5) and dpkg-query(1) for the status file; Debian Policy, 12.5, and
"Machine-readable debian/copyright file" for licences; the core metadata specifications of packaging.python.org;
os-release(5).
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from packaging.metadata import parse_email

from deployer.connected.rootfs.entries import shown
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.contract.base.tarformat import FILE, HARDLINK, SYMLINK, TarEntry

DEB, PYPI, GENERIC = "deb", "pypi", "generic"

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

_CLASSIFIER = "License :: "
#: A longer License field contains the licence text instead of its name.
_MAX_LICENCE = 100


class Package(NamedTuple):
    """A package.

    Attributes:
        kind: DEB, PYPI or GENERIC.
        name: its name.
        version: its version.
        where: the path of its metadata in the image, or the bundle member.
        architecture: Debian's name, empty for other kinds.
        licences: one SPDX expression, or names, from its metadata; empty if not stated.
        sha256: the digest in hexadecimal if the package is a file (a wheel), otherwise empty.
    """

    kind: str
    name: str
    version: str
    where: str
    architecture: str = ""
    licences: tuple[str, ...] = ()
    sha256: str = ""


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
    return PackageInventory(system, (*installed, *_unpackaged(tree, pythons, installed)))


def dpkg_paragraphs(content: bytes) -> Iterator[dict[str, str]]:
    """Yield name, version, architecture and status of each installed package in a dpkg status file.

    The keys are dpkg's. Packages that were removed, or have only settings left, are skipped.
    """
    for paragraph in content.decode("utf-8", "replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): *(.*?) *$", paragraph, re.MULTILINE))
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
        )
        for fields in dpkg_paragraphs(_read(tree, path))
    ]


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
