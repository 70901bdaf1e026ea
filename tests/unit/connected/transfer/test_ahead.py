"""Frames that are sent while a bundle is packed: a real pack and site, with the fake line of test_remote between."""

import errno
import io
import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.connected.bundle import pack as packing
from deployer.connected.bundle.contents import Contents
from deployer.connected.bundle.pack import Packed
from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs import tarreader
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.connected.rootfs.merge import Rootfs
from deployer.connected.rootfs.tarreader import Spooled
from deployer.connected.site_profile.profile import load
from deployer.connected.transfer.ahead import Ahead
from deployer.connected.transfer.push import Pushed, PushOptions, push
from deployer.connected.transfer.remote import Remote
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import FRAME
from tests import bundles
from tests.unit.connected.transfer.test_remote import far

__all__ = ["far"]

pytestmark = pytest.mark.thorough

#: Of no pattern: files of an image, each a frame of its own.
FILES = {"usr/bin/tool": b"tool" * 500} | {f"opt/{number}": os.urandom(1_500_000) for number in range(6)}


def contents(files: dict[str, bytes] = FILES) -> Contents:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))

    def read(scratch: Scratch) -> ArchiveImage:
        root = Rootfs()
        root.apply(tarreader.entries_of(Spooled(io.BytesIO(stream.getvalue()).read, scratch.spool)))
        return ArchiveImage("amd64", {"Env": ["PATH=/usr/bin"]}, root)

    return Contents("tiny", "1.0", read, [Job("hello", ["tool"], 1, 1, 1, "00:05:00")])


@pytest.fixture
def remote(far: Path) -> Iterator[Remote]:
    with Remote(load("lab")) as connection:
        connection.prepare()
        yield connection


def came(far: Path, least: int = 0) -> list[Path]:
    """Return the parts at the site, when they have this many bytes."""
    for _ in range(500):
        parts = sorted((far / "deployer" / "incoming").glob("*/*.part"))
        if sum(part.stat().st_size for part in parts) >= least:
            return parts
        time.sleep(0.02)
    raise AssertionError(f"no {least} bytes arrived: {parts}")


def packed(ahead: Ahead, far: Path, path: Path, least: int, files: dict[str, bytes] = FILES) -> Packed:
    """Pack an image, and return when this many bytes have arrived."""
    done = packing.pack(contents(files), [], path, follow=ahead.follow)
    came(far, least)
    return done


def pushed(bundle: Packed, remote: Remote, token: str) -> Pushed:
    options = PushOptions(without_plan=True, packed=bundle.digest, ahead=token)
    return push(bundle.path, load("lab"), None, options, remote)


def test_what_came_ahead_is_not_sent_again(far: Path, tmp_path: Path, remote: Remote) -> None:
    ahead = Ahead(lambda: remote)
    bundle = packed(ahead, far, tmp_path / "b.tar", 3_000_000)
    token = ahead.finish()
    parts = came(far)
    assert {part.parent.name for part in parts} == {token}
    before = sum(part.stat().st_size for part in parts)
    result = pushed(bundle, remote, token)
    assert result.folder
    assert (Path(result.folder) / "rootfs" / "opt" / "5").read_bytes() == FILES["opt/5"]
    assert (far / "deployer" / "bundles" / "tiny-1.0.tar").read_bytes() == bundle.path.read_bytes()
    assert before < result.sent < bundle.size + 10_000  # both together, each byte once
    assert not list((far / "deployer" / "incoming").iterdir())


def test_a_part_that_was_damaged_there_is_sent_again(
    far: Path, tmp_path: Path, remote: Remote, capsys: pytest.CaptureFixture[str]
) -> None:
    ahead = Ahead(lambda: remote)
    bundle = packed(ahead, far, tmp_path / "b.tar", 3_000_000)
    token = ahead.finish()
    bundles.flip(max(came(far), key=lambda part: part.stat().st_size), 1000)
    assert pushed(bundle, remote, token).folder
    assert "damaged data" in capsys.readouterr().err
    assert (far / "deployer" / "bundles" / "tiny-1.0.tar").read_bytes() == bundle.path.read_bytes()


def test_frames_that_the_site_has_are_not_sent(far: Path, tmp_path: Path, remote: Remote) -> None:
    pushed(packing.pack(contents(), [], tmp_path / "a.tar"), remote, "")
    ahead, files = Ahead(lambda: remote), {**FILES, "opt/2": os.urandom(1_500_000)}
    bundle = packed(ahead, far, tmp_path / "b.tar", 1_400_000, files)
    token = ahead.finish()
    new = sum(part.stat().st_size for part in came(far))
    frames = [segment.size for segment in bundle.manifest.segments if segment.kind == FRAME]
    assert new < 3_000_000 < sum(frames)
    result = pushed(bundle, remote, token)
    assert new < result.sent < 3_000_000
    assert result.folder
    assert (Path(result.folder) / "rootfs" / "opt" / "2").read_bytes() == files["opt/2"]


def test_without_a_push_nothing_stays(far: Path, tmp_path: Path, remote: Remote) -> None:
    ahead = Ahead(lambda: remote)
    packed(ahead, far, tmp_path / "b.tar", 1_400_000)
    ahead.stop()
    for _ in range(500):
        if not list((far / "deployer" / "incoming").iterdir()):
            return
        time.sleep(0.02)
    raise AssertionError(list((far / "deployer" / "incoming").iterdir()))


def test_if_nothing_can_be_sent_ahead_the_push_sends_all(
    far: Path, tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = Ahead(lambda: remote)
    monkeypatch.setattr(ahead, "_token", "no digest")
    bundle = packing.pack(contents(), [], tmp_path / "b.tar", follow=ahead.follow)
    assert ahead.finish() == ""
    assert pushed(bundle, remote, "").sent > bundle.size - 100_000


def test_if_the_bundle_cannot_be_read_ahead_the_push_sends_all(
    far: Path, tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[bytes]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    ahead = Ahead(lambda: remote)
    monkeypatch.setattr(ahead, "_pieces", broken)
    bundle = packing.pack(contents(), [], tmp_path / "b.tar", follow=ahead.follow)
    assert ahead.finish() == ""
    assert pushed(bundle, remote, "").sent > bundle.size - 100_000


def test_without_a_layer_nothing_is_begun(remote: Remote) -> None:
    ahead = Ahead(lambda: remote)
    assert ahead.finish() == ""
    ahead.stop()
