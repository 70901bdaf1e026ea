"""What compilers make for AArch64 is recognized: for which processors, page sizes, and whether the program asks first.

tests/matrix/processors.py compares the same with qemu.
"""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from deployer.connected.linker.code import aarch64, instructions, jemalloc
from deployer.connected.linker.code.code_facts import CodeFacts
from deployer.contract.elf import dynamic
from tests.unit.connected.linker.test_dynamic import reader

COMPILER = "aarch64-linux-gnu-gcc"
LOOPS = """
#include <stdio.h>
#include <sys/auxv.h>
double a[1024]; signed char b[1024]; _Atomic int n;
%s __attribute__((noinline)) double f(int c) {
    double s = 0;
    for (int i = 0; i < 1024; i++) a[i] = a[i] * c + i;
    for (int i = 0; i < 1024; i++) s += a[i];
    return s;
}
__attribute__((noinline)) int g(int c) { int s = c; for (int i = 0; i < 1024; i++) s += b[i] * b[1023 - i]; return s; }
int main(int c, char **v) { (void)v; n += c; printf("%%f\\n", %s); return 0; }
"""
BOTH, ASKED = "f(c) + g(c)", "getauxval(AT_HWCAP) & HWCAP_SVE ? f(c) : g(c)"
SVE = '__attribute__((target("+sve"), optimize("O3")))'


def compiled(folder: Path, source: str, *words: str) -> Path:
    if not shutil.which(COMPILER):
        pytest.skip("no compiler for AArch64 (package gcc-aarch64-linux-gnu)")
    (folder / "a.c").write_text(source)
    subprocess.run([COMPILER, "a.c", "-o", "a", *words], cwd=folder, check=True, timeout=60, capture_output=True)
    return folder / "a"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "needs"),
    [
        (["-O3"], set()),
        (["-O3", "-static"], set()),
        (["-O2", "-mbranch-protection=standard"], set()),  # BTI and PAC are hints
        (["-O3", "-mno-outline-atomics"], set()),
        (["-O2", "-march=armv8.1-a"], {"atomics"}),
        (["-O2", "-march=armv8.1-a", "-static"], {"atomics"}),
        (["-O3", "-march=armv8.2-a+dotprod", "-s"], {"atomics", "asimddp"}),
        (["-O2", "-march=armv8.3-a", "-mbranch-protection=pac-ret+leaf"], {"atomics", "paca"}),
        (["-Ofast", "-march=armv8-a+sve"], {"sve"}),
        (["-Ofast", "-march=armv8-a+sve", "-no-pie"], {"sve"}),
        (["-Ofast", "-march=armv8-a+sve", "-static"], {"sve"}),  # in a function that main is certain to call
        (["-Ofast", "-march=armv9-a"], {"atomics", "sve"}),
    ],
)
def test_a_program_for_newer_processors(words: list[str], needs: set[str], tmp_path: Path) -> None:
    found = instructions.of_file(reader(compiled(tmp_path, LOOPS % ("", BOTH), *words)))
    assert {*found.whole, *found.in_main} == needs


@pytest.mark.thorough
def test_main_is_found_in_programs_of_all_kinds(tmp_path: Path) -> None:
    source = "double a[64]; int main(int c, char **v) { (void)v; for (int i = 0; i < 64; i++) a[i] *= c; return a[9]; }"
    for words in ([], ["-no-pie"], ["-static"], ["-static-pie"], ["-rdynamic"]):
        found = instructions.of_file(reader(compiled(tmp_path, source, "-O3", "-march=armv8-a+sve", *words)))
        assert found.in_main == ["sve"], words


@pytest.mark.thorough
@pytest.mark.parametrize("static", [False, True])
def test_a_program_that_chooses_when_it_runs(static: bool, tmp_path: Path) -> None:
    source = "#include <asm/hwcap.h>\n" + LOOPS % (SVE, ASKED)
    found = instructions.of_file(reader(compiled(tmp_path, source, "-O2", *["-static"] * static)))
    assert (found.whole, found.in_main, found.asks) == ([], [], True)
    assert "sve" in found.used


