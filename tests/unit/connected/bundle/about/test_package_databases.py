"""Databases of rpm, apk and conda in an image, and their names in the SBOM.

A real rpm 4.18 wrote the shape of this header; syft 1.18.1 names the same packages (purls) as these readers do.
"""

import json
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.bundle.about import packages, sbom
from deployer.connected.bundle.about.packages import PackageInventory
from deployer.connected.rootfs.flatten import FlattenedRootfs
from tests.tars import layer, root_of

APK = b"""\
C:Q1abc=
P:musl
V:1.2.4-r2
A:x86_64
L:MIT
o:musl
F:lib
R:ld-musl-x86_64.so.1

P:ssl_client
V:1.36.1-r5
A:x86_64
L:GPL-2.0-only
o:busybox
"""
RPM = "usr/lib/sysimage/rpm/rpmdb.sqlite"
ROCKY = ("etc/os-release", b'ID="rocky"\nVERSION_ID="9.4"\n')


def header(**fields: str | int) -> bytes:
    tags = {
        "name": 1000,
        "version": 1001,
        "release": 1002,
        "epoch": 1003,
        "license": 1014,
        "arch": 1022,
        "source": 1044,
    }
    index, data = b"", b""
    for name, value in fields.items():
        data += b"\0" * (-len(data) % 4)
        index += struct.pack(">IIII", tags[name], 4 if isinstance(value, int) else 6, len(data), 1)
        data += struct.pack(">I", value) if isinstance(value, int) else value.encode() + b"\0"
    return struct.pack(">II", len(fields), len(data)) + index + data


def rpmdb(folder: Path, *headers: bytes) -> bytes:
    with sqlite3.connect(folder / "rpmdb.sqlite") as database:
        database.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY AUTOINCREMENT, blob BLOB NOT NULL)")
        database.executemany("INSERT INTO Packages (blob) VALUES (?)", [(one,) for one in headers])
    database.close()
    return (folder / "rpmdb.sqlite").read_bytes()


def installed(*files: tuple[str, Any]) -> PackageInventory:
    return packages.of_tree(FlattenedRootfs(root_of(layer([("bin", None), *files]))))


def purls(*files: tuple[str, Any]) -> list[str]:
    document = json.loads(b"".join(sbom.make("x", "1", installed(*files), [], [])))
    return [item["purl"] for item in document["components"] if "purl" in item]


def test_rpm(tmp_path: Path) -> None:
    content = rpmdb(
        tmp_path,
        header(name="alpha", version="1.2", release="3", license="MIT", arch="x86_64", source="alpha-1.2-3.src.rpm"),
        header(name="beta", version="2.0", release="1.el9", epoch=4, arch="noarch"),
    )
    assert purls((RPM, content), ROCKY) == [
        "pkg:rpm/rocky/alpha@1.2-3?arch=x86_64&distro=rocky-9.4&upstream=alpha-1.2-3.src.rpm",
        "pkg:rpm/rocky/beta@2.0-1.el9?arch=noarch&distro=rocky-9.4&epoch=4",
    ]
    beta = installed((RPM, content), ROCKY).packages[1]
    assert (beta.version, beta.where) == ("4:2.0-1.el9", f"/{RPM}")


def test_apk_and_conda() -> None:
    zlib = json.dumps({"name": "zlib", "version": "1.2.13", "license": "Zlib", "channel": "x"}).encode()
    files = (("lib/apk/db/installed", APK), ("opt/c/conda-meta/zlib-1.2.13-0.json", zlib))
    assert purls(*files) == [
        "pkg:apk/alpine/musl@1.2.4-r2?arch=x86_64",
        "pkg:apk/alpine/ssl_client@1.36.1-r5?arch=x86_64&upstream=busybox",
        "pkg:conda/zlib@1.2.13",
    ]
    assert [one.licences for one in installed(*files).packages] == [("MIT",), ("GPL-2.0-only",), ("Zlib",)]


def test_debian_packages_name_their_source() -> None:
    status = b"Package: libssl3\nSource: openssl (3.0.1)\nVersion: 3.0.1+b1\n\nPackage: a\nSource: b\nVersion: 1\n"
    assert purls(("var/lib/dpkg/status", status)) == [
        "pkg:deb/debian/a@1?upstream=b",
        "pkg:deb/debian/libssl3@3.0.1%2Bb1?upstream=openssl%403.0.1",
    ]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (RPM, b""),
        (RPM, b"SQLite format 3\0" + b"x" * 100),
        ("var/lib/rpm/rpmdb.sqlite", None),
        ("opt/conda-meta/a.json", b"{"),
        ("opt/conda-meta/a.json", b"[" * 100_000),
        ("opt/conda-meta/a.json", b"[]"),
        ("opt/conda-meta/a.json", b'{"name": "a"}'),
        ("usr/lib/apk/db/installed", b"P:a\n\nV:1\n\xff"),
        ("opt/a.json", b'{"name": "a", "version": "1"}'),
    ],
)
def test_damaged_databases_are_skipped(tmp_path: Path, path: str, content: bytes | None) -> None:
    damaged = (header(name="a")[:20], struct.pack(">II", 2**32 - 1, 0), b"", header(name="a", version="1")[:-2])
    for one in [content] if content is not None else [rpmdb(tmp_path, blob) for blob in damaged[:1]]:
        assert installed((path, one)).packages == ()
    if content is None:
        for number, blob in enumerate(damaged[1:]):
            (tmp_path / str(number)).mkdir()
            assert installed((path, rpmdb(tmp_path / str(number), blob))).packages == ()
