"""An MPI library inside a program is found by what a linker keeps of it."""

import shutil
import subprocess

import pytest

from deployer.contract.base import records
from deployer.contract.elf import dynamic
from deployer.contract.elf.linked_mpi import SYMBOLS, TEXTS, linked_mpi

LIBRARY = """
int PMPI_Init(void) { return 0; }
__attribute__((weak, alias("PMPI_Init"))) int MPI_Init(void);
"""
STUB = "int MPI_Init(void) { return 0; }"
MAIN = "%s int main(void) { return MPI_Init(); }"


def reader(data):
    return lambda offset, size: data[offset : offset + size]


def texts(*found):
    """Return what a stripped program of some size holds."""
    return reader(b"\x7fELF\x02\x01" + bytes(300000) + b"\0".join(found) + bytes(10))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a function that compiles a program; its words are the compiler's own."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("compiled")

    def build(source, *words):
        (folder / "a.c").write_text(source)
        subprocess.run(["gcc", "-O1", "a.c", "-o", "a", *words], cwd=str(folder), check=True, timeout=60)
        return reader((folder / "a").read_bytes())

    return build


@pytest.mark.parametrize("words", [(), ("-static",), ("-no-pie",)])
def test_a_program_that_defines_what_only_a_library_defines(compiled, words):
    read_at = compiled(LIBRARY + MAIN % "", *words)
    assert linked_mpi(read_at) == SYMBOLS
    assert dynamic.facts(read_at).linked == SYMBOLS


def test_stubs_are_not_a_library(compiled):
    assert linked_mpi(compiled(STUB + MAIN % "")) is None


def test_symbols_can_be_stripped_and_texts_cannot(compiled):
    assert linked_mpi(compiled(LIBRARY + MAIN % "", "-s")) is None  # it has no texts of a real library
    settings = ",".join('"MPIR_CVAR_%d"' % number for number in range(300))
    source = f"const char *kept[] = {{{settings}}}; char fill[300000] = {{1}};"
    assert linked_mpi(compiled(source + LIBRARY + MAIN % "", "-s")) == TEXTS


def test_texts_that_others_have_too():
    assert linked_mpi(texts(*[b"MPIR_CVAR_CH4_NETMOD"] * 200)) == TEXTS
    assert linked_mpi(texts(*[b"MPIR_CVAR_CH4_NETMOD"] * 20)) is None  # a program that sets some
    assert linked_mpi(texts(b"", b"MPI_Init", *[b"ompi_mpi_init: failed"] * 6)) == TEXTS
    assert linked_mpi(texts(b"", b"MPI_Init", b"ompi_mpi_init")) is None
    assert linked_mpi(texts(*[b"ompi_mpi_init: failed"] * 6)) is None


def test_a_library_is_not_asked(compiled):
    assert dynamic.facts(compiled(LIBRARY, "-shared", "-fPIC")).linked is None


def test_facts_are_kept(compiled):
    from deployer.contract.base import json_records

    found = dynamic.facts(compiled(LIBRARY + MAIN % ""))
    record = found.record()
    assert record["linked"] == SYMBOLS
    again = records.read(dynamic.Facts, json_records.Fields(record, "facts"))
    assert again == found


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [0, 40, 64, 100, 5000])
def test_a_file_that_is_cut_off_shows_nothing(compiled, cut):
    whole = compiled(LIBRARY + MAIN % "")(0, 1 << 24)
    assert linked_mpi(reader(whole[:cut])) is None
