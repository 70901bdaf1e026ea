"""The first bytes of deployer.pyz, from which ranks start."""

import ast
import importlib.metadata
import io
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deployer.connected.bundle import pyz
from deployer.contract.base import first_bytes
from deployer.contract.base.errors import DeployerError, MissingTool
from deployer.contract.proof import evidence
from deployer.contract.proof.evidence import ProbeRecord
from deployer.contract.proof.payload import PayloadRecord
from deployer.site.proof import rank_record
from tests import bundles
from tests.evidence import recorded

#: What takes longer to import than the modules of a rank.
SLOW = {"contextlib", "enum", "importlib.util", "json", "re", "runpy", "signal", "typing", "warnings"}


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without a file that was kept; the other tests share one, which takes half a second to make."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """Return a file that begins as deployer.pyz does, and has no zip file."""
    whole = pyz.make_pyz()
    path = tmp_path / "head.pyz"
    path.write_bytes(whole[: whole.index(b"\0\0PK")])
    return path


def start(tool: Path, *words: str, command: str = "rank") -> "subprocess.CompletedProcess[str]":
    python = [sys.executable, "-I", "-S", "-X", "importtime", "-c", first_bytes.PROGRAM, str(tool), command]
    out = ["--out", str(tool.parent), *(["--"] if command == "rank" else [])]
    return subprocess.run([*python, *out, *words], check=False, capture_output=True, text=True)


@pytest.mark.thorough
def test_a_rank_reads_nothing_else_and_imports_nothing_slow(head: Path) -> None:
    done = start(head, "sh", "-c", "echo here; exit 5")
    assert (done.returncode, done.stdout) == (5, "here\n")
    assert evidence.read(PayloadRecord, recorded(head.parent, "payload-0.json").encode(), "it").exit_code == 5
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "deployer.site.rank.payload_monitor" in imported
    assert not imported & SLOW


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["--without-mpi"], ["--library", "libmpi-none.so.99"]])
def test_a_probe_reads_nothing_else_and_imports_nothing_slow(head: Path, words: list[str]) -> None:
    done = start(head, *words, command="probe")
    assert done.returncode == 0, done.stderr
    record = evidence.read(ProbeRecord, recorded(head.parent, "probe-0.json").encode(), "it")
    assert (record.stage, record.library) == (rank_record.DONE, None)
    assert not set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE)) & SLOW


OLD = next(iter(Path.home().glob(".pyenv/versions/2.7*/bin/python2.7")), None) or shutil.which("python2.7")


@pytest.mark.skipif(OLD is None, reason="no Python 2.7: pyenv install 2.7.18")
def test_an_old_python_is_named_without_a_traceback(tmp_path: Path) -> None:
    tool = tmp_path / "deployer.pyz"
    tool.write_bytes(pyz.make_pyz())
    done = subprocess.run([str(OLD), str(tool), "list"], check=False, capture_output=True, text=True)
    assert done.returncode == MissingTool.exit_code
    assert done.stderr.startswith("deployer: error: this is Python 2.7; deployer needs Python 3.6 or newer\nhint: ")


def test_a_module_without_words_is_the_same_program() -> None:
    source = '"""Text\nof two lines."""\nX = 1  # why\n\n\ndef f():\n    # why\n    """F.\n\n    """\n    return "#"\n'
    bare = '""\n\nX = 1\n\n\ndef f():\n\n    ""\n\n\n    return "#"\n'
    assert pyz.without_words(source.encode()) == bare.encode()


@pytest.mark.thorough
def test_libraries_without_words_are_the_same_programs() -> None:
    """Only docstrings differ, which are empty in the .pyz; also a definition on one line keeps its name."""
    names = [path for name in pyz._VENDORED for path in importlib.metadata.files(name) or [] if path.suffix == ".py"]
    with zipfile.ZipFile(io.BytesIO(pyz.make_pyz())) as archive:
        carried = {name: archive.read(name) for name in archive.namelist()}
    compared = [path for path in names if path.as_posix() in carried]
    assert len(compared) > 15
    for path in compared:
        original, bare = (ast.parse(data) for data in (path.read_binary(), carried[path.as_posix()]))
        for tree in (original, bare):
            for node in ast.walk(tree):
                if (
                    isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
                    and ast.get_docstring(node) is not None
                ):
                    del node.body[0]
        assert ast.dump(bare) == ast.dump(original), path


@pytest.mark.thorough
def test_other_modules_come_from_the_zip_file(tmp_path: Path) -> None:
    tool = tmp_path / "deployer.pyz"
    tool.write_bytes(pyz.make_pyz())
    done = start(tool, "/no/such/program")
    assert done.returncode == 7
    assert "deployer: error: cannot start /no/such/program" in done.stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("own_cache")
def test_ranks_have_no_room_for_more_than_their_start_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_bytes, "SIZE", 1000)
    with pytest.raises(DeployerError, match="the modules of a rank have"):
        pyz.make_pyz()


@pytest.mark.thorough
@pytest.mark.usefixtures("own_cache")
def test_files_are_kept_by_their_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pyz.make_pyz()
    with monkeypatch.context() as patch:
        patch.setattr(pyz, "_joined", lambda _: pytest.fail("it was made again"))
        assert pyz.make_pyz() == made
    (kept,) = (tmp_path / "cache" / "deployer" / "tool").iterdir()
    bundles.overwrite(kept, b"damage", 5000)
    assert pyz.make_pyz() == made
    with monkeypatch.context() as patch:
        patch.setattr(pyz.documents, "joined", lambda: b"another text")
        assert pyz.make_pyz() != made
    assert len(list((tmp_path / "cache" / "deployer" / "tool").iterdir())) == 2
    monkeypatch.setattr(pyz.caches, "TOOL", pyz.caches.TOOL._replace(cap=len(made) + 64))
    assert pyz.make_pyz() == made
    kept.write_bytes(b"")  # so that it is made again, and what is too much goes
    assert pyz.make_pyz() == made
    assert [path.name for path in (tmp_path / "cache" / "deployer" / "tool").iterdir()] == [kept.name]
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert pyz.make_pyz() == made
