"""What Go and Rust programs say they are made of.

syft 1.18.1 names the same modules and crates for skopeo, wandb-core, uv and syft itself (docs/evidence/officer.md).
"""

import json
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from deployer.connected.bundle.about import packages, programs, sbom
from deployer.connected.rootfs.entries import InMemory
from deployer.connected.rootfs.flatten import FlattenedRootfs
from tests.tars import layer, root_of

MODULES = """\
path\texample.org/me/cmd/me
mod\texample.org/me\t(devel)\t
dep\tgithub.com/BurntSushi/toml\tv1.4.0\th1:x=
dep\tgithub.com/a/b/v2\tv2.0.1\th1:x=
=>\tgithub.com/fork/b/v2\tv2.0.2\th1:x=
dep\texample.org/own\tv0.0.0
=>\t../own\t(devel)\t
build\t-compiler=gc
"""
GO = [("stdlib", "1.22.3"), ("example.org/me", ""), ("github.com/BurntSushi/toml", "v1.4.0"),
      ("github.com/fork/b/v2", "v2.0.2"), ("example.org/own", "")]  # fmt: skip
CRATES = {
    "packages": [
        {"name": "me", "version": "0.1.0", "source": "local", "dependencies": [1], "root": True},
        {"name": "serde", "version": "1.0.200", "source": "crates.io"},
        {"name": "cc", "version": "1.0.1", "source": "crates.io", "kind": "build"},
    ]
}


def go_section(modules: str = MODULES) -> bytes:
    def text(data: bytes) -> bytes:
        size, number = b"", len(data)
        while number > 0x7F:
            size, number = size + bytes([number & 0x7F | 0x80]), number >> 7
        return size + bytes([number]) + data

    head = b"\xff Go buildinf:\x08\x02".ljust(32, b"\0")
    return head + text(b"go1.22.3") + text(b"M" * 16 + modules.encode() + b"m" * 16)


def rust_section() -> bytes:
    return zlib.compress(json.dumps(CRATES).encode())


def elf(folder: Path, name: str, section: bytes) -> bytes:
    """Return a program that the real assembler and linker made, with a section of this name."""
    (folder / "section").write_bytes(section)
    (folder / "a.s").write_text(f'.section {name},"a"\n.incbin "section"\n.text\n.globl _start\n_start: nop\n')
    subprocess.run(["gcc", "-nostdlib", "-static", "-o", "a.out", "a.s"], cwd=folder, check=True)
    return (folder / "a.out").read_bytes()


def found(content: bytes) -> list[tuple[str, str]]:
    return [(one.name, one.version) for one in programs.components(InMemory(content))]


def test_modules_and_crates(tmp_path: Path) -> None:
    assert found(elf(tmp_path, ".go.buildinfo", go_section())) == GO
    assert found(elf(tmp_path, ".dep-v0", rust_section())) == [("me", "0.1.0"), ("serde", "1.0.200")]


@pytest.mark.skipif(not shutil.which("age"), reason="apt-get install age")
def test_a_real_program_of_go() -> None:
    [(name, version)] = found(Path("/usr/bin/age").read_bytes())
    assert name == "stdlib"
    assert version.startswith("1.")


def test_they_are_in_the_sbom_with_the_paths_of_the_programs(tmp_path: Path) -> None:
    go, rust = elf(tmp_path, ".go.buildinfo", go_section()), elf(tmp_path, ".dep-v0", rust_section())
    files = [("bin", None), ("bin/go", go), ("bin/again", go), ("lib/x.abi3.so", rust)]
    inventory = packages.of_tree(FlattenedRootfs(root_of(layer(files))))
    document = json.loads(b"".join(sbom.make("x", "1", inventory, [], [])))
    places = {
        item["purl"]: [place["location"] for place in item["evidence"]["occurrences"]]
        for item in document["components"]
    }
    assert places == {
        "pkg:cargo/me@0.1.0": ["/lib/x.abi3.so"],
        "pkg:cargo/serde@1.0.200": ["/lib/x.abi3.so"],
        "pkg:golang/example.org/me": ["/bin/again", "/bin/go"],
        "pkg:golang/example.org/own": ["/bin/again", "/bin/go"],
        "pkg:golang/github.com/BurntSushi/toml@v1.4.0": ["/bin/again", "/bin/go"],
        "pkg:golang/github.com/fork/b/v2@v2.0.2": ["/bin/again", "/bin/go"],
        "pkg:golang/stdlib@1.22.3": ["/bin/again", "/bin/go"],
    }


@pytest.mark.parametrize(
    ("name", "section"),
    [
        (".go.buildinfo", b""),
        (".go.buildinfo", b"\xff Go buildinf:\x08"),
        (".go.buildinfo", b"\xff Go buildinf:\x08\x00" + bytes(100)),  # before Go 1.18: addresses of the texts
        (".go.buildinfo", b"\xff Go buildinf:\x08\x02".ljust(32, b"\0") + b"\xff" * 1_000_000),
        (".go.buildinfo", go_section("=>\ta\tb")[:-40]),
        (".go.buildinfo", b"other"),
        (".dep-v0", b"not compressed"),
        (".dep-v0", zlib.compress(bytes(100_000_000))),
        (".dep-v0", zlib.compress(b"[1]")),
        (".dep-v0", zlib.compress(b'{"packages": [1]}')),
        (".dep-v0", zlib.compress(b'{"packages": 1}')),
        (".dep-v0", zlib.compress(b'{"packages": [{"name": "a"}]}')),
        (".dep-v0", zlib.compress(b'{"packages": [{"name": "a b\\n", "version": "1"}]}')),
    ],
)
def test_a_damaged_section_is_skipped(tmp_path: Path, name: str, section: bytes) -> None:
    assert [one for one in found(elf(tmp_path, name, section)) if one[0] != "stdlib"] == []


def test_what_precedes_the_damage_is_kept(tmp_path: Path) -> None:
    whole = elf(tmp_path, ".go.buildinfo", go_section())
    for end in range(0, len(whole), 97):
        found(whole[:end])
    assert found(whole.replace(b"\t(devel)\t\ndep", b"\t(devel)\t\n=>d"))[:2] == GO[:2]
