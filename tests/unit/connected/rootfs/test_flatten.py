import io
import os
import re
import struct
import tarfile
from pathlib import Path

import pytest

from deployer.connected.bundle.layer import layer
from deployer.connected.rootfs import flatten, unused
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.contract.base import tarformat
from deployer.contract.base.errors import UsageError
from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, MTIME, SYMLINK
from deployer.contract.site import plan
from tests.tars import layer as layer_of
from tests.tars import root_of

SOURCE_TIME = 1700000000


class Tar:
    """A tar in memory, written a member at a time."""

    def __init__(self) -> None:
        self.stream = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.stream, mode="w", format=tarfile.PAX_FORMAT)
        self.folder("bin")

    def add(self, name: str, content: bytes = b"", **fields: object) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        info.mtime = SOURCE_TIME
        for field, value in fields.items():
            setattr(info, field, value)
        self.tar.addfile(info, io.BytesIO(content))

    def folder(self, name: str, mode: int = 0o755) -> None:
        self.add(name, type=tarfile.DIRTYPE, mode=mode)

    def tree(self, lean: bool = False) -> FlattenedRootfs:
        self.tar.close()
        return tree_of(self.stream.getvalue(), lean)


def tree_of(tar: bytes, lean: bool = False) -> FlattenedRootfs:
    return FlattenedRootfs(root_of(tar), lean)


def by_path(tree: FlattenedRootfs) -> dict[bytes, tarformat.TarEntry]:
    return {entry.path: entry for entry in tree.entries()}


def content(tree: FlattenedRootfs, path: bytes) -> bytes:
    entry = by_path(tree)[path]
    return tree.content(entry).read(0, entry.size)


def test_normal_form() -> None:
    tar = Tar()
    tar.folder("secret", 0o000)
    tar.add("secret/none", b"x", mode=0o000, uid=5)
    tar.add("bin/su", b"x", mode=0o4711)
    tar.add("bin/caps", b"x", mode=0o755, pax_headers={"SCHILY.xattr.security.capability": "x"})
    tar.add("bin/null", type=tarfile.CHRTYPE)
    tar.add(".dockerenv")
    tar.add("dev/console")
    tree = tar.tree()
    entries = by_path(tree)
    assert entries[b"secret"].mode == 0o700
    assert entries[b"secret/none"].mode == 0o600
    assert entries[b"bin/su"].mode == 0o711
    assert not {b".dockerenv", b"dev/console", b"bin/null"} & set(entries)
    assert {b"deployer/app", b"deployer/job", b"proc", b"etc/passwd"} <= set(entries)
    assert entries[b"deployer/deployer.pyz"].kind == FILE
    changes = {
        name: tree.changes.get(name) for name in ("setuid", "capabilities", "devices_dropped", "owners", "modes")
    }
    assert changes == {"setuid": 1, "capabilities": 1, "devices_dropped": 1, "owners": 1, "modes": 2}
    assert tree.changes["engine_files_dropped"] == 2


def test_sections_and_order() -> None:
    tar = Tar()
    tar.add("bin/link", type=tarfile.SYMTYPE, linkname="a")
    tar.add("bin/b", b"b")
    tar.folder("usr")
    tar.add("bin/a", b"a")
    kinds = [(entry.kind, entry.path) for entry in tar.tree().entries()]
    sections = [tarformat.SECTIONS[kind] for kind, _ in kinds]
    assert sections == sorted(sections, key=tarformat.HOLDINGS.index)
    assert [path for kind, path in kinds if kind == FILE and path.startswith(b"bin/")] == [b"bin/a", b"bin/b"]


def test_a_hard_links_file_does_not_depend_on_the_tars_order() -> None:
    layers = []
    for first, second in (("bin/a", "bin/z"), ("bin/z", "bin/a")):
        tar = Tar()
        tar.add(first, b"same", mode=0o755)
        tar.add(second, type=tarfile.LNKTYPE, linkname=first)
        tree = tar.tree()
        assert by_path(tree)[b"bin/z"] == tarformat.TarEntry(HARDLINK, b"bin/z", 0o777, 0, b"bin/a")
        assert content(tree, b"bin/a") == b"same"
        layers.append(b"".join(piece.read() for piece in layer.pieces(tree)))
    assert layers[0] == layers[1]


def pyc(mtime: int, size: int, flags: int = 0, magic: int = 3495) -> bytes:
    return struct.pack("<HHIII", magic, 0x0A0D, flags, mtime, size) + b"code"


