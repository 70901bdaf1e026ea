"""How the site's software is made from what is downloaded and copied."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from tests.lab import config, software
from tests.lab.command import Result
from tests.lab.errors import LabError

WHEEL = "impi_rt-2021.15.0.data/data/"


@pytest.mark.parametrize(
    ("member", "inner"),
    [
        (WHEEL + "lib/libmpi.so.12", "lib/libmpi.so.12"),
        (WHEEL + "opt/mpi/etc/x.dat", "opt/mpi/etc/x.dat"),
        (WHEEL + "etc/conda/activate.d/mpivars.activate.sh", None),
        ("impi_rt-2021.15.0.dist-info/RECORD", None),
        (WHEEL + "../../../etc/passwd", None),
        ("impi_rt-2021.15.0.data/scripts/bin/x", None),
    ],
)
def test_payload_of_the_wheel(member: str, inner: str | None) -> None:
    assert software.payload_path(member) == (PurePosixPath(inner) if inner else None)


def test_copies_of_a_library_become_links(tmp_path: Path) -> None:
    for name in ("libmpi.so", "libmpi.so.12", "libmpi.so.12.0.0", "libother.so"):
        (tmp_path / name).write_text("library" if "mpi" in name else "other")
    (tmp_path / "libx.so").write_text("one")
    (tmp_path / "libx.so.1").write_text("two")
    software._link_equal_libraries(tmp_path)
    links = {file.name: str(file.readlink()) for file in tmp_path.iterdir() if file.is_symlink()}
    assert links == {"libmpi.so": "libmpi.so.12.0.0", "libmpi.so.12": "libmpi.so.12.0.0"}


def test_newest_python36_is_found_and_others_are_not(tmp_path: Path) -> None:
    for version in ("3.6.9", "3.6.15", "3.7.16"):
        binary = tmp_path / "versions" / version / "bin" / f"python{version[:3]}"
        binary.parent.mkdir(parents=True)
        binary.touch()
    (tmp_path / "versions/3.6.99").mkdir()  # half removed: no interpreter in it
    assert software.find_python36({"PYENV_ROOT": str(tmp_path)}) == tmp_path / "versions/3.6.15"
    assert software.find_python36({"PYENV_ROOT": str(tmp_path / "none")}) is None


def test_runpath_is_replaced_in_place(tmp_path: Path) -> None:
    file = tmp_path / "python3.6"
    old = b"/home/x/.pyenv/versions/3.6.15/lib"
    file.write_bytes(b"\x7fELF" + b"..." + old + b"\0next\0")
    file.chmod(0o755)
    software.relocate(file, old.decode())
    data = file.read_bytes()
    assert data == b"\x7fELF..." + b"$ORIGIN/../lib".ljust(len(old) + 1, b"\0") + b"next\0"
    assert file.stat().st_mode & 0o777 == 0o755


def test_a_path_too_short_to_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "python3.6"
    file.write_bytes(b"\x7fELF/p/lib\0")
    with pytest.raises(LabError, match="too short"):
        software.relocate(file, "/p/lib")


def test_scripts_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "pip"
    file.write_bytes(b"#!/p/lib\0")
    software.relocate(file, "/p/lib")
    assert file.read_bytes() == b"#!/p/lib\0"


def test_download_is_tried_three_times_and_says_why_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(argv: list[str], **_: object) -> Result:
        tried.append(argv)
        return Result(tuple(argv), 1, "", "WARNING: slow\nERROR: no such release\n")

    monkeypatch.setattr(software, "run", fail)
    monkeypatch.setattr(software, "_python_with_pip", lambda: "python3")
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(LabError, match="ERROR: no such release") as error:
        software.download(tmp_path / "pins.txt", tmp_path, {})
    assert len(tried) == 3
    assert "--require-hashes" in tried[0]
    assert error.value.hint


def test_requirements_are_pinned_by_hash() -> None:
    lines = Path(software.__file__).with_name("requirements.txt").read_text().splitlines()
    requirements = [line for line in lines if not line.startswith("#")]
    assert requirements
    assert all("==" in line and "--hash=sha256:" in line for line in requirements)


@pytest.mark.skipif(not shutil.which("lua"), reason="needs lua: apt-get install lua5.4")
def test_modulefiles_are_lua(tmp_path: Path) -> None:
    stubs = "for _, f in ipairs{'help','whatis','family','setenv','prepend_path'} do _G[f]=function() end end\n"
    stubs += "function pathJoin(a, b) return a .. '/' .. b end\n"
    for text in (config.intel_mpi_modulefile(), config.openmpi_modulefile(), config.python36_modulefile()):
        file = tmp_path / "m.lua"
        file.write_text(stubs + text)
        subprocess.run(["lua", str(file)], check=True, timeout=10)
