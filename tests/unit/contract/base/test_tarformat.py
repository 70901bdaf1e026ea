import io
import tarfile

import pytest

from deployer.contract.base import tarformat
from deployer.contract.base.errors import IntegrityError
from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, SYMLINK, TarEntry

ENTRIES = [
    TarEntry(FOLDER, b"usr", 0o755),
    TarEntry(FOLDER, b"x/" + b"y" * 98, 0o755),  # with its slash just over 100 bytes
    TarEntry(FILE, b"a" * 100, 0o644, 3),
    TarEntry(FILE, b"a" * 101, 0o755, 0),
    TarEntry(FILE, b"new\nline\xff", 0o600, 511),
    TarEntry(FILE, b"big", 0o644, 9 << 30),
    TarEntry(SYMLINK, b"l", 0o777, 0, b"t" * 300),
    TarEntry(HARDLINK, b"h" * 250, 0o777, 0, b"a" * 250),
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_written_is_read(entry):
    header = tarformat.encode(entry)
    assert len(header) % 512 == 0
    assert tarformat.decode(b"x" * 7 + header, 7) == (entry, 7 + len(header))


def test_python_reads_the_same():
    # Another reader agrees on every field: the dialect is GNU tar's, not ours.
    expected = [entry for entry in ENTRIES if entry.size < 1000]
    data = b"".join(tarformat.encode(e) + b"\0" * (e.size + tarformat.padding(e.size)) for e in expected)
    members = tarfile.open(
        fileobj=io.BytesIO(data + b"\0" * 1024), encoding="utf-8", errors="surrogateescape"
    ).getmembers()
    assert [m.name.encode("utf-8", "surrogateescape").rstrip(b"/") for m in members] == [e.path for e in expected]
    assert [m.linkname.encode() for m in members] == [e.target for e in expected]
    assert [m.mode for m in members] == [e.mode for e in expected]
    assert {m.mtime for m in members} == {tarformat.MTIME}
    assert {(m.uid, m.gid, m.uname) for m in members} == {(0, 0, "")}


@pytest.mark.parametrize("path", [b"/etc/x", b"../x", b"a/../b", b"a//b", b"./a", b"", b"a/.", b"a\0b"])
def test_a_path_that_could_leave_is_refused(path):
    with pytest.raises(IntegrityError):
        tarformat.decode(tarformat.encode(TarEntry(FILE, path, 0o644, 0)), 0)


@pytest.mark.parametrize("path", [b"n" * 256, b"/".join([b"n"] * 257), b"/".join([b"n" * 250] * 13)])
def test_a_path_that_no_site_can_hold_is_refused(path):
    with pytest.raises(IntegrityError, match="at most"):
        tarformat.decode(tarformat.encode(TarEntry(FILE, path, 0o644, 0)), 0)
    shorter = path[: 255 if b"/" not in path else 3000 if len(path) > 600 else 511]
    assert tarformat.decode(tarformat.encode(TarEntry(FILE, shorter, 0o644, 0)), 0)[0].path == shorter


def test_the_checksum_is_right_for_the_largest_bytes():
    header = tarformat.encode(TarEntry(SYMLINK, b"\xff" * 100, 0o777, 0, b"\xff" * 100))
    assert int(header[148:154], 8) == sum(header[:148]) + 8 * 0x20 + sum(header[156:])
    assert tarformat.decode(header, 0)[1] == len(header)


def test_each_byte_of_a_header_counts():
    header = tarformat.encode(TarEntry(FILE, b"name", 0o644, 5))
    for position in range(512):
        broken = bytearray(header)
        broken[position] ^= 1
        try:
            entry, _ = tarformat.decode(bytes(broken), 0)
        except IntegrityError:
            continue
        pytest.fail("a change at byte %d was read as %r" % (position, entry))


@pytest.mark.parametrize("kind", [b"3", b"4", b"6", b"7", b"g", b"x", b"S", b"\0"])
def test_other_kinds_are_refused(kind):
    info = tarfile.TarInfo("name")
    info.type = kind
    with pytest.raises(IntegrityError):
        tarformat.decode(info.tobuf(tarfile.GNU_FORMAT), 0)


@pytest.mark.parametrize("data", [b"", b"\0" * 100, tarformat.encode(TarEntry(FILE, b"a" * 101, 0o644))[:700]])
def test_a_header_that_is_cut_off_is_refused(data):
    with pytest.raises(IntegrityError):
        tarformat.decode(data, 0)
