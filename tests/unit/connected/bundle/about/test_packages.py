from typing import Any

import pytest

from deployer.connected.bundle.about import packages
from deployer.connected.bundle.about.packages import DEB, GENERIC, PYPI, Package, PackageInventory, System
from deployer.connected.rootfs.flatten import FlattenedRootfs
from tests.tars import layer, root_of

SITE = "usr/local/lib/python3.11/dist-packages/"
STATUS = b"""\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 Version: not this one

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libpython3.11-stdlib
Status: install ok installed
Architecture: amd64
Version: 3.11.2-6
"""


def metadata(name: str, version: str, *more: str) -> bytes:
    return "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more, "", "Text"]).encode()


def installed(*files: tuple[str, Any]) -> PackageInventory:
    return packages.of_tree(FlattenedRootfs(root_of(layer([("bin", None), *files]))))


def test_dpkgs_status_is_read_without_what_was_removed() -> None:
    found = installed(("var/lib/dpkg/status", STATUS), ("usr/lib/os-release", b'ID=debian\nVERSION_ID="12"\nX_ID=no\n'))
    assert found.system == System("debian", "12")
    assert found.packages == (
        Package(DEB, "libc6", "2.36-9+deb12u10", "/var/lib/dpkg/status", "amd64"),
        Package(DEB, "libpython3.11-stdlib", "3.11.2-6", "/var/lib/dpkg/status", "amd64"),
    )


def test_debian_packages_have_the_licences_of_their_copyright_files() -> None:
    machine_readable = (
        b"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
        b"Files: *\nLicense: GPL-2+ or Artistic\n The text of License: no\n\nFiles: debian/*\nLicense:\tExpat\n\n"
        b"License: Expat\n Permission is granted\n"
    )
    found = installed(
        ("var/lib/dpkg/status", STATUS),
        ("usr/share/doc/libc6/copyright", machine_readable),
        ("usr/share/doc/libpython3.11-stdlib", "-> python3.11"),
        ("usr/share/doc/python3.11/copyright", b"see /usr/share/common-licenses/LGPL-2.1.\nLicense: no\n"),
    )
    assert [package.licences for package in found.packages] == [("Expat", "GPL-2+ or Artistic"), ("LGPL-2.1",)]


@pytest.mark.parametrize("target", ["-> libc6", "-> ../../../../etc", "-> /usr/share/doc/gone"])
def test_a_copyright_file_that_cannot_be_found_states_no_licence(target: str) -> None:
    found = installed(("var/lib/dpkg/status", STATUS), ("usr/share/doc/libc6", target))
    assert [package.licences for package in found.packages] == [(), ()]


def test_an_image_without_dpkg_has_a_file_a_package() -> None:
    found = installed(
        ("var/lib/dpkg/status.d/libc6", b"Package: libc6\nVersion: 2.36\nArchitecture: amd64\n"),
        ("var/lib/dpkg/status.d/libc6.md5sums", b"Package: no\nVersion: 1\n"),
    )
    assert [(package.name, package.where) for package in found.packages] == [("libc6", "/var/lib/dpkg/status.d/libc6")]


def test_python_packages_are_found_wherever_they_are() -> None:
    found = installed(
        (SITE + "a-1.0.dist-info/METADATA", metadata("A", "1.0", "License-Expression: MIT OR Apache-2.0")),
        ("opt/b-2.egg-info/PKG-INFO", metadata("b", "2", "License: BSD")),
        ("opt/c.egg-info", metadata("c", "3")),
        ("opt/d-4.dist-info/METADATA", "= opt/b-2.egg-info/PKG-INFO"),  # a hard link, as uv makes them
        ("opt/broken.dist-info/METADATA", b"\xff\x00"),
        ("opt/METADATA", metadata("no", "1")),
    )
    assert [(package.name, package.version, package.licences) for package in found.packages] == [
        ("b", "2", ("BSD",)),
        ("c", "3", ()),
        ("A", "1.0", ("MIT OR Apache-2.0",)),
        ("b", "2", ("BSD",)),
    ]
    assert {package.kind for package in found.packages} == {PYPI}


def test_a_licences_text_is_not_its_name() -> None:
    lines = ["License: Copyright (c)", "        All rights", "Classifier: License :: OSI Approved :: MIT License"]
    found = packages.of_metadata(metadata("a", "1", *lines, "Classifier: License :: OSI Approved"), "x")
    assert found.licences == ("MIT License",)


def test_a_python_that_no_package_brought_is_found_by_its_library() -> None:
    files = [(f"{prefix}/lib/python3.{minor}/os.py", b"") for prefix, minor in (("usr", 11), ("opt/py", 8), ("x", 9))]
    header = ("opt/py/include/python3.8/patchlevel.h", b'#define PY_VERSION             "3.8.20"\n')
    found = installed(("var/lib/dpkg/status", STATUS), *files, header)
    others = [package for package in found.packages if package.kind == GENERIC]
    assert [(package.version, package.where) for package in others] == [
        ("3.8.20", "/opt/py/lib/python3.8"),
        ("3.9", "/x/lib/python3.9"),
    ]
    assert [package.version for package in installed(*files).packages] == ["3.8", "3.11", "3.9"]
