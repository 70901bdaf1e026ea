import contextlib
import gzip
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from deployer.connected.bundle.layer.layer import pieces
from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs import archive, folder
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.connected.rootfs.merge import Rootfs
from deployer.contract.base.errors import IntegrityError, UsageError
from tests import tars

LAYERS = [
    tars.layer(
        [
            ("usr/bin", None), ("bin", "-> usr/bin"), ("etc", None), ("etc/gone", b"1"), ("usr/bin/tool", b"x" * 3000),
            ("usr/bin/same", "= usr/bin/tool"), ("etc/odd\udcff\nname", b"odd"), ("old", None), ("old/x", b"1"),
        ]
    ),
    tars.layer([("bin/new", b"new"), ("etc/.wh.gone", b""), ("old", "-> etc"), ("old/below", b"2")]),
]  # fmt: skip


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    with Scratch(tmp_path) as opened:
        yield opened


def raw(root: Rootfs) -> bytes:
    """Return the uncompressed layer."""
    return b"".join(piece.read() for piece in pieces(FlattenedRootfs(root)))


EXPECTED = raw(tars.root_of(*LAYERS))


def packed(data: bytes, name: str) -> bytes:
    return {"plain": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}[name](data)


@pytest.mark.parametrize("outer", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("kind", ["docker", "oci", "oci of gzip", "oci of zstd"])
def test_each_kind_gives_the_same_layer_and_keeps_the_configuration(
    tmp_path: Path, scratch: Scratch, kind: str, outer: str
) -> None:
    stored = [packed(layer, kind.rpartition(" ")[2]) for layer in LAYERS] if " " in kind else None
    files = tars.docker_archive(LAYERS) if kind == "docker" else tars.oci_archive(LAYERS, stored)
    path = tmp_path / "image"
    path.write_bytes(packed(tars.archive(files), outer))
    image = archive.read_image(path, scratch)
    scratch.settle()
    assert raw(image.root) == EXPECTED
    assert image.architecture == "arm64"
    kept = {name: image.config[name] for name in ("Env", "Cmd", "WorkingDir", "Labels")}
    assert kept == {"Env": ["A=b"], "Cmd": ["sh"], "WorkingDir": "/w", "Labels": {"x": "y"}}


def test_a_layout_that_is_a_folder(tmp_path: Path, scratch: Scratch) -> None:
    for name, data in tars.oci_archive(LAYERS).items():
        path = tmp_path / "layout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert raw(archive.read_image(tmp_path / "layout", scratch).root) == EXPECTED
    scratch.settle()
    with pytest.raises(UsageError, match="not an OCI layout"):
        archive.read_image(tmp_path, scratch)


@pytest.mark.parametrize("outer", ["plain", "gzip", "zstd"])
def test_a_flat_tar_and_a_folder_give_the_same_layer(tmp_path: Path, scratch: Scratch, outer: str) -> None:
    whole = tmp_path / "root"
    whole.mkdir()
    for layer in LAYERS[:1]:
        subprocess.run(["tar", "-x", "-C", whole], input=layer, check=True, timeout=30)
    expected = raw(tars.root_of(LAYERS[0]))
    path = tmp_path / "flat"
    path.write_bytes(packed(LAYERS[0], outer))
    assert raw(archive.read_image(path, scratch).root) == expected
    from_folder = Rootfs()
    from_folder.apply(folder.entries_of(str(whole)))
    assert raw(from_folder) == expected


def test_what_an_engine_fills_does_not_matter() -> None:
    bare = [("usr/bin", None), ("usr/bin/tool", b"x"), ("etc", None)]
    filled = [
        *bare, (".dockerenv", b""), ("dev", None), ("dev/pts", None), ("dev/console", b""), ("proc", None),
        ("sys", None), ("etc/hosts", b"1.2.3.4 laptop"), ("etc/resolv.conf", b""), ("etc/hostname", b"x"),
        ("etc/mtab", "-> /proc/mounts"),
    ]  # fmt: skip
    assert raw(tars.root_of(tars.layer(bare))) == raw(tars.root_of(tars.layer(filled)))


def test_a_damaged_blob_is_refused(tmp_path: Path) -> None:
    for files in (tars.oci_archive(LAYERS), tars.docker_archive(LAYERS)):
        name = next(name for name, data in files.items() if data == LAYERS[0])
        files[name] = files[name].replace(b"x" * 3000, b"y" * 3000)
        path = tmp_path / "image"
        path.write_bytes(tars.archive(files))
        with Scratch(tmp_path) as scratch:
            archive.read_image(path, scratch)
            with pytest.raises(IntegrityError, match="does not have its digest"):
                scratch.settle()


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_compressed_tar_that_is_cut_or_broken_is_refused(tmp_path: Path, name: str) -> None:
    data = packed(LAYERS[0], name)
    path = tmp_path / "flat"
    for damaged in (data[: len(data) // 2], data[:-4], data[:50] + bytes([data[50] ^ 0x55]) + data[51:]):
        path.write_bytes(damaged)
        with Scratch(tmp_path) as scratch, contextlib.suppress(UsageError):
            image = archive.read_image(path, scratch)
            # zstd streams without a checksum show some changes in the content alone
            assert name == "zstd"
            assert raw(image.root) != raw(tars.root_of(LAYERS[0]))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xfd7zXZ\0" + b"x" * 600, "compressed with xz"),
        (b"PK\x03\x04" + b"x" * 600, "compressed with zip"),
        (b"just text\n" * 100, "not a tar"),
        (tars.archive(tars.docker_archive(LAYERS, ["a:1", "b:2"])), "2 images: a:1, b:2"),
        (tars.archive({"manifest.json": b"{"}), "not valid JSON"),
        (tars.archive({"manifest.json": b"{}"}), "an invalid document"),
        (tars.archive({"manifest.json": b"[{}]"}), "an invalid document: 'Config'"),
        (tars.archive({"oci-layout": b"{}", "index.json": b'{"manifests": [{}]}'}), "an invalid document: 'digest'"),
        (tars.archive({"manifest.json": b'[{"Config": "c.json", "Layers": []}]'}), "no c.json"),
    ],
)
def test_what_is_no_image_is_refused_with_the_reason(
    tmp_path: Path, scratch: Scratch, data: bytes, reason: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=reason) as caught:
        archive.read_image(path, scratch)
    assert str(path) in caught.value.message


def test_a_folder_with_hard_links_devices_and_sockets(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "b").write_bytes(b"1")
    os.link(tmp_path / "bin" / "b", tmp_path / "bin" / "a")
    os.symlink("/nowhere", tmp_path / "bin" / "l")
    os.mkfifo(tmp_path / "bin" / "pipe")
    root = Rootfs()
    root.apply(folder.entries_of(str(tmp_path)))
    assert root.find(b"bin/a") is root.find(b"bin/b")
    tree = FlattenedRootfs(root)
    assert tree.changed["devices_dropped"] == [b"bin/pipe"]
    assert [e.path for e in tree.entries() if e.path.startswith(b"bin")] == [b"bin", b"bin/a", b"bin/b", b"bin/l"]


@pytest.mark.needs("root")
def test_the_folders_of_an_overlay_are_layers(tmp_path: Path) -> None:
    lower, upper, top = tmp_path / "lower", tmp_path / "upper", tmp_path / "top"
    (lower / "usr" / "d").mkdir(parents=True)
    (lower / "usr" / "d" / "old").write_bytes(b"1")
    (lower / "usr" / "gone").write_bytes(b"1")
    (upper / "usr" / "d").mkdir(parents=True)
    (upper / "usr" / "d" / "new").write_bytes(b"2")
    os.mknod(upper / "usr" / "gone", 0o020000, 0)
    try:
        os.setxattr(upper / "usr" / "d", "trusted.overlay.opaque", b"y")
    except OSError:
        pytest.skip("needs a file system with trusted attributes")
    root = Rootfs()
    for layer in (lower, upper):
        root.apply(folder.overlay_entries(str(layer)))
    assert [path for path, _ in root.walk()] == [b"usr", b"usr/d", b"usr/d/new"]
    top.mkdir()
    (top / "usr").mkdir()
    os.setxattr(top / "usr", "trusted.overlay.redirect", b"/elsewhere")
    with pytest.raises(folder.ForeignOverlay, match="redirect"):
        root.apply(folder.overlay_entries(str(top)))
