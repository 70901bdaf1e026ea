import errno
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from deployer.connected.bundle import pack as packing
from deployer.connected.bundle.layer import codecs
from deployer.connected.bundle.layer.compress import Press
from deployer.connected.bundle.layer.framecache import CachedFrame, FrameCache, Kept
from deployer.connected.bundle.layer.layer import Piece
from deployer.connected.bundle.sources import from_folder
from deployer.contract.base.tarformat import FILES, FOLDERS, LINKS, REST
from tests.tars import digest


def framed(raw: bytes) -> CachedFrame:
    data = codecs.codec("zstd").compress(raw)
    return CachedFrame(data, digest(data).partition(":")[2])


def cache_in(folder: Path, cap: int = 10**9) -> FrameCache:
    return FrameCache(folder / "cache", codecs.codec("zstd"), cap)


def kept(folder: Path, *contents: bytes, cap: int = 10**9, name: str = "b") -> Path:
    """Write a bundle of frames, keep it, and return its path."""
    path = folder / f"{name}.tar"
    frames, offset = [], 7
    with path.open("wb") as stream:
        stream.write(b"header.")
        for raw in contents:
            frame = framed(raw)
            stream.write(frame.data)
            frames.append(Kept(FrameCache.key(raw), offset, len(frame.data), frame.sha256))
            offset += len(frame.data)
    cache_in(folder, cap).keep(path, name, frames)
    return path


def got(cache: FrameCache, raw: bytes) -> CachedFrame | None:
    with closing(cache):
        return cache.get(cache.key(raw))


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_kept_is_got_and_nothing_else(tmp_path: Path) -> None:
    assert got(cache_in(tmp_path), b"a" * 1000) is None
    bundle = kept(tmp_path, b"a" * 1000, b"b" * 999)
    for raw in (b"a" * 1000, b"b" * 999):
        assert got(cache_in(tmp_path), raw) == framed(raw)
    assert got(cache_in(tmp_path), b"a" * 999) is None
    assert got(FrameCache(tmp_path / "cache", codecs.codec("gzip")), b"a" * 1000) is None
    bundle.unlink()  # the user's name of it: the cache has its own
    assert got(cache_in(tmp_path), b"a" * 1000) == framed(b"a" * 1000)


def test_a_damaged_bundle_is_as_good_as_none(tmp_path: Path) -> None:
    raw = random.Random(1).randbytes(3000)
    bundle = kept(tmp_path, raw)
    whole = bundle.read_bytes()
    damaged = [whole[:n] for n in (0, 7, 32, len(whole) - 1)]
    damaged += [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(7, len(whole), 97)]
    for data in damaged:
        bundle.write_bytes(data)  # in place: the cache's name is of the same file
        assert got(cache_in(tmp_path), raw) is None
    bundle.write_bytes(whole)
    assert got(cache_in(tmp_path), raw) == framed(raw)


def test_a_damaged_index_is_as_good_as_none(tmp_path: Path) -> None:
    kept(tmp_path, b"x" * 500)
    (index,) = (tmp_path / "cache").rglob("*.json")
    for text in ("", "[]", "{", '{"format": 2, "frames": []}', '{"format": 1, "frames": [[1]]}', "\0"):
        index.write_text(text)
        assert got(cache_in(tmp_path), b"x" * 500) is None


def test_where_no_link_can_be_made_the_bundle_is_read_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    bundle = kept(tmp_path, b"a" * 1000)
    assert [path.suffix for path in entries(tmp_path / "cache")] == [".json"]
    assert got(cache_in(tmp_path), b"a" * 1000) == framed(b"a" * 1000)
    bundle.rename(tmp_path / "moved.tar")
    assert got(cache_in(tmp_path), b"a" * 1000) is None
    cache_in(tmp_path).trim()
    assert not entries(tmp_path / "cache")


