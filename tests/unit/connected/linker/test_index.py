import os
import shutil
import sys
from pathlib import Path

import pytest

from deployer.connected.bundle import pack, sources
from deployer.connected.bundle.layer import codecs, layer
from deployer.connected.bundle.layer.compress import Press
from deployer.connected.ground.scratch import Scratch
from deployer.connected.linker import index as indexes
from deployer.connected.linker.code import instructions
from deployer.connected.linker.job_filesystem import FILE, FOLDER, JobFilesystem
from deployer.connected.linker.loader import Loader
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.system import files
from deployer.system.trust.verify import begin, opened
from tests import wheels
from tests.host_files import HostFiles


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root with this Python's program and all that it needs, at its own paths."""
    top = tmp_path_factory.mktemp("rootfs")
    loader = Loader(JobFilesystem(HostFiles()))
    program = os.path.realpath(sys.executable)
    assert loader.start(program)
    for each in loader.objects:
        target = top / each.path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(each.path, target)
        link = top / each.found[1:]
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(each.path)
    (top / "usr").mkdir(exist_ok=True)
    (top / "usr" / "broken.so").write_bytes((top / program[1:]).read_bytes()[:3000])
    os.link(top / program[1:], top / "usr" / "hard")
    largest = max((path for path in top.rglob("*") if not path.is_symlink()), key=os.path.getsize)
    os.link(largest, top / "usr" / "hard-large")
    package = top / "usr/lib/python3/dist-packages/pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import numpy\nfrom . import inner\n")
    (package / "run").write_text("#!/usr/bin/python3\n")
    return top


@pytest.fixture(scope="module")
def bundle(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack.pack(sources.from_folder(rootfs, "x", "1"), [], tmp_path_factory.mktemp("b") / "b.tar").path


def indexed(bundle: Path, cache: Path | None = None) -> indexes.Index:
    with opened(str(bundle)) as stream:
        return indexes.of_image(begin(stream, str(bundle)), cache)


@pytest.mark.thorough
def test_the_index_of_a_bundle_links_as_the_files_themselves(rootfs: Path, bundle: Path) -> None:
    program = os.path.realpath(sys.executable)
    found = []
    for source in (HostFiles(str(rootfs)), indexed(bundle)):
        loader = Loader(JobFilesystem(source))
        assert loader.start(program)
        found.append([(each.path, each.facts) for each in loader.objects])
    assert found[0] == found[1]
    assert len(found[0]) > 1


def test_large_files_are_read_where_their_headers_are(bundle: Path) -> None:
    sizes = {
        path: os.path.getsize(path) for path in indexed(bundle).entries if path.startswith("/") and os.path.isfile(path)
    }
    assert max(sizes.values(), default=0) > layer.GROUP_MAX


@pytest.mark.thorough
def test_a_layer_is_read_while_it_is_made_as_from_its_frames(
    rootfs: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = indexes.LayerFacts()
    root = FlattenedRootfs(sources.from_folder(rootfs, "x", "1").read(Scratch(rootfs)).root)
    holds = [frame.holds for frame in Press(codecs.codec("zstd")).frames(layer.pieces(root), seen.see)]
    with opened(str(bundle)) as stream:
        verified = begin(stream, str(bundle))
        alone = indexes.of_image(verified)
        read = []
        monkeypatch.setattr(verified, "read", lambda segment, of=verified.read: (read.append(segment), of(segment))[1])
        beside = indexes.of_image(verified, facts=seen)
        assert beside.record() == alone.record()
        assert list(beside.entries) == list(alone.entries)
        assert beside.facts("/usr/hard-large")
        assert beside.content("/usr/lib/python3/dist-packages/pkg/run") == b"#!/usr/bin/python3\n"
    assert 0 < len(set(read)) < len(holds) / 2  # only those with files that end in another frame


def test_links_and_broken_files(bundle: Path) -> None:
    found = indexed(bundle)
    assert found.entries["/usr/broken.so"].bad
    assert found.entries["/usr/hard"] == found.entries[os.path.realpath(sys.executable)]


@pytest.mark.thorough
def test_the_index_is_kept_and_a_damaged_one_made_anew(bundle: Path, tmp_path: Path) -> None:
    first = indexed(bundle, tmp_path)
    (kept,) = tmp_path.iterdir()
    text = kept.read_text()
    again = indexed(bundle, tmp_path)
    assert again.entries == first.entries
    for damaged in ("", "{}", text[:-100], text.replace('"version": 1', '"version": 0')):
        kept.write_text(damaged)
        assert indexed(bundle, tmp_path).entries == first.entries


@pytest.mark.thorough
def test_the_code_of_files_is_decoded_once(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(str(bundle)) as stream:
        found = indexes.of_image(begin(stream, str(bundle)), tmp_path)
        (libc,) = (path for path in found.entries if path.endswith("/libc.so.6") and found.entries[path].facts)
        code = found.code.of(libc)
        assert {"avx2", "avx512f"} <= set(code.used)  # the loader chooses among functions
        assert (list(code.whole), list(code.in_main), code.asks) == ([], [], True)
        assert found.code.of("/usr/hard") == found.code.of(os.path.realpath(sys.executable))
        assert not found.code.of("/usr/gone").used
        monkeypatch.setattr(instructions, "of_file", None)
        again = indexes.of_image(begin(stream, str(bundle)), tmp_path)
        assert list(again.code.of(libc).used) == list(code.used)


@pytest.mark.thorough
def test_a_wheel_is_indexed_as_it_will_be_unpacked(rootfs: Path, tmp_path: Path) -> None:
    libraries = [each for each in rootfs.rglob("*.so*") if not each.is_symlink() and each.stat().st_size > files.CHUNK]
    library = min(libraries, key=os.path.getsize)
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    contents = {
        "demo/native.so": library.read_bytes(),
        "demo/__init__.py": b"",
        "demo-1.0.data/scripts/run": b"#!python",
        "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n",
    }
    path.write_bytes(wheels.wheel(contents))
    member = f"deployer/wheels/{path.name}"
    (tmp_path / "root" / "usr").mkdir(parents=True)
    contents_of = sources.from_folder(tmp_path / "root", "x", "1")._replace(carried={member: path})
    packed = pack.pack(contents_of, [], tmp_path / "b.tar").path
    with opened(str(packed)) as stream:
        found = indexes.of_overlay(begin(stream, str(packed)), "deployer/overlays/wheels.tar")
        assert found.code
        data = library.read_bytes()
        assert found.code.of("/demo/native.so") == instructions.of_file(lambda start, size: data[start : start + size])
    assert found.facts("/demo/native.so") == HostFiles().facts(str(library))
    assert (found.kind("/demo"), found.kind("/demo/__init__.py"), found.kind("/run")) == (FOLDER, FILE, None)
    assert found.programs == {"run", "demo"}
