"""HIP kernels in a file: which processors of AMD they serve; what is of another form tells nothing."""

import io
import struct
import zlib
from collections.abc import Sequence

import pytest
import zstandard

from deployer.connected.linker.code import offload_bundles
from tests.unit.connected.linker.code.test_fatbin import elf

HOST = "host-x86_64-unknown-linux-gnu-"


def bundle(*targets: str, size: int = 64) -> bytes:
    """Return a bundle as clang-offload-bundler writes it: a table, and each entry's content at a multiple of a page."""
    names = [
        HOST,
        *(f"hipv4-amdgcn-amd-amdhsa--{target}" if target.startswith("gfx") else target for target in targets),
    ]
    table = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(names))
    for number, name in enumerate(names):
        place = (4096 * number, size) if number else (4096, 0)
        table += struct.pack("<QQQ", *place, len(name)) + name.encode()
    return table.ljust(4096 * len(names) - 4096 + size, b"\0")


def packed(content: bytes, version: int, method: int = 1) -> bytes:
    data = zstandard.compress(content) if method else zlib.compress(content)
    raw = len(content)
    if version == 1:
        return struct.pack("<4sHHIQ", b"CCOB", 1, method, raw, 7) + data
    form = "<4sHHIIQ" if version == 2 else "<4sHHQQQ"
    return struct.pack(form, b"CCOB", version, method, struct.calcsize(form) + len(data), raw, 7) + data


def paged(*bundles: bytes) -> bytes:
    return b"".join(each.ljust(-(-len(each) // 4096) * 4096, b"\0") for each in bundles)


def kernels(*bundles: bytes, cut: int | None = None) -> Sequence[str]:
    data = elf(paged(*bundles), b".hip_fatbin")[:cut]

    def read_at(offset: int, size: int) -> bytes:
        stream = io.BytesIO(data)
        stream.seek(min(offset, len(data)))
        return stream.read(size)

    return offload_bundles.kernels(read_at)


@pytest.mark.parametrize(
    "bundles",
    [
        [bundle("gfx90a:xnack-", "gfx1030"), bundle("gfx906:sramecc+:xnack-")],
        [packed(bundle("gfx90a:xnack-", "gfx1030"), 2), packed(bundle("gfx906:sramecc+:xnack-"), 3)],
        [packed(bundle("gfx906:sramecc+:xnack-"), 2, method=0), packed(bundle("gfx90a:xnack-", "gfx1030"), 1)],
        [bundle("gfx906:sramecc+:xnack-"), b"\0", packed(bundle("gfx90a:xnack-", "gfx1030"), 3)],
    ],
)
def test_all_bundles_are_read(bundles: list[bytes]) -> None:
    assert kernels(*bundles) == ("gfx1030", "gfx906:sramecc+:xnack-", "gfx90a:xnack-")


def test_older_and_other_names_of_targets() -> None:
    names = (
        "hip-amdgcn-amd-amdhsa-gfx803",
        "gfx9-4-generic",
        "hip-spirv64-amd-amdhsa--amdgcnspirv",
        "openmp-x--gfx908",
    )
    assert kernels(bundle(*names)) == ("amdgcnspirv", "gfx803", "gfx9-4-generic")


@pytest.mark.parametrize(
    "bundles",
    [
        [b"another form"],
        [bundle("gfx90a"), b"CCOB" + struct.pack("<HH", 4, 1) + bytes(64)],  # a later version
        [packed(bundle("gfx90a"), 3)[:32] + b"no stream of zstd"],
        [packed(b"no bundle", 3)],
        [b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 2**40)],
        [b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 0, 0, 2**40)],
    ],
)
def test_what_is_not_of_this_form_tells_nothing(bundles: list[bytes]) -> None:
    assert kernels(*bundles) == ()
    assert kernels(bundle("gfx90a"), cut=60) == ()


def test_a_table_behind_a_bomb_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels(packed(bundle("gfx90a", size=1 << 26), 3)) == ("gfx90a",)  # only its beginning is decompressed
    monkeypatch.setattr(offload_bundles, "_MAX_BUNDLES", 4)
    assert kernels(*[bundle("gfx90a")] * 2) == ("gfx90a",)
    assert kernels(*[bundle("gfx90a")] * 9) == ()


@pytest.mark.parametrize(
    ("found", "processor", "served"),
    [
        (["gfx90a"], "gfx90a", True),
        (["gfx90a:sramecc+:xnack-"], "gfx90a", True),
        (["gfx908", "gfx942"], "gfx90a", False),  # no processor runs another one's code
        (["gfx9-4-generic"], "gfx942", True),
        (["gfx9-4-generic"], "gfx90a", False),
        (["gfx9-generic"], "gfx906", True),
        (["gfx11-generic"], "gfx1151", True),
        (["gfx11-generic"], "gfx1201", False),
        (["amdgcnspirv"], "gfx1201", True),
        ([], "gfx90a", False),
    ],
)
def test_which_processors_are_served(found: list[str], processor: str, served: bool) -> None:
    assert offload_bundles.serve(found, processor) is served


def test_kernels_of_two_vendors() -> None:
    assert offload_bundles.of_amd(["sm_80", "gfx90a", "compute_80", "ptx_8.2", "amdgcnspirv"]) == [
        "gfx90a",
        "amdgcnspirv",
    ]