@pytest.mark.parametrize(
    ("header", "expected", "counted"),
    [
        (pyc(SOURCE_TIME, 4), pyc(MTIME, 4), "pyc_repaired"),
        (pyc(SOURCE_TIME - 1, 4), pyc(SOURCE_TIME - 1, 4), "pyc_stale"),  # made valid, it would hide a change
        (pyc(SOURCE_TIME, 5), pyc(SOURCE_TIME, 5), "pyc_stale"),
        (pyc(SOURCE_TIME, 4, flags=1), pyc(SOURCE_TIME, 4, flags=1), None),  # checked by hash
        (pyc(SOURCE_TIME, 4, magic=3379), pyc(SOURCE_TIME, 4, magic=3379), None),  # Python 3.6: another header
        (b"short", b"short", None),
    ],
)
def test_pyc_headers(header: bytes, expected: bytes, counted: str | None) -> None:
    tar = Tar()
    tar.folder("lib")
    tar.folder("lib/__pycache__")
    tar.add("lib/m.py", b"code")
    tar.add("lib/__pycache__/m.cpython-311.opt-1.pyc", header)
    tree = tar.tree()
    assert content(tree, b"lib/__pycache__/m.cpython-311.opt-1.pyc") == expected
    assert {name for name in tree.changes if name.startswith("pyc")} == ({counted} if counted else set())


def test_find_program_follows_links() -> None:
    tar = Tar()
    tar.folder("usr")
    tar.folder("usr/bin")
    tar.folder("opt")
    tar.add("opt/python3.11", b"x", mode=0o755)
    tar.add("usr/bin/python3", type=tarfile.SYMTYPE, linkname="../../opt/python3.11")
    tar.add("usr/bin/loop", type=tarfile.SYMTYPE, linkname="loop")
    tar.add("sbin", type=tarfile.SYMTYPE, linkname="usr/bin")
    tree = tar.tree()
    assert tree.find_program("python3", ["/nowhere", "/sbin"]) == "/sbin/python3"
    assert tree.find_program("perl", ["/sbin"]) is None


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("../x", {}, "unsafe path"),
        ("bin/l", {"type": tarfile.LNKTYPE, "linkname": "gone"}, "hard link"),
        ("deployer", {}, "mount point"),
        ("bin/x/y", {}, "below a path that is not a folder"),
    ],
)
def test_what_cannot_be_flattened(name: str, fields: dict[str, object], reason: str) -> None:
    tar = Tar()
    tar.add("bin/x", b"x")
    tar.add(name, **fields)
    with pytest.raises(UsageError, match=reason):
        tar.tree()


def test_layers_are_no_root_filesystem_but_one_may_have_such_a_file() -> None:
    with pytest.raises(UsageError, match="layers"):
        tree_of(layer_of([("manifest.json", b"[]")]))
    assert b"manifest.json" in by_path(tree_of(layer_of([("manifest.json", b"[]"), ("usr", None)])))


def test_no_root_filesystem() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("notes.txt"))
    with pytest.raises(UsageError, match=r"not a root filesystem: it has none of .*, but notes\.txt"):
        tree_of(stream.getvalue())


def test_names_are_bytes() -> None:
    tar = Tar()
    tar.add(os.fsdecode(b"bin/odd\xff\nname"), b"x")
    tar.add("bin/long" + "g" * 200, b"y")
    entries = by_path(tar.tree())
    assert b"bin/odd\xff\nname" in entries
    assert b"bin/long" + b"g" * 200 in entries


def test_parents_are_made() -> None:
    tar = Tar()
    tar.add("usr/share/x", b"x")
    assert by_path(tar.tree())[b"usr/share"].kind == FOLDER


def test_symlink_targets_are_kept() -> None:
    tar = Tar()
    tar.add("bin/sh", type=tarfile.SYMTYPE, linkname="/usr/bin/dash")
    assert by_path(tar.tree())[b"bin/sh"] == tarformat.TarEntry(SYMLINK, b"bin/sh", 0o777, 0, b"/usr/bin/dash")


def test_every_image_has_the_canary_and_no_other() -> None:
    tar = Tar()
    tar.folder("bin")
    tar.add("deployer/canary", b"of another image", mode=0o600)
    tree = tar.tree()
    assert content(tree, b"deployer/canary") == plan.CANARY_TEXT.encode()
    assert by_path(tree)[b"deployer/canary"].mode == 0o644


def test_each_kind_of_change_has_its_meaning() -> None:
    source = Path(flatten.__file__).read_text()
    kinds = re.findall(r'changed\["(\w+)"\]|^            \("(\w+)", |(?:DEVICE|SOCKET): "(\w+)"', source, re.MULTILINE)
    named = re.findall(r"\?P<(\w+)>", Path(unused.__file__).read_text())
    assert sorted({name for found in kinds for name in found if name} | {*named}) == sorted(flatten.CHANGES)


def test_days_of_passwords_are_constant() -> None:
    layers = []
    for day in (20420, 20421):
        tar = Tar()
        tar.add("etc/shadow", b"root:*:%d:0:99999:7:::\nsync:!!:%d:::::1:\nodd\n:x:1:\n" % (day, day))
        tree = tar.tree()
        layers.append(content(tree, b"etc/shadow"))
        assert tree.changes["password_days"] == 1
    assert layers[0] == layers[1] == b"root:*:10000:0:99999:7:::\nsync:!!:10000:::::1:\nodd\n:x:1:\n"


