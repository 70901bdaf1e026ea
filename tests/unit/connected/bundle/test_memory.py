"""Images, archives and profiles from outside never take more than 512 MiB of memory."""

import io
import re
import struct
from pathlib import Path

import pytest

import deployer
from deployer.connected.ground.yaml_model import Document
from deployer.connected.rootfs import merge, tarreader
from deployer.connected.rootfs.entries import FileEntry
from deployer.connected.rootfs.merge import Rootfs
from deployer.contract.base.errors import UsageError
from deployer.contract.base.tarformat import FILE, SYMLINK
from deployer.contract.elf import dynamic
from tests.attack.test_memory import LIMIT, peak

_TREE = """
from deployer.connected.rootfs.entries import FileEntry
from deployer.connected.rootfs.merge import Rootfs
from deployer.contract.base.tarformat import FILE
root = Rootfs()
before = peak()
paths = (b"usr/lib/python3/dist-packages/%d/some_module_%d.py" % (n // 30, n) for n in range(40000))
root.apply(FileEntry(FILE, path, 0o644) for path in paths)
print(peak() - before, root._size)
"""


@pytest.mark.thorough
def test_a_tree_takes_the_memory_that_it_counts() -> None:
    _, text = peak(_TREE)
    used, counted = map(int, text.split())
    assert counted / 3 < used < counted


def test_a_tree_of_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_MAX_TREE", 50_000)
    root = Rootfs()
    with pytest.raises(UsageError, match="the image has too many files") as caught:
        root.apply([FileEntry(FILE, b"a/b/c/d/e/f/g/h/%d" % n, 0o644) for n in range(100)])
    assert "data folders" in caught.value.hint


def test_a_link_to_a_path_that_no_kernel_takes() -> None:
    with pytest.raises(UsageError, match="a link to a path of 5000 bytes: /a"):
        Rootfs().apply([FileEntry(SYMLINK, b"a", 0o777, 0, b"x" * 5000)])


def _read(data: bytes) -> None:
    for _ in tarreader.entries_of(tarreader.Spooled(io.BytesIO(data).read, io.BytesIO())):
        pass


def _header(name: bytes, kind: bytes, size: int) -> bytes:
    block = bytearray(512)
    block[: len(name)] = name
    block[100:156] = b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size + b"00000000000\0" + b" " * 8
    block[156:157] = kind
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("kind", [b"x", b"g"])
def test_many_headers_before_one_member(kind: bytes) -> None:
    # Each is small enough; together they are 4 GB of keys and values.
    value = b"x" * 299_000
    pieces = []
    for number in range(5):
        record = b"300000 k%05d=" % number
        text = record + value + b"y" * (300_000 - len(record) - len(value) - 1) + b"\n"
        pieces.append(_header(b"pax", kind, len(text)) + text + bytes(-len(text) % 512))
    with pytest.raises(UsageError, match="the tar has headers of 1200000 bytes for one member; 1048576 are allowed"):
        _read(b"".join(pieces) + _header(b"a", b"0", 0) + bytes(1024))


def test_headers_are_counted_for_each_member_anew() -> None:
    text = b"300000 k=" + b"x" * (300_000 - 10) + b"\n"
    one = _header(b"pax", b"x", len(text)) + text + bytes(-len(text) % 512) + _header(b"a", b"0", 0)
    _read(one * 6 + bytes(1024))


def test_a_sparse_file_of_too_many_pieces() -> None:
    number = b"%011o\0" % 0
    first = bytearray(_header(b"a", b"S", 0))
    first[386:482] = number * 8
    first[482] = 1
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    more = number * 42 + b"\1" + bytes(7)
    with pytest.raises(UsageError, match="sparse file of 65545 pieces; 65536 are allowed"):
        _read(bytes(first) + more * 4000)


def test_yaml_of_too_many_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("[" + "[]," * 300_000 + "]")
    with pytest.raises(UsageError, match="has too many values; at most 20000 are allowed"):
        Document(path, "a site profile")
    path.write_text("- a\n" * 5_000)
    assert Document(path, "a site profile").value() == ["a"] * 5_000


@pytest.mark.thorough
def test_yaml_that_is_all_structure(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("[" + "a," * 99_000 + "]")
    code = """
from pathlib import Path
from deployer.connected.ground.yaml_model import Document
from deployer.contract.base.errors import UsageError
try:
    Document(Path(sys.argv[1]), "a site profile")
except UsageError as error:
    print(error.message)
"""
    used, text = peak(code, path)
    assert "more than 20000 values" in text
    assert used < LIMIT


def test_an_elf_file_whose_names_overlap() -> None:
    """16,000 libraries are needed, and the name of each is the end of the one before: 800 MB of text in 66 kB."""
    strings = b"MPI" * 20_000 + b"\0"
    entries = [(1, number * 3) for number in range(16_000)]
    start = 64 + 2 * 56
    table = start + 16 * (len(entries) + 3)
    body = b"".join(struct.pack("<qQ", *entry) for entry in [*entries, (5, table), (10, len(strings)), (0, 0)])
    size = start + len(body) + len(strings)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0
    )
    head += struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    head += struct.pack("<IIQQQQQQ", 2, 6, start, start, start, len(body), len(body), 8)
    data = head + body + strings
    with pytest.raises(dynamic.BadElf, match="its names have more than 524288 bytes"):
        dynamic.facts(lambda offset, size: data[offset : offset + size])


#: Of our own making, or of a tool's about the stager's own files; all else goes through what counts first.
_OWN = {
    "connected/image/definition/dockerfile.py", "connected/image/last_build.py",
    "connected/bundle/layer/framecache.py",
    "connected/bundle/layer/known_layers.py",
    "connected/bundle/about/sbom.py", "connected/image/variants.py",
    "connected/rehearse/world/far_launcher.py",  # a file beside it that `rehearse` has just written
    "site/container/replay_proxy.py",  # of `fetch`, which wrote one line
    "site/notebook/jupyter.py",  # the files of its own job
    "system/channel.py",  # of a process that has proven the job's key
}  # fmt: skip


@pytest.mark.thorough
def test_json_and_archives_are_parsed_in_one_place_each() -> None:
    package = Path(deployer.__file__).parent
    places: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        if "recipes" in path.parts:  # run in containers of our own
            continue
        for call in re.findall(
            r"\b(json\.loads?|json\.JSONDecoder|zipfile\.ZipFile|zlib\.decompress)\(", path.read_text()
        ):
            places.setdefault(call, set()).add(str(path.relative_to(package)))
    assert places["json.JSONDecoder"] == {"contract/base/json_records.py"}
    assert places["json.loads"] == _OWN
    assert places["zipfile.ZipFile"] == {
        "connected/rootfs/wheels.py",
        "connected/bundle/pyz.py",
        "connected/bundle/about/reasons.py",  # lists a file of at most 16 MiB
        "connected/image/wheelhouse/resolve.py",
        "system/tool/tool_compiler.py",
    }  # two write, one reads this tool itself
    assert places["zlib.decompress"] == {"site/capture/apptainer.py"}  # a constant
    assert "json.load" not in places