def test_outline_atomics_ask_for_themselves_only(tmp_path: Path) -> None:
    found = instructions.of_file(reader(compiled(tmp_path, LOOPS % (SVE, BOTH), "-O3")))
    assert (found.used, found.asks) == (["sve"], False)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        # as GNU's assembler writes them
        (0x885FFC02, "exclusive"),  # ldaxr w2, [x0]
        (0xB8E00041, "atomics"),  # ldaddal w0, w1, [x2]
        (0x48A17C02, "atomics"),  # casb
        (0x38BFC020, "lrcpc"),  # ldaprb w0, [x1]
        (0xD503233F, ""),  # paciasp
        (0xD503245F, ""),  # bti c
        (0xD65F0BFF, "paca"),  # retaa
        (0x1EE24000, ""),  # fcvt s0, h0
        (0x1EE22820, "fphp"),  # fadd h0, h1, h2
        (0x1F020C20, ""),  # fmadd s0, s1, s2, s3
        (0x4E410C00, "asimdhp"),  # fmla v0.8h, v0.8h, v1.8h
        (0x6E42FC20, "bf16"),  # bfdot v0.4s, v1.8h, v2.8h
        (0x4E82A420, "i8mm"),  # smmla v0.4s, v1.16b, v2.16b
        (0x4E829420, "asimddp"),  # sdot v0.4s, v1.16b, v2.16b
        (0x4E21EC20, "asimdfhm"),  # fmlal v0.4s, v1.4h, v1.4h
        (0x6E828420, "asimdrdm"),  # sqrdmlah v0.4s, v1.4s, v2.4s
        (0x6E81E400, "fcma"),  # fcadd v0.4s, v0.4s, v1.4s, #90
        (0x0E213800, "neon"),  # shll v0.8h, v0.8b, #8
        (0x04E0E3E0, ""),  # cntd x0
        (0x65C000A0, "sve"),  # fadd z0.d, z5.d, z0.d
        (0x04A260C0, "sve2"),  # mul z0.s, z6.s, z2.s
        (0xCE020C20, "sha3"),  # eor3 v0.16b, v1.16b, v2.16b, v3.16b
    ],
)
def test_the_set_of_an_instruction(word: int, name: str) -> None:
    assert aarch64.set_of(word) == name


def test_damaged_code_does_no_harm() -> None:
    data = struct.pack("<I", 0x14000000) + b"\xff" * 7
    assert [step.target for step in aarch64.steps(data, 4096)] == [4096, None]
    assert aarch64.main(b"\0" * 3, 0) is None


@pytest.mark.thorough
def test_segments_for_small_pages(tmp_path: Path) -> None:
    pages = []
    for words in ([], ["-Wl,-z,max-page-size=4096"], ["-Wl,-z,max-page-size=16384", "-shared"]):
        path = compiled(tmp_path, "int main(void) { return 0; }", *words)
        facts = dynamic.facts(reader(path))
        assert facts
        pages.append(facts.pages)
    assert pages == [0, 4096, 16384]


#: As jemalloc's pages_boot(): the text, and the comparison.
JEMALLOC = """
#include <unistd.h>
#include <stdio.h>
unsigned long seen;
int main(void) {
    long size = sysconf(_SC_PAGESIZE);
    if (size == -1) return 1;
    seen = size;
    if (PAGE) { fputs("<jemalloc>: Unsupported system page size\\n", stderr); return 2; }
    return 0;
}
"""


@pytest.mark.thorough
def test_the_page_size_of_jemalloc(tmp_path: Path) -> None:
    tests = {"seen>4096": 4096, "seen>16384": 16384, "seen>65536": 65536, "seen<<3>seen*5-1": jemalloc.UNKNOWN}
    for test, size in tests.items():
        assert jemalloc.page_size(reader(compiled(tmp_path, JEMALLOC, "-O2", f"-DPAGE={test}"))) == size
    none = reader(compiled(tmp_path, "int main(void) { return 0; }"))
    facts = CodeFacts(lambda name: none, tmp_path / "kept.json")
    assert facts.jemalloc("/a") == jemalloc.page_size(none) == 0
    assert not facts.of("/a").used
    again = CodeFacts(lambda name: None, tmp_path / "kept.json")
    assert again.jemalloc("/a") == 0