PACKAGES = "usr/lib/python3/dist-packages"
CACHES = [
    "var/cache/apt/pkgcache.bin",
    "var/cache/apt/archives/gcc_12_amd64.deb",
    "var/lib/apt/lists/mirror_InRelease",
    "var/cache/dnf/x/packages/gcc.rpm",
    "root/.cache/pip/http-v2/1/2/x.body",
    "home/me/.cache/pip/wheels/x.whl",
    "opt/conda/pkgs/numpy-2.0.conda",
    "root/miniconda3/pkgs/numpy-1.0.tar.bz2",
]
TESTS = [
    f"{PACKAGES}/pandas/tests/__init__.py",
    "opt/v/lib/python3.12/site-packages/a/b/tests/x.so",
    "usr/lib/python3.11/test/a.py",
]
MANUALS = ["usr/share/doc/gcc/README", "usr/share/man/man1/ls.1.gz", "usr/share/locale/de/LC_MESSAGES/ls.mo"]
FOR_COMPILERS = [
    "usr/include/stdio.h",
    "usr/lib/libx.a",
    f"{PACKAGES}/torch/include/c10/x",
    f"{PACKAGES}/numpy/core/x.h",
]
KEPT = [
    "var/cache/fontconfig/x",
    "var/lib/apt/extended_states",
    "root/.cache/huggingface/hub/x",
    "root/.cache/uv/x",
    "data/pkgs/x.tar.bz2",
    f"{PACKAGES}/astropy/tests/runner.py",
    f"{PACKAGES}/tensorflow/_api/v2/test/__init__.py",
    f"{PACKAGES}/numpy/testing/__init__.py",
    f"{PACKAGES}/tests.py",
    f"{PACKAGES}/docs/include/__init__.py",
    "srv/tests/data",
    "usr/share/doc/gcc/copyright",
    "usr/include/python3.11/pyconfig.h",
    "usr/lib/libx.so",
]


@pytest.mark.parametrize(
    ("lean", "compiler", "dropped"),
    [
        (False, "bin/ls", CACHES),
        (True, "bin/ls", CACHES + TESTS + MANUALS + FOR_COMPILERS),
        (True, "usr/bin/gcc", CACHES + TESTS + MANUALS),
        (True, "opt/conda/bin/x86_64-conda-linux-gnu-c++", CACHES + TESTS + MANUALS),
        (True, "usr/bin/clang-14", CACHES + TESTS + MANUALS),
        (True, f"{PACKAGES}/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", CACHES + TESTS + MANUALS),
    ],
)
def test_what_no_job_reads_is_left_out(lean: bool, compiler: str, dropped: list[str]) -> None:
    tar = Tar()
    given = [*CACHES, *TESTS, *MANUALS, *FOR_COMPILERS, *KEPT, compiler]
    for path in given:
        tar.add(path, b"x")
    tree = tar.tree(lean)
    there = {entry.path.decode() for entry in tree.entries() if entry.kind == FILE}
    assert {path for path in given if path not in there} == set(dropped)
    assert tree.changes["caches_dropped"] == len(CACHES)
    assert {b"var/cache/apt", b"var/lib/apt/lists"} <= set(by_path(tree)), "the folders stay"


def test_another_name_of_a_cached_file_keeps_its_content() -> None:
    tar = Tar()
    tar.add(CACHES[-2], b"x")
    tar.add("usr/lib/x", type=tarfile.LNKTYPE, linkname=CACHES[-2])
    assert content(tar.tree(), b"usr/lib/x") == b"x"


def test_large_copies_are_links_in_a_lean_layer() -> None:
    large, other = b"x" * 70_000, b"y" * 70_000
    tar = Tar()
    for path in ("lib/a.so.1", "lib/b.so", "lib/c.so"):
        tar.add(path, large, mode=0o644)
    tar.add("lib/a.so", type=tarfile.LNKTYPE, linkname="lib/b.so")
    tar.add("lib/program", large, mode=0o755)
    tar.add("lib/other", other, mode=0o644)
    tar.add("lib/small", b"x", mode=0o644)
    tar.add("lib/small2", b"x", mode=0o644)
    tar.add("lib/a.pyc", large, mode=0o644)
    tree = tar.tree(lean=True)
    links = {entry.path: entry.target for entry in tree.entries() if entry.kind == HARDLINK}
    assert links == dict.fromkeys([b"lib/a.so.1", b"lib/b.so", b"lib/c.so"], b"lib/a.so")
    assert content(tree, b"lib/a.so") == large
    assert content(tree, b"lib/other") == other
    assert tree.changed["copies_linked"] == [b"lib/a.so.1", b"lib/c.so"]
