"""Layers that a hostile stager would seal with a right table: none leaves the root, none leaves anything behind."""

import os

import pytest

from deployer.contract.base.errors import IntegrityError
from deployer.contract.base.tarformat import FILE, FILES, FOLDER, FOLDERS, HARDLINK, LINKS, REST, SYMLINK, TarEntry
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from tests import bundles
from tests.wheels import file_name, wheel

FOLDER_A = (TarEntry(FOLDER, b"a", 0o755), b"")
FILE_A = (TarEntry(FILE, b"a/f", 0o644, 1), b"x")


def layer(*entries):
    return bundles.whole(entries)


def mixed(holds, *entries):
    return [(holds, bundles.stream(entries)), (LINKS, bundles.END)]


LINK_A = (TarEntry(SYMLINK, b"a/l", 0o777, 0, b"/tmp"), b"")
LARGE = bundles.stream([(TarEntry(FILE, b"a/big", 0o644, 1024), b"x" * 1024)])
HOSTILE = {
    "a path that climbs": layer((TarEntry(FILE, b"../out", 0o644, 1), b"x")),
    "an absolute path": layer((TarEntry(FILE, b"/out", 0o644, 1), b"x")),
    "a file below a link": layer(FOLDER_A, LINK_A, (TarEntry(FILE, b"a/l/out", 0o644, 1), b"x")),
    "a link before files": layer(FOLDER_A, LINK_A, FILE_A),
    "a link among files": [*layer(FOLDER_A)[:1], *mixed(FILES, LINK_A, FILE_A)],
    "a link among folders": mixed(FOLDERS, FOLDER_A, LINK_A),
    "a file among links": [*layer(FOLDER_A)[:1], (LINKS, bundles.stream([LINK_A, FILE_A]) + bundles.END)],
    "a file in place of a folder": layer(FOLDER_A, (TarEntry(FILE, b"a", 0o644, 1), b"x")),
    "a file twice": layer(FOLDER_A, FILE_A, FILE_A),
    "a link over a file": layer(FOLDER_A, FILE_A, (TarEntry(SYMLINK, b"a/f", 0o777, 0, b"/etc/passwd"), b"")),
    "a hard link out": layer(FOLDER_A, FILE_A, (TarEntry(HARDLINK, b"a/h", 0o777, 0, b"/etc/passwd"), b"")),
    "a hard link to a folder": layer(FOLDER_A, (TarEntry(HARDLINK, b"a/h", 0o777, 0, b"a"), b"")),
    "no folder": layer(FILE_A),
    "no end": layer(FOLDER_A)[:1],
    "two ends": [*layer(FOLDER_A), (LINKS, bundles.END)],
    "something after the end": [*layer(FOLDER_A), (LINKS, bundles.stream([LINK_A]))],
    "a file that is cut": [*layer(FOLDER_A)[:1], (FILES, LARGE[:-100]), (LINKS, bundles.END)],
    "a file that goes on in nothing": [*layer(FOLDER_A)[:1], (FILES, LARGE[:-512]), (FILES, LARGE[-512:])],
    "the rest of no file": [*layer(FOLDER_A)[:1], (REST, LARGE[-512:]), (LINKS, bundles.END)],
    "more than the rest of a file": [
        *layer(FOLDER_A)[:1],
        (FILES, LARGE[:-512]),
        (REST, LARGE[-512:] + bundles.stream([FILE_A])),
        (LINKS, bundles.END),
    ],
    "padding that is not empty": [
        *layer(FOLDER_A)[:1],
        (FILES, bundles.stream([FILE_A])[:-1] + b"x"),
        (LINKS, bundles.END),
    ],
}


@pytest.mark.parametrize("pieces", [pytest.param(HOSTILE[name], id=name) for name in sorted(HOSTILE)])
def test_a_hostile_layer_is_refused_and_leaves_nothing(tmp_path, pieces):
    path = bundles.write(tmp_path / "b.tar", pieces)
    with pytest.raises(IntegrityError):
        install(str(path), Store(str(tmp_path / "root")))
    assert os.listdir(str(tmp_path / "root" / "images")) == []
    assert sorted(os.listdir(str(tmp_path))) == ["b.tar", "root"]


@pytest.mark.parametrize("raw", [1, 10**9])
def test_a_frame_that_announces_another_size(tmp_path, raw):
    path = tmp_path / "b.tar"
    raws = [raw] + [len(piece) for _, piece in bundles.whole(bundles.ENTRIES)[1:]]
    path.write_bytes(bundles.build(raws=raws))
    with pytest.raises(IntegrityError):
        install(str(path), Store(str(tmp_path / "root")))


@pytest.mark.parametrize("path", [b"lib/out", b"start.py", b"bin"])
def test_an_overlay_has_no_links(tmp_path, monkeypatch, path):
    """Programs of the host write into overlays: bytecode, and udocker's start."""
    pieces, real = bundles.whole(bundles.ENTRIES), bundles.whole
    link = (TarEntry(SYMLINK, path, 0o777, 0, str(tmp_path).encode()), b"")
    monkeypatch.setattr(bundles, "whole", lambda entries: real([*entries, link]))
    data = bundles.build(pieces, extra=[("deployer/kit/" + file_name("udocker"), wheel({}, "udocker"))])
    (tmp_path / "b.tar").write_bytes(data)
    with pytest.raises(IntegrityError, match="the overlay engine has links"):
        install(str(tmp_path / "b.tar"), Store(str(tmp_path / "root")))
    assert sorted(os.listdir(str(tmp_path))) == ["b.tar"]
