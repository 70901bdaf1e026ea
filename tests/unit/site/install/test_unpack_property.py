"""Any tree comes back as it was, however its layer is cut into frames."""

import os
import random
import shutil
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, SYMLINK, TarEntry
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from tests import bundles
from tests.trees import cut, described, expected

pytestmark = pytest.mark.thorough

CUT = 4096
NAMES = st.one_of(
    st.sampled_from(
        [b"a", b"new\nline", b"\xff\xfe not UTF-8", b" ", b"-rf", b"n" * 255, b"\xc3\xa4" * 127, b"...", b"\\"]
    ),
    st.binary(min_size=1, max_size=255).map(lambda name: name.replace(b"\0", b"0").replace(b"/", b"_")),
).filter(lambda name: name not in (b".", b".."))
#: Sizes around each boundary: of a block, of where a file is cut in several frames, and of a page.
SIZES = st.one_of(
    st.sampled_from(
        [n for edge in (0, 512, 1024, CUT, 2 * CUT, 3 * CUT) for n in (edge - 1, edge, edge + 1) if n >= 0]
    ),
    st.integers(0, 5 * CUT),
)
TARGETS = st.one_of(
    st.sampled_from([b"/", b"..", b"../../../../etc/passwd", b"a", b"t" * 101, b"\n"]),
    st.binary(min_size=1, max_size=300).map(lambda target: target.replace(b"\0", b"0")),
)


@st.composite
def trees(draw):
    """Return (entry, content) pairs in the order of a layer."""
    folders = [b""]
    for name in draw(st.lists(NAMES, max_size=12)):
        parent = draw(st.sampled_from(folders))
        path = parent + b"/" + name if parent else name
        if len(path) < 3000 and path not in folders:
            folders.append(path)
    taken = set(folders)

    def paths(count):
        for name in draw(st.lists(NAMES, max_size=count)):
            parent = draw(st.sampled_from(folders))
            path = parent + b"/" + name if parent else name
            if path not in taken:
                taken.add(path)
                yield path

    made = [(TarEntry(FOLDER, path, draw(st.integers(0, 0o777)) & 0o755), b"") for path in folders[1:]]
    chance = random.Random(draw(st.integers(0, 2**32)))
    files = []
    for path in paths(12):
        content = bytes(bytearray(chance.getrandbits(8) for _ in range(draw(SIZES))))
        files.append((TarEntry(FILE, path, draw(st.sampled_from([0o644, 0o755, 0o600, 0o444])), len(content)), content))
    links = [(TarEntry(SYMLINK, path, 0o777, 0, draw(TARGETS)), b"") for path in paths(5)]
    if files:
        originals = st.sampled_from([entry.path for entry, _ in files])
        links += [(TarEntry(HARDLINK, path, 0o777, 0, draw(originals)), b"") for path in paths(5)]
    return made + files + links, chance


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(trees(), st.integers(1, 3))
def test_a_torture_tree_comes_back(drawn, jobs):
    entries, chance = drawn
    folder = tempfile.mkdtemp()
    try:
        path = os.path.join(folder, "b.tar")
        with open(path, "wb") as stream:
            stream.write(bundles.build(cut(entries, chance, CUT)))
        image = install(path, Store(os.path.join(folder, "root")), jobs=jobs).image
        assert described(image.rootfs) == expected(entries)
        assert image.receipt.files == len(entries)
        assert image.receipt.bytes == sum(entry.size for entry, _ in entries)
        for entry, _ in entries:
            if entry.kind == HARDLINK:
                root = os.fsencode(image.rootfs)
                assert os.path.samefile(os.path.join(root, entry.path), os.path.join(root, entry.target))
    finally:
        shutil.rmtree(folder)
