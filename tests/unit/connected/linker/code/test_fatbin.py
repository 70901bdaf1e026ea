"""CUDA kernels in a file: which GPUs they serve; what is of another form tells nothing."""

import io
import struct
from collections.abc import Sequence

import pytest

from deployer.connected.linker.code import fatbin
from deployer.contract.elf.elf_notes import EHDR

SM, PTX, LTO = 2, 1, 8
Entry = tuple[int, int, int]  # kind, architecture, flags


def container(entries: Sequence[Entry], head: int = 64) -> bytes:
    """Return a container as NVIDIA's fatbinary writes it: entries with headers of 64 bytes and more."""
    body = b""
    for kind, architecture, flags in entries:
        minor, major = (8, 7) if kind == PTX else (7, 1)
        header = struct.pack("<HHIQIIHHIIIQ", kind, 0x101, head, 24, 0, 0, minor, major, architecture, 0, 0, flags)
        body += header.ljust(head, b"\0") + b"code".ljust(24, b"\xff")
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def elf(content: bytes, name: bytes = b".nv_fatbin") -> bytes:
    """Return an ELF file with a section of that name."""
    names = b"\0" + name + b"\0.shstrtab\0"
    start = EHDR.size
    table = start + len(content) + len(names)

    def section(at: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, offset, size, 0, 0, 8, 0)

    head = EHDR.pack(b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, table, 0, EHDR.size, 56, 0, 64, 3, 2)
    sections = section(0, 0, 0) + section(1, start, len(content))
    sections += section(len(name) + 2, start + len(content), len(names))
    return head + content + names + sections


def kernels(data: bytes) -> tuple[str, ...]:
    def read_at(offset: int, size: int) -> bytes:
        stream = io.BytesIO(data)
        stream.seek(min(offset, len(data)))
        return stream.read(size)

    return fatbin.kernels(read_at)


def test_all_containers_are_read() -> None:
    first = container([(SM, 70, 0x11), (SM, 80, 0x11), (PTX, 80, 0x8011)])
    second = container([(SM, 90, 0x100011), (SM, 100, 0x1200011)], head=112)
    assert kernels(elf(first + bytes(8) + container([]) + second)) == (
        "compute_80",
        "ptx_7.8",
        "sm_100",
        "sm_70",
        "sm_80",
        "sm_90a",
    )
    assert kernels(elf(container([(LTO, 80, 0)]))) == ("other",)
    relocatable = elf(container([(SM, 80, 0), (PTX, 80, 0)]), b"__nv_relfatbin")
    assert kernels(relocatable) == ("compute_80", "ptx_7.8", "sm_80")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        elf(container([(SM, 80, 0)]), b".nv_fatbinx"),
        elf(container([(SM, 80, 0)]), b".text"),
        elf(container([(SM, 80, 0)]), b"__nv_relfatbin_more"),
        elf(b"another form of kernels......."),
        elf(container([(SM, 80, 0)])[:-40]),  # cut off
        elf(container([(SM, 80, 0)]) + struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 0)),  # a later version
        elf(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**62)),
        elf(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + bytes(64)),  # an entry without a size
        elf(container([(SM, 80, 0)]))[:-100],
    ],
)
def test_what_is_not_of_this_form_tells_nothing(data: bytes) -> None:
    assert kernels(data) == ()


@pytest.mark.parametrize(
    ("found", "gpu", "served"),
    [
        (["sm_70"], (7, 0), True),
        (["sm_70"], (7, 5), True),  # a newer one of the same generation
        (["sm_75"], (7, 0), False),
        (["sm_70"], (8, 0), False),
        (["sm_80", "sm_90"], (7, 0), False),
        (["sm_80", "compute_60"], (7, 0), True),  # the driver compiles PTX
        (["compute_80"], (7, 0), False),
        (["compute_80"], (12, 0), True),
        (["sm_90a"], (9, 0), True),
        (["sm_90a", "compute_90a"], (10, 0), False),
        (["sm_100"], (10, 3), True),
        (["other"], (3, 0), True),
        (["ptx_7.8"], (7, 0), False),
        ([], (7, 0), False),
    ],
)
def test_which_gpus_are_served(found: list[str], gpu: tuple[int, int], served: bool) -> None:
    assert fatbin.serve(found, gpu) is served


def test_the_version_of_ptx_tells_the_release_of_cuda() -> None:
    found = ["compute_60", "ptx_7.8", "ptx_8.10", "ptx_8.2", "sm_70"]
    assert fatbin.ptx_version(found) == (8, 10)
    assert fatbin.ptx_version(["sm_70"]) is None
    assert fatbin.architectures(found) == ["compute_60", "sm_70"]
    assert fatbin.machine_code(found) == ["sm_70"]


def test_the_whole_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else sections that overlap would be read thousands of times."""
    monkeypatch.setattr(fatbin, "_MAX_ENTRIES", 12)
    assert kernels(elf(container([(SM, 70, 0)] * 3) * 2)) == ("sm_70",)
    assert kernels(elf(container([(SM, 70, 0)] * 3) * 5)) == ()
