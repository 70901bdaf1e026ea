"""Layers that are known are not made again, and what comes out is the same file."""

import errno
import fcntl
import gc
import hashlib
import io
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import deployer
from deployer.connected.bundle import pack as packing
from deployer.connected.bundle.about import sbom
from deployer.connected.bundle.contents import Contents
from deployer.connected.bundle.layer import known_layers
from deployer.connected.bundle.layer.known_layers import KnownBundle, KnownLayer, KnownTree
from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.connected.site_profile.profile import load
from deployer.contract.base.errors import Refused, SpaceError, UsageError
from deployer.contract.base.tarformat import TarEntry
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import FRAME
from deployer.system import files
from deployer.system.trust.verify import begin, opened
from tests import bundles, elves, tars, wheels

PYTHON = b"#!/usr/bin/python3\n" + b"print('tool')\n" * 20
METADATA = b"Metadata-Version: 2.1\nName: numpy\nVersion: 1.26\nLicense: BSD\n\n"
STATUS = b"Package: libc6\nVersion: 2.36\nArchitecture: amd64\nStatus: install ok installed\n\n"
FILES = {
    "usr/bin/tool": PYTHON,
    "usr/bin/python3": elves.library(["libc.so.6"]),
    "usr/lib/libsolver.so": elves.library(["libmpi.so.12"]),
    "usr/lib/python3/dist-packages/numpy-1.26.dist-info/METADATA": METADATA,
    "usr/lib/python3/" + "long/" * 30 + "name.py": b"x",
    "usr/bin/again": "= usr/bin/tool",
    "usr/bin/link": "-> again",
    "usr/lib/caf\udce9": b"not UTF-8",
    "var/lib/dpkg/status": STATUS,
    "etc/os-release": b"ID=debian\nVERSION_ID=12\n",
    **{f"usr/share/{number}": os.urandom(300_000) for number in range(8)},
}
CONFIG = {"Env": ["PATH=/usr/bin:/bin", "a.b=1"], "WorkingDir": "/work"}


class Source:
    """An image with an identity, which counts how often it is read."""

    def __init__(self, identity: str = "sha256:1", changed: Mapping[str, bytes] = {}) -> None:
        self.identity = identity
        self.reads = 0
        layer = tars.layer({**FILES, **changed}.items())
        self._root = lambda: tars.root_of(layer)

    def read(self, _: Scratch) -> ArchiveImage:
        self.reads += 1
        return ArchiveImage("amd64", CONFIG, self._root(), self.identity)