def test_the_oldest_go_first_when_it_is_full(tmp_path: Path) -> None:
    contents = [random.Random(n).randbytes(10_000) for n in range(8)]
    for number, raw in enumerate(contents):
        kept(tmp_path, raw, cap=45_000, name=str(number))
        for path in (tmp_path / "cache").rglob("*.json"):
            os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - 10**9))
        assert got(cache_in(tmp_path), contents[0])  # in use, so it stays
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.tar")) <= 45_000
    assert [got(cache_in(tmp_path), raw) is not None for raw in contents] == [True] + [False] * 4 + [True] * 3


def test_what_a_kill_left_is_removed_later(tmp_path: Path) -> None:
    kept(tmp_path, b"x")
    folder = entries(tmp_path / "cache")[0].parent
    old, new, lost = folder / "old.part", folder / "new.part", folder / "lost.tar"
    for path in (old, new, lost):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    cache_in(tmp_path).trim()
    assert (old.exists(), new.exists(), lost.exists()) == (False, True, False)


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    kept(tmp_path, b"x")
    assert got(cache_in(tmp_path), b"x") is None


def test_pieces_are_shown_in_order_unless_the_first_is_in_the_cache(tmp_path: Path) -> None:
    kept(tmp_path, b"folders")
    contents = {b"folders": FOLDERS, b"file": FILES, b"more of it": REST, b"links": LINKS}
    pieces = [Piece(holds, len(raw), lambda raw=raw: raw) for raw, holds in contents.items()]
    for cache, expected in (
        (None, [(0, b"folders"), (1, b"file"), (3, b"links")]),
        (cache_in(tmp_path), []),
    ):
        seen: list[tuple[int, bytes]] = []
        press = Press(codecs.codec("zstd"), cache)
        assert len(list(press.frames(pieces, lambda number, data, to=seen: to.append((number, data))))) == 4
        assert (seen, press.raw.digest) == (expected, digest(b"".join(contents)))


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    top = tmp_path / "rootfs"
    (top / "usr").mkdir(parents=True)
    for number in range(60):
        (top / "usr" / f"f{number:02}").write_bytes(random.Random(number).randbytes(300_000) * 2)
    return top


@pytest.mark.thorough
def test_a_second_pack_takes_all_frames_from_the_cache_and_gives_the_same_bytes(tmp_path: Path, rootfs: Path) -> None:
    def pack(name: str, cache: Path | None) -> packing.Packed:
        return packing.pack(from_folder(rootfs, "x", "1"), [], tmp_path / name, "zstd", cache)

    plain, first, second = pack("a.tar", None), pack("b.tar", tmp_path / "c"), pack("c.tar", tmp_path / "c")
    assert plain.digest == first.digest == second.digest
    frames = second.record()["frames"]
    assert (plain.reused, first.reused, second.reused) == (0, 0, frames)
    (rootfs / "usr" / "f30").write_bytes(b"changed")
    changed = pack("d.tar", tmp_path / "c")
    assert 0 < int(str(frames)) - changed.reused <= 4
    assert changed.digest == pack("e.tar", None).digest


@pytest.mark.thorough
def test_killed_at_any_time_the_next_pack_is_right(tmp_path: Path, rootfs: Path) -> None:
    program = Path(sys.executable).parent / "deployer"
    output = tmp_path / "out" / "b.tar"
    argv = [program, "pack", "--rootfs", rootfs, "--name", "x", "--version", "1", "-o", output]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    frames = tmp_path / "cache" / "deployer" / "frames"
    began = time.monotonic()
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True)
    seconds = time.monotonic() - began
    for number in range(6):  # from the start of the work to just after its end, when the cache is written
        (rootfs / "usr" / "f30").write_bytes(b"%d" % number)
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
        time.sleep(seconds * (0.4 + number * 0.12))
        process.send_signal(signal.SIGKILL)
        process.wait()
        expected = packing.pack(from_folder(rootfs, "x", "1"), [], tmp_path / "plain.tar").digest
        packed = packing.pack(from_folder(rootfs, "x", "1"), [], tmp_path / "b.tar", "zstd", frames)
        assert packed.digest == expected
        assert packed.reused > 0
