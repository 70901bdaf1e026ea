"""What we read of real files is what pyelftools reads of them."""

import random
from pathlib import Path

from elftools.elf.elffile import ELFFile

from deployer.contract import dynamic
from deployer.contract.elf import ReadAt


def reader(path: Path) -> ReadAt:
    data = path.read_bytes()
    return lambda offset, size: data[offset : offset + size]


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
            assert {(symbol.name, symbol.defined) for symbol in dynamic.symbols(reader(path), lambda _: True)} == {
                (symbol.name, symbol.entry.st_shndx != "SHN_UNDEF")
                for symbol in table.iter_symbols()
                if symbol.name and symbol.entry.st_info.bind != "STB_LOCAL"
            }