class Packer:
    """Packs into a folder of its own, with a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.app = folder / "app"
        self.app.mkdir()
        (self.app / "train.py").write_text("1")

    def contents(self, source: Source, command: str = "tool") -> Contents:
        jobs = [Job("hello", [command], 1, 1, 1, "00:05:00")]
        return Contents("tiny", "1.0", source.read, jobs, self.app, mpi=None, identity=lambda: source.identity)

    def pack(self, source: Source, name: str = "b", *sites: str, codec: str = "zstd", cached: bool = True) -> bytes:
        cache = self.cache if cached else None
        profiles = [load(site) for site in sites]
        return packing.pack(
            self.contents(source), profiles, self.folder / f"{name}.tar", codec, cache
        ).path.read_bytes()

    def deploy(self, source: Source, text: str, own: bool = True) -> bytes:
        """Pack into the same file as before, as `deploy` does, after a change of the program."""
        (self.app / "train.py").write_text(text)
        path = self.folder / "own.tar"
        return packing.pack(self.contents(source), [load("lab")], path, "zstd", self.cache, own=own).path.read_bytes()

    def cached(self, pattern: str) -> list[Path]:
        return sorted(self.cache.glob("*/" + pattern))


@pytest.fixture
def packer(tmp_path: Path) -> Packer:
    return Packer(tmp_path)


def test_a_lean_layer_is_known_only_to_lean_bundles(packer: Packer) -> None:
    source = Source(changed={"usr/lib/python3/dist-packages/numpy/tests/x.py": b"x"})
    first, second = packer.folder / "first.tar", packer.folder / "second.tar"
    for lean, output in [(False, first), (True, second), (True, packer.folder / "third.tar")]:
        packed = packing.pack(packer.contents(source)._replace(lean=lean), [], output, cache=packer.cache)
        assert packed.manifest.changes.get("tests_dropped", 0) == lean
    assert source.reads == 2
    assert packed.path.read_bytes() == second.read_bytes() != first.read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize("sites", [(), ("lab",)])
@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_a_known_layer_is_not_read_and_gives_the_same_bytes(packer: Packer, codec: str, sites: tuple[str, ...]) -> None:
    source = Source()
    packer.pack(source, "first", *sites, codec=codec)
    (packer.app / "train.py").write_text("2")
    fast = packer.pack(source, "second", *sites, codec=codec)
    assert source.reads == 1
    assert fast == packer.pack(source, "slow", *sites, codec=codec, cached=False)
    assert source.reads == 2
    assert len(packer.cached("*.tar")) == 1  # its frames are there already


def test_all_facts_are_kept(packer: Packer) -> None:
    source = Source()
    packed = [
        packing.pack(packer.contents(source), [], packer.folder / f"{n}.tar", "zstd", packer.cache) for n in range(2)
    ]
    assert source.reads == 1
    assert packed[0].manifest == packed[1].manifest
    assert packed[1].manifest.image.python == "/usr/bin/python3"
    assert packed[1].manifest.mpi == ("mpich-abi",)
    assert packed[1].manifest.changes["variables dropped"] == 1
    frames = sum(segment.kind == FRAME for segment in packed[0].manifest.segments)
    assert [each.reused for each in packed] == [0, frames]
    sbom = packed[1].path.read_bytes()
    assert all(name in sbom for name in (b"numpy", b"libc6", b"debian"))


@pytest.mark.thorough
def test_a_changed_wheel_is_in_the_sbom(packer: Packer) -> None:
    source = Source()
    folder = packer.folder / "wheels"
    folder.mkdir()
    for number, version in enumerate(("1.0", "1.0", "2.0")):
        path = folder / wheels.file_name(version=version)
        path.write_bytes(wheels.wheel({"demo.py": b""}, version=version))
        contents = packer.contents(source)._replace(carried={f"deployer/wheels/{path.name}": path})
        fast, slow = (
            packing.pack(contents, [], packer.folder / f"{name}.tar", "zstd", cache).path.read_bytes()
            for name, cache in (("fast", packer.cache), ("slow", None))
        )
        assert fast == slow
        assert f"pkg:pypi/demo@{version}".encode() in fast
        assert source.reads == number + 2


def test_any_changed_file_of_ours_makes_another_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployer, "__file__", str(tmp_path / "__init__.py"))
    found = []
    for name, text in (("__init__.py", "1"), ("flatten.py", "1"), ("flatten.py", "2"), ("pins.yaml", "1")):
        (tmp_path / name).write_text(text)
        known_layers._tools.cache_clear()
        found.append(known_layers._tools())
    known_layers._tools.cache_clear()
    assert len(set(found)) == 4


def test_commands_are_looked_up_in_what_is_known(packer: Packer) -> None:
    source = Source(changed={"usr/bin/broken": b"#!/opt/none/python\n"})
    packer.pack(source)
    for command, fault in (("nowhere", "nowhere"), ("broken", "/opt/none/python")):
        messages = []
        for cache in (packer.cache, None):
            with pytest.raises(Refused, match=fault) as caught:
                packing.pack(packer.contents(source, command), [], packer.folder / "c.tar", "zstd", cache)
            messages.append((caught.value.message, caught.value.hint))
        assert messages[0] == messages[1]
    assert source.reads == 3  # not by those with a cache


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["identity", "codec", "tool", "changes"])
def test_another_layer_is_made_anew(packer: Packer, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    packer.pack(source)
    codec = "gzip" if what == "codec" else "zstd"
    if what == "identity":
        source = Source("sha256:2", {"usr/bin/tool": b"other"})
    if what == "tool":
        monkeypatch.setattr(known_layers, "_tools", lambda: ("older",))
    source.reads = 0
    if what == "changes":
        packing.pack(packer.contents(source), [], packer.folder / "c.tar", "zstd", packer.cache, packer.folder / "list")
        assert "mount_points\t/deployer" in (packer.folder / "list").read_text()
    else:
        assert packer.pack(source, "c", codec=codec) == packer.pack(source, "d", codec=codec)
        assert packer.pack(source, "c", codec=codec, cached=False) == (packer.folder / "d.tar").read_bytes()
        source.reads -= 1
    assert source.reads == 1


@pytest.mark.thorough
def test_another_site_and_other_mount_points_have_the_same_layer(packer: Packer) -> None:
    source = Source()
    packer.pack(source)
    fast = packer.pack(source, "c", "lab")
    asked = packer.contents(source)._replace(mount_points=["/lustre/p"])
    asking = packing.pack(asked, [], packer.folder / "d.tar", "zstd", packer.cache)
    assert source.reads == 1
    assert fast == packer.pack(source, "e", "lab", cached=False)
    plain = packing.pack(packer.contents(source), [], packer.folder / "f.tar")
    assert asking.manifest.image.layer_digest == plain.manifest.image.layer_digest
    assert (asking.manifest.mount_points, plain.manifest.mount_points) == (("/lustre/p",), ())


def test_an_image_without_identity_is_always_read(packer: Packer) -> None:
    source = Source("")
    assert packer.pack(source) == packer.pack(source)
    assert source.reads == 2
    assert packer.cached("*.layer") == []


@pytest.mark.thorough
def test_what_was_read_counts_and_not_what_was_looked_up(packer: Packer) -> None:
    """The name of an image moves to another one between the two."""
    moved, old = Source("sha256:new", {"usr/bin/tool": b"new"}), Source("sha256:old")
    contents = packer.contents(moved)._replace(identity=lambda: old.identity)
    packing.pack(contents, [], packer.folder / "a.tar", "zstd", packer.cache)
    assert packer.pack(old) == packer.pack(old, cached=False)
    assert old.reads == 2
    packer.pack(moved)
    assert moved.reads == 1


def places(bundle: bytes, layers: int = 7) -> Iterator[int]:
    """Yield positions in the frames of a bundle, the first and the last byte too."""
    start = bundle.index(b"\x28\xb5\x2f\xfd")
    end = bundle.index(b"blobs/sha256/", start)
    yield from (start, *range(start + 5, end - 600, (end - start) // layers))


@pytest.mark.thorough
def test_a_flipped_bit_in_the_known_bundle_is_found(packer: Packer) -> None:
    source = Source()
    whole = packer.pack(source)
    (kept,) = packer.cached("*.tar")
    said: list[str] = []
    for number, place in enumerate(places(whole)):
        bundles.overwrite(kept, bytes([whole[place] ^ 1]), place)
        packing.pack(packer.contents(source), [], packer.folder / "b.tar", "zstd", packer.cache, say=said.append)
        assert (packer.folder / "b.tar").read_bytes() == whole
        assert source.reads == number + 2
        packer.pack(source)  # the pack before has put a whole one in its place
        assert source.reads == number + 2
        (kept,) = packer.cached("*.tar")
    assert "a bundle in the cache is damaged: the image is read again" in said
    assert list(packer.folder.glob(".*")) == []


@pytest.mark.thorough
def test_a_known_bundle_that_is_cut_or_gone(packer: Packer) -> None:
    source = Source()
    whole = packer.pack(source)
    (kept,) = packer.cached("*.tar")
    with kept.open("r+b") as stream:
        stream.truncate(len(whole) // 2)
    assert packer.pack(source) == whole
    for pattern in ("*.tar", "*.json", "*.layer"):
        (path,) = packer.cached(pattern)
        path.unlink()
        (packer.folder / "b.tar").unlink()
        assert packer.pack(source) == whole
    assert source.reads == 5


@pytest.mark.thorough
def test_a_damaged_record_is_as_good_as_none(packer: Packer) -> None:
    source = Source()
    whole = packer.pack(source)
    (path,) = packer.cached("*.layer")
    good = path.read_bytes()
    head, _, body = good.partition(b"\n")
    forged = head[:130] + hashlib.sha256(b"x").hexdigest().encode() + b"\n{}"
    for number, text in enumerate(
        (b"", b"\n", b"\xff" * 300, good[:-1], good.replace(b"numpy", b"numpi"), head + b"\n", body, forged), 2
    ):
        path.write_bytes(text)
        assert packer.pack(source) == whole
        assert source.reads == number
        assert path.read_bytes() == good


def test_another_layer_than_announced_is_damage(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that have their digests, in another order or number, are not the layer."""
    source = Source()
    whole = packer.pack(source)
    read = KnownLayer.read

    def cut(text: bytes) -> KnownLayer:
        known = read(text)
        return known._replace(segments=known.segments[:-1])

    monkeypatch.setattr(KnownLayer, "read", cut)
    assert packer.pack(source) == whole
    assert source.reads == 2


