"""What compilers make is recognized: for which processors, and whether the program asks first."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from deployer.connected.linker.code import instructions
from deployer.connected.linker.code.code_facts import CodeFacts, Instructions
from deployer.contract.elf.elf import ReadAt
from tests.unit.connected.linker.test_dynamic import reader

LOOPS = """
double a[1024];
%s double f(int c) { double s = 0; for (int i = 0; i < 1024; i++) { a[i] = i * c; s += a[i] * 0.5; } return s; }
double g(int c) { double s = 1; for (int i = 0; i < 1024; i++) { a[i] = i + c; s += a[i] * 1.5; } return s; }
"""
#: `main` calls the one or the other.
MAIN = '#include <stdio.h>\nint main(int c, char **v) { (void)v; printf("%%f\\n", %s); return 0; }\n'
BOTH, ASKED = "f(c) + g(c)", '__builtin_cpu_supports("avx2") ? f(c) : g(c)'
AVX2 = '__attribute__((target("avx2")))'
CLONES = '__attribute__((target_clones("avx2", "default")))'


def compiled(folder: Path, function: str, call: str, *words: str) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    (folder / "a.c").write_text(LOOPS % function + MAIN % call)
    done = subprocess.run(["gcc", "a.c", "-o", "a", *words], cwd=folder, check=False, timeout=60, capture_output=True)
    if b"cannot find -l" in done.stderr:
        pytest.skip("no static C library")
    assert done.returncode == 0, done.stderr
    return folder / "a"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "needs"),
    [
        (["-O2"], set()),
        (["-O2", "-march=x86-64-v2"], set()),
        (["-O0", "-mavx"], {"avx"}),
        (["-O3", "-march=x86-64-v3"], {"avx", "fma"}),
        (["-Ofast", "-march=x86-64-v4", "-mprefer-vector-width=512"], {"avx512f"}),
        (["-Ofast", "-mavx512f", "-s"], {"avx512f"}),
        (["-O3", "-march=haswell", "-static"], {"avx", "fma"}),
    ],
)
def test_a_program_for_newer_processors(words: list[str], needs: set[str], tmp_path: Path) -> None:
    found = instructions.of_file(reader(compiled(tmp_path, "", BOTH, *words)))
    assert needs <= {*found.whole, *found.in_main}
    assert bool(needs) == bool({*found.whole, *found.in_main})


@pytest.mark.thorough
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(("function", "call"), [(AVX2, ASKED), (CLONES, BOTH), ("", BOTH)])
def test_a_program_that_chooses_when_it_runs(function: str, call: str, static: bool, tmp_path: Path) -> None:
    found = instructions.of_file(reader(compiled(tmp_path, function, call, "-O3", *["-static"] * static)))
    assert (found.whole, found.in_main) == ([], []) or found == Instructions()
    assert found.asks or found == Instructions()


@pytest.mark.thorough
def test_functions_that_nothing_chooses(tmp_path: Path) -> None:
    found = instructions.of_file(reader(compiled(tmp_path, AVX2, "c > 1 ? f(c) : g(c)", "-O1")))
    assert (found.in_main, found.asks) == ([], False)
    assert "avx" in found.used


@pytest.mark.thorough
def test_damaged_files_do_no_harm(tmp_path: Path) -> None:
    data = compiled(tmp_path, AVX2, ASKED, "-O2").read_bytes()
    chance = random.Random(29)
    for _ in range(60):
        broken = bytearray(data[: chance.randrange(len(data))])
        for _ in range(20):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        instructions.of_file(lambda offset, size, text=bytes(broken): text[offset : offset + size])


def test_code_is_decoded_once(tmp_path: Path) -> None:
    path = compiled(tmp_path, "", BOTH, "-O2", "-mavx")
    asked = []

    def open_file(name: str) -> ReadAt | None:
        asked.append(name)
        return reader(path) if name == "/a" else None

    for _ in range(2):
        facts = CodeFacts(open_file, tmp_path / "kept.json")
        assert list(facts.of("/a").whole) == ["avx"]
        assert not facts.of("/gone").used
    assert asked == ["/a", "/gone"]
    (tmp_path / "kept.json").write_text("{")
    assert list(CodeFacts(open_file, tmp_path / "kept.json").of("/a").whole) == ["avx"]
