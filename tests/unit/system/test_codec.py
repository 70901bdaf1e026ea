import zlib

import pytest

from deployer.contract.base.errors import IntegrityError, MissingTool
from deployer.system import codec
from tests.bundles import compress

#: b"hello " * 100, compressed by libzstd 1.5.7 at level 3.
ZSTD = bytes.fromhex("28b52ffd6058016d00003068656c6c6f2001004f529522")


def test_gzip():
    assert codec.decompressor("gzip")(compress(b"hello"), 5) == b"hello"


def test_zstd_by_ctypes():
    assert codec.decompressor("zstd")(ZSTD, 600) == b"hello " * 100


@pytest.mark.parametrize(("name", "frame"), [("gzip", compress(b"hello" * 120)), ("zstd", ZSTD)])
def test_a_frame_of_another_size_or_broken(name, frame):
    decompress = codec.decompressor(name)
    for size in (0, 599, 601, codec.MAX_RAW + 1):
        with pytest.raises(IntegrityError):
            decompress(frame, size)
    for broken in (frame[:-1], frame + b"x", b"", b"x" * 20):
        with pytest.raises(IntegrityError):
            decompress(broken, 600)


def test_no_libzstd(monkeypatch):
    monkeypatch.setattr(codec, "_load_libzstd", lambda: None)
    monkeypatch.setattr(codec, "_load_zstd_module", lambda: None)
    with pytest.raises(MissingTool, match="libzstd") as caught:
        codec.decompressor("zstd")
    assert "--codec gzip" in caught.value.hint


class StandIn:
    """What of Python 3.14's compression.zstd is used, with zlib's format in place of zstd's."""

    ZstdError = zlib.error
    ZstdDecompressor = staticmethod(zlib.decompressobj)


def test_pythons_own_zstd_where_there_is_no_libzstd(monkeypatch):
    monkeypatch.setattr(codec, "_load_libzstd", lambda: None)
    monkeypatch.setattr(codec, "_load_zstd_module", lambda: StandIn)
    decompress = codec.decompressor("zstd")
    frame = zlib.compress(b"hello" * 120)
    assert decompress(frame, 600) == b"hello" * 120
    for size in (0, 599, 601):
        with pytest.raises(IntegrityError):
            decompress(frame, size)
    for broken in (frame[:-1], frame + b"x", b"", b"x" * 20):
        with pytest.raises(IntegrityError):
            decompress(broken, 600)


def test_libzstd_is_not_searched_for_where_the_loader_knows_it(monkeypatch):
    monkeypatch.setattr(codec.ctypes.util, "find_library", lambda name: pytest.fail("it runs other programs"))
    assert codec.decompressor("zstd")(ZSTD, 600) == b"hello " * 100


def test_the_bytes_hold_until_the_next_call():
    decompress = codec.decompressor("zstd")
    first = decompress(ZSTD, 600)
    assert bytes(first) == b"hello " * 100
    with pytest.raises(IntegrityError):
        decompress(ZSTD[:-1], 600)
    assert decompress(ZSTD, 600) == b"hello " * 100
