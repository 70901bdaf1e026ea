import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.connected.rootfs import tarreader
from deployer.connected.rootfs.entries import DEVICE
from deployer.connected.rootfs.tarreader import Slice
from deployer.contract.base.errors import UsageError
from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, SYMLINK
from tests.tars import layer, members

KINDS = {
    tarfile.REGTYPE: FILE, tarfile.DIRTYPE: FOLDER, tarfile.SYMTYPE: SYMLINK, tarfile.LNKTYPE: HARDLINK,
    tarfile.CHRTYPE: DEVICE, tarfile.FIFOTYPE: DEVICE,
}  # fmt: skip

names = st.binary(min_size=1, max_size=300).map(lambda name: name.replace(b"\0", b"").strip(b"/") or b"x")


@st.composite
def tar_infos(draw: st.DrawFn) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(os.fsdecode(draw(names)))
    info.type = draw(st.sampled_from(list(KINDS)))
    content = draw(st.binary(max_size=1500)) if info.type == tarfile.REGTYPE else b""
    info.size = len(content)
    info.mode = draw(st.integers(0, 0o7777))
    info.uid = draw(st.sampled_from([0, 1000, 2**21 - 1, 2**31]))
    info.mtime = draw(st.one_of(st.integers(0, 2**33 - 1), st.sampled_from([0.5, 1.75])))
    if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        info.linkname = os.fsdecode(draw(names))
    return info, content


@pytest.mark.thorough
@given(st.lists(tar_infos(), max_size=6), st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
@settings(max_examples=150, deadline=None)
def test_what_tarfile_writes_is_read_as_tarfile_reads_it(infos: list[tuple[tarfile.TarInfo, bytes]], kind: int) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=kind) as tar:
        for info, content in infos:
            tar.addfile(info, io.BytesIO(content))
    found = members(stream.getvalue())
    stream.seek(0)
    with tarfile.open(fileobj=stream, encoding="utf-8", errors="surrogateescape") as tar:
        expected = tar.getmembers()
    assert len(found) == len(expected) == len(infos)
    for member, info, (_, content) in zip(found, expected, infos, strict=True):
        assert member.kind == KINDS[info.type]
        assert os.fsdecode(member.path).rstrip("/") == info.name.rstrip("/")
        assert (member.mode, member.mtime, member.owned) == (info.mode, int(info.mtime), info.uid != 0)
        if info.linkname:
            assert os.fsdecode(member.target) == info.linkname
        if member.kind == FILE:
            assert member.data.read(0, 10**6) == content


@pytest.mark.parametrize(
    "options",
    [["--format=gnu"], *(["--format=posix", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0"))],
)
@pytest.mark.parametrize("holes", [0, 1, 3, 60])
def test_sparse_files(tmp_path: Path, options: list[str], holes: int) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as stream:
        for number in range(holes):
            stream.seek(number * 3 * 65536)
            stream.write(bytes([number + 1]) * 5000)
        stream.truncate(holes * 3 * 65536 + 100_000)
    tar = tmp_path / "t.tar"
    argv = ["tar", "--sparse", *options, "-C", tmp_path, "-cf", tar, "sparse"]
    subprocess.run(argv, check=True, timeout=30)
    assert tar.stat().st_size < path.stat().st_size
    whole = path.read_bytes()
    with open(tar, "rb") as stream:
        for found in (members(tar.read_bytes()), list(tarreader.entries_of(Slice(stream)))):
            assert [member.path for member in found] == [b"sparse"]
            data = found[0].data
            assert data.size == len(whole)
            assert data.read(0, len(whole)) == whole
            for start in range(0, len(whole), 49_999):
                assert data.read(start, 7000) == whole[start : start + 7000]


TAR = layer([("usr", None), ("usr/" + "long" * 60, b"x" * 700), ("usr/l", "-> x")])


def test_a_tar_that_is_cut_anywhere_is_refused() -> None:
    end = len(TAR.rstrip(b"\0")) // 512 * 512 + 512  # of the last header
    for length in (*range(0, end, 37), end):
        with pytest.raises(UsageError, match="cut off" if length >= 512 else "not a tar"):
            members(TAR[:length])


def test_a_changed_header_is_refused() -> None:
    for position in (0, 105, 156, 300):
        changed = bytearray(TAR)
        changed[position] ^= 1
        with pytest.raises(UsageError, match="not a tar"):
            members(bytes(changed))


@pytest.mark.parametrize("data", [b"", b"no tar" * 1000, bytes(range(256)) * 16])
def test_what_is_no_tar(data: bytes) -> None:
    with pytest.raises(UsageError, match="not a tar"):
        members(data)


def test_other_kinds_of_members() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "git"}) as tar:
        info = tarfile.TarInfo("x")
        info.pax_headers = {"SCHILY.xattr.security.capability": "c", "mtime": "-1.5"}
        tar.addfile(info)
    (member,) = members(stream.getvalue())
    assert (member.attributes, member.mtime) == (True, -2)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        info = tarfile.TarInfo("x")
        info.type = b"M"  # the rest of a file of another volume
        tar.addfile(info)
    with pytest.raises(UsageError, match="unknown kind"):
        members(stream.getvalue())
