import gzip
import io
import marshal
import struct
import zipfile

import pytest

from deployer.connected.bundle.about.reasons import UNKNOWN, reason


def pyc(mtime: int, code: bytes) -> bytes:
    return struct.pack("<HHIII", 3495, 0x0A0D, 0, mtime, 7) + marshal.dumps(code)


def zipped(second: int, *names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, second)), name)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("path", "old", "new", "why"),
    [
        ("/etc/a", b"same", b"same", "permissions"),
        ("/a/__pycache__/b.cpython-311.pyc", pyc(1, b"x"), pyc(2, b"x"), "header of compiled Python"),
        ("/a/__pycache__/b.cpython-311.pyc", pyc(1, b"x"), pyc(1, b"y"), UNKNOWN),
        ("/a.gz", gzip.compress(b"text", mtime=1), gzip.compress(b"text", mtime=2), "compressed archive"),
        ("/a.gz", gzip.compress(b"text", mtime=1), gzip.compress(b"other", mtime=1), UNKNOWN),
        ("/a.gz", b"\x1f\x8bdamaged", gzip.compress(b"other", mtime=1), UNKNOWN),
        ("/a.npz", zipped(0, "a", "b"), zipped(2, "b", "a"), "compressed archive"),
        ("/a.npz", zipped(0, "a"), zipped(0, "b"), UNKNOWN),
        ("/a.jar", b"PK damaged", zipped(0, "b"), UNKNOWN),
        ("/etc/shadow", b"root:*:20420:0:99999:7:::\n", b"root:*:20421:0:99999:7:::\n", "times"),
        ("/a", b"built 2026-11-29 10:11:12\n", b"built 2026-11-30 09:00:01\n", "times"),
        ("/a", b"built on Sun Nov 29 10:11:12 UTC 2026", b"built on Mon Nov 30 09:00:01 UTC 2026", "times"),
        ("/a.ini", b"root=/tmp/pip-x/build\n", b"root=/tmp/pip-yy/build\n", "folders of the build"),
        ("/a", b"b\na\n", b"a\nb\n", "order of its lines"),
        ("/a", b"version 2\n", b"version 3\n", UNKNOWN),
        ("/a", b"", b"x", UNKNOWN),
    ],
)
def test_a_reason_is_only_what_was_compared(path: str, old: bytes, new: bytes, why: str) -> None:
    assert why in reason(path, old, new)
    assert reason(path, new, old) == reason(path, old, new)
