"""What we read of real files is what pyelftools reads of them."""

import contextlib
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from deployer.contract.elf import dynamic
from deployer.contract.elf.elf import ReadAt


def reader(path: Path) -> ReadAt:
    data = path.read_bytes()
    return lambda offset, size: data[offset : offset + size]


@pytest.mark.thorough
def test_the_same_as_another_reader() -> None:
    libraries = [path for path in sorted(Path("/lib/x86_64-linux-gnu").glob("*.so.*")) if path.stat().st_size < 1 << 20]
    for path in random.Random(1).sample(libraries, min(30, len(libraries))):
        found = dynamic.read(reader(path))
        assert found is not None
        with path.open("rb") as stream:
            elf = ELFFile(stream)
            tags = list(elf.get_section_by_name(".dynamic").iter_tags())
            assert found.needed == [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]
            assert [found.soname] == ([tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"] or [None])
            needed = elf.get_section_by_name(".gnu.version_r")
            assert found.versions == {
                version.name: [each.name for each in each_of if not each.entry.vna_flags & 2]
                for version, each_of in (needed.iter_versions() if needed else ())
            }
            table = elf.get_section_by_name(".dynsym")
            assert {
                (symbol.name, symbol.defined)
                for symbol in dynamic._symbols(dynamic._open(reader(path)), lambda _: True)
            } == {
                (symbol.name, symbol.entry.st_shndx != "SHN_UNDEF")
                for symbol in table.iter_symbols()
                if symbol.name and symbol.entry.st_info.bind != "STB_LOCAL"
            }


def test_a_32_bit_file(tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    source = tmp_path / "a.c"
    source.write_text("int f(void){return 0;}\n")
    words = ["-m32", "-nostdlib", "-shared", "-Wl,-soname,libx.so.1"]
    subprocess.run(["gcc", *words, source, "-o", tmp_path / "x"], check=True, timeout=60)
    data = (tmp_path / "x").read_bytes()

    def read_at(offset: int, size: int) -> bytes:
        return data[offset : offset + size]

    found = dynamic.facts(read_at, narrow=True)
    assert (found.dynamic.machine, found.dynamic.soname) == (3, "libx.so.1")
    assert dynamic.facts(read_at) is None
    for size in range(0, len(data), 97):  # cut off: nothing, or what is wrong with it
        with contextlib.suppress(dynamic.BadElf):
            dynamic.facts(lambda offset, count, end=size: data[offset : min(offset + count, end)], narrow=True)