@pytest.mark.thorough
def test_where_no_link_can_be_made_the_new_bundle_is_kept(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    source = Source()
    for number in range(3):  # each replaces the bundle that the index names
        (packer.app / "train.py").write_text(str(number))
        packer.pack(source)
    assert source.reads == 1
    assert (packer.folder / "b.tar").read_bytes() == packer.pack(source, "slow", cached=False)


def test_the_record_goes_with_its_bundle(packer: Packer) -> None:
    packer.pack(Source())
    (record,), (index,) = packer.cached("*.layer"), packer.cached("*.json")
    index.unlink()
    packer.pack(Source("sha256:2", {"usr/bin/tool": b"other"}), "other")
    assert not record.exists()


def test_a_full_disk_leaves_nothing_under_the_name(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    packer.pack(source)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SpaceError):
            packer.pack(source, "other")
    assert not (packer.folder / "other.tar").exists()
    assert list(packer.folder.glob(".*")) == []
    monkeypatch.setattr(files, "write_text", full)  # the cache cannot be written
    packer.pack(Source("sha256:2"), "other")
    assert len(packer.cached("*.layer")) == 1
    assert source.reads == 1


def test_two_packs_at_once(packer: Packer) -> None:
    source = Source()
    expected = packer.pack(source)
    found: dict[int, bytes] = {}

    def work(number: int) -> None:
        found[number] = packer.pack(source, str(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found.values()) == {expected}
    assert source.reads == 1


def test_what_a_pack_finds_out_of_a_known_layer_is_kept(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    packer.pack(source)
    other = packer.contents(source)._replace(name="other")  # which its SBOM names
    packed = [packing.pack(other, [], packer.folder / "o.tar", "zstd", packer.cache).path.read_bytes()]
    monkeypatch.setattr(sbom, "make", lambda *_: pytest.fail("the SBOM was made again"))
    packed.append(packing.pack(other, [], packer.folder / "o.tar", "zstd", packer.cache).path.read_bytes())
    assert packed[0] == packed[1]
    assert source.reads == len(packer.cached("*.tar")) == 1


# ------------------------------------------------------------------------------------------------ deploy's own file


def _unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no frame be copied."""
    monkeypatch.setattr(known_layers, "copied", lambda _: pytest.fail("the layer was copied"))


@pytest.mark.thorough
def test_of_deploys_own_file_only_the_end_is_written_again(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    source, path = Source(), packer.folder / "own.tar"
    packer.deploy(source, "1")
    before = path.stat()
    with monkeypatch.context() as patch:
        _unread(patch)
        for text in "a longer program", "2":
            fast = packer.deploy(source, text)
            assert fast == packer.pack(source, "slow", "lab", cached=False)
    (link,) = packer.cached("*.tar")
    assert os.path.samestat(before, path.stat())
    assert os.path.samefile(link, path)
    assert list(packer.folder.glob(".*")) == []


def _third_name(packer: Packer, path: Path) -> None:
    (packer.folder / "third.tar").hardlink_to(path)


def _another_inode(_: Packer, path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def _another_front(_: Packer, path: Path) -> None:
    bundles.overwrite(path, b"other", 5000)


def _cut(_: Packer, path: Path) -> None:
    os.truncate(path, 1_900_000)


def _moved(_: Packer, path: Path) -> None:
    path.rename(path.with_name("moved.tar"))
    path.symlink_to("moved.tar")


@pytest.mark.thorough
@pytest.mark.parametrize("change", [_third_name, _another_inode, _another_front, _cut, _moved, None])
def test_a_file_that_is_not_deploys_own_alone_is_written_whole(
    packer: Packer, change: Callable[[Packer, Path], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = Source(), packer.folder / "own.tar"
    packer.deploy(source, "1")
    if change:
        change(packer, path)
    others = {each: each.read_bytes() for each in packer.folder.glob("*.tar") if each != path}
    inode = path.lstat().st_ino
    fast = packer.deploy(source, "2", own=change is not None)
    assert path.lstat().st_ino != inode
    assert fast == packer.pack(source, "slow", "lab", cached=False)
    assert others == {each: each.read_bytes() for each in others}
    if change:  # and the next time its end alone
        _unread(monkeypatch)
        assert packer.deploy(source, "3") == packer.pack(source, "slow", "lab", cached=False)


@pytest.mark.thorough
def test_a_pack_that_fails_leaves_the_layer_for_the_next_one(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    source, path = Source(), packer.folder / "own.tar"
    packer.deploy(source, "1")
    with monkeypatch.context() as patch:
        patch.setattr(packing, "_write_sbom", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            packer.deploy(source, "2")
    assert [each.name for each in packer.folder.iterdir() if each.suffix in (".tar", ".part")] == []
    packer.deploy(source, "3")
    assert os.path.samefile(path, packer.cached("*.tar")[0])
    _unread(monkeypatch)
    assert packer.deploy(source, "4") == packer.pack(source, "slow", "lab", cached=False)
    assert source.reads == 2


def test_a_file_that_another_process_writes_is_left_alone(packer: Packer) -> None:
    source, path = Source(), packer.folder / "own.tar"
    before = packer.deploy(source, "1")
    with path.open("r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another process writes"):
            packer.deploy(source, "2")
    assert path.read_bytes() == before


@pytest.mark.thorough
def test_a_damaged_layer_that_check_reads_is_made_again(packer: Packer) -> None:
    source, path = Source(), packer.folder / "own.tar"
    packer.deploy(source, "1")
    with opened(str(path)) as stream:
        frames = [each for each in begin(stream, str(path)).manifest.segments if each.kind == FRAME]
    with path.open("r+b") as stream:
        for frame in frames:
            stream.seek(frame.offset + frame.size // 2)
            stream.write(b"damage")
    assert packer.deploy(source, "2") == packer.pack(source, "slow", "lab", cached=False)
    assert source.reads == 3


@pytest.mark.thorough
def test_a_damaged_layer_that_deploy_forgets_is_made_again(packer: Packer) -> None:
    """Nothing in `pack` reads the frame, but what signs, rehearses or sends the bundle does, and removes the file."""
    source, path = Source(), packer.folder / "own.tar"
    packer.deploy(source, "1")
    with opened(str(path)) as stream:
        frame = next(each for each in begin(stream, str(path)).manifest.segments if each.kind == FRAME)
    bundles.overwrite(path, b"damage", frame.offset + frame.size // 2)
    path.unlink()
    assert packer.deploy(source, "2") == packer.pack(source, "slow", "lab", cached=False)
    assert source.reads == 3


@pytest.mark.thorough
def test_a_tree_that_was_read_is_forgotten_with_its_pack() -> None:
    """A process may pack several times."""
    entry = TarEntry(b"0", b"bin/true", 0o755, 4, b"")
    layer = cast("KnownLayer", SimpleNamespace(entries=[entry], segments=[]))
    tree = KnownTree(KnownBundle(layer, io.BytesIO()), {"name": "zstd"})
    assert tree.content(entry).size == 4
    known = weakref.ref(tree)
    del tree
    gc.collect()
    assert known() is None
