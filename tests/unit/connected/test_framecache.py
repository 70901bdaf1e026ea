import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deployer.connected import codecs
from deployer.connected import pack as packing
from deployer.connected.framecache import Frame, FrameCache
from deployer.connected.sources import from_folder
from tests.tars import digest


def framed(raw: bytes) -> Frame:
    data = codecs.codec("zstd").compress(raw)
    return Frame(data, digest(data).partition(":")[2])


def cache_in(folder: Path, cap: int = 10**9) -> FrameCache:
    return FrameCache(folder, codecs.codec("zstd"), cap)


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_put_is_got_and_nothing_else(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    assert cache.get(b"a" * 1000) is None
    cache.put(b"a" * 1000, framed(b"a" * 1000))
    assert cache.get(b"a" * 1000) == framed(b"a" * 1000)
    assert cache.get(b"b" * 1000) is None
    other = FrameCache(tmp_path, codecs.codec("gzip"))
    assert other.get(b"a" * 1000) is None


def test_a_damaged_or_foreign_entry_is_as_good_as_none(tmp_path: Path) -> None:
    raw = random.Random(1).randbytes(3000)
    cache = cache_in(tmp_path)
    cache.put(raw, framed(raw))
    (path,) = entries(tmp_path)
    whole = path.read_bytes()
    damaged = [whole[:n] for n in (0, 10, 32, 40, len(whole) - 1)]
    damaged += [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(0, len(whole), 97)]
    other = framed(raw[::-1])
    damaged.append(bytes.fromhex(other.sha256) + other.data)  # whole, but of another content
    for data in damaged:
        path.write_bytes(data)
        assert cache.get(raw) is None
    path.write_bytes(whole)
    assert cache.get(raw) == framed(raw)


def test_the_oldest_go_first_when_it_is_full(tmp_path: Path) -> None:
    contents = [random.Random(n).randbytes(10_000) for n in range(8)]
    cache = cache_in(tmp_path, cap=45_000)
    for number, raw in enumerate(contents):
        cache.put(raw, framed(raw))
        for path in entries(tmp_path):
            os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - 10**9))
        if number:
            assert cache.get(contents[0]) is not None  # in use, so it stays
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 45_000
    assert [cache.get(raw) is not None for raw in contents] == [True] + [False] * 4 + [True] * 3


def test_what_a_kill_left_is_removed_later(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    cache.put(b"x", framed(b"x"))
    folder = entries(tmp_path)[0].parent
    old, new = folder / "old.part", folder / "new.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    cache.trim()
    assert (old.exists(), new.exists()) == (False, True)


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = cache_in(tmp_path / "file" / "cache")
    cache.put(b"x", framed(b"x"))
    assert cache.get(b"x") is None
    cache.trim()


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    top = tmp_path / "rootfs"
    (top / "usr").mkdir(parents=True)
    for number in range(60):
        (top / "usr" / f"f{number:02}").write_bytes(random.Random(number).randbytes(300_000) * 2)
    return top


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
    expected = packing.pack(from_folder(rootfs, "x", "1"), [], tmp_path / "plain.tar").digest
    program = Path(sys.executable).parent / "deployer"
    argv = [program, "pack", "--rootfs", rootfs, "--name", "x", "--version", "1", "-o", tmp_path / "out" / "b.tar"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    chance = random.Random(3)
    frames = tmp_path / "cache" / "deployer" / "frames"
    for _ in range(4):
        kill_at = len(entries(frames)) + chance.randrange(1, 6)
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
        while process.poll() is None and len(entries(frames)) < kill_at:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert entries(frames)
    packed = packing.pack(from_folder(rootfs, "x", "1"), [], tmp_path / "b.tar", "zstd", frames)
    assert packed.digest == expected
    assert packed.reused > 0
