import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from deployer.connected.bundle.layer import codecs, layer
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle.manifest import FRAME, Segment
from deployer.site.install.unpack import unpack
from deployer.system import codec
from tests.tars import root_of


def tree(sizes: dict[str, int], seed: int = 1) -> FlattenedRootfs:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, size in sizes.items():
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(random.Random(f"{seed}{name}").randbytes(size)))
    return FlattenedRootfs(root_of(stream.getvalue()))


MIXED = {f"bin/f{i:04}": (i * 7919) % 90_000 for i in range(300)} | {
    "bin/large": 9_000_000,
    "bin/edge": layer.LARGE,
    "bin/edge1": layer.LARGE + 1,
    "bin/empty": 0,
    "bin/max": layer.GROUP_MAX,
}


@pytest.mark.thorough
def test_pieces_are_one_tar_and_unpack_to_the_same_files(tmp_path: Path) -> None:
    source = tree(MIXED)
    pieces = list(layer.pieces(source))
    contents = [piece.read() for piece in pieces]
    assert max(map(len, contents)) <= layer.LARGE + 1024
    assert all(abs(piece.weight - len(content)) <= 1024 for piece, content in zip(pieces, contents, strict=True))
    names = {m.name: m.size for m in tarfile.open(fileobj=io.BytesIO(b"".join(contents))) if m.isreg()}
    assert {name: size for name, size in names.items() if name.startswith("bin/")} == MIXED
    frames = [Segment(FRAME, 0, 1, "", len(data), piece.holds) for piece, data in zip(pieces, contents, strict=True)]
    unpack(frames, lambda number: contents[number], str(tmp_path), 2, lambda _: None, lambda *_: iter(()))
    for entry in source.entries():
        if entry.path.startswith(b"bin/"):
            written = (tmp_path / os.fsdecode(entry.path)).read_bytes()
            assert written == source.content(entry).read(0, entry.size)


@pytest.mark.thorough
def test_a_changed_file_changes_few_pieces() -> None:
    before = {piece.read() for piece in layer.pieces(tree(MIXED))}
    changed = MIXED | {"bin/f0150": 12_345, "bin/new": 500}
    after = {piece.read() for piece in layer.pieces(tree(changed))}
    assert len(before) > 20
    assert len(after - before) <= 4


@pytest.mark.parametrize("name", ["zstd", "gzip"])
def test_codecs_go_both_ways(name: str) -> None:
    chosen = codecs.codec(name)
    raw = b"some content " * 1000
    frame = chosen.compress(raw)
    assert codec.decompressor(name)(frame, len(raw)) == raw
    assert frame == codecs.codec(name).compress(raw)


def test_an_unknown_codec() -> None:
    with pytest.raises(UsageError, match="lz4"):
        codecs.codec("lz4")
