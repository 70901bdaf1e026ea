import io
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.connected.rootfs import wheels
from deployer.contract.base.errors import IntegrityError, UsageError
from tests.attack.test_memory import LIMIT, peak
from tests.wheels import file_name, record_line, wheel

SCRIPTS = b"[console_scripts]\ndemo-tool = demo:main\nother = demo:App.run [extra]\n[gui_scripts]\nwin = demo:gui\n"
FILES = {
    "demo/__init__.py": b"def main():\n    print('it works')\n    return 5\n",
    "demo/native.so": b"\x7fELF",
    "demo-1.0.data/purelib/pure.py": b"",
    "demo-1.0.data/platlib/plat.so": b"",
    "demo-1.0.data/scripts/given": b"#!python -E\nimport demo\ndemo.main()\n",
    "demo-1.0.data/headers/demo.h": b"",
    "demo-1.0.data/data/share/demo.txt": b"data\n",
    "demo-1.0.dist-info/entry_points.txt": SCRIPTS,
}
INFO = "demo-1.0.dist-info"


def opened(data: bytes, name: str = "") -> wheels.Wheel:
    name = name or file_name()
    with wheels.named(name):
        found = wheels.Wheel(io.BytesIO(data), name)
        found.validate_record()
        return found


def written(folder: Path, data: bytes, name: str = "demo", version: str = "1.0") -> Path:
    path = folder / file_name(name, version)
    path.write_bytes(data)
    return path


def paths(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_wheel_becomes_an_overlay(tmp_path: Path) -> None:
    data = wheel(FILES, modes={"demo/native.so": 0o100755})
    found = opened(data)
    found.unpack(tmp_path, "/usr/bin/env python3")
    assert paths(tmp_path) == sorted({*found.files, *found.scripts})
    assert {"bin/demo-tool", "bin/given", "include/demo/demo.h", "share/demo.txt", "lib/pure.py"} < set(paths(tmp_path))
    executable = {name for name in paths(tmp_path) if os.stat(tmp_path / name).st_mode & stat.S_IXUSR}
    assert executable == {"bin/demo-tool", "bin/given", "bin/other", "bin/win", "lib/demo/native.so"}
    assert (tmp_path / "bin/given").read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert (tmp_path / "bin/other").read_text().startswith("#!/usr/bin/env python3\n")


def test_the_scripts_run_and_record_is_the_installed_one(tmp_path: Path) -> None:
    opened(wheel(FILES)).unpack(tmp_path, sys.executable)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([tmp_path / "bin/demo-tool"], env=environment, capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"it works\n", 5)
    record = (tmp_path / "lib" / INFO / "RECORD").read_text().splitlines()
    assert {os.path.normpath(f"lib/{line.split(',')[0]}") for line in record} == set(paths(tmp_path))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"record": INFO + "/RECORD,,\n"}, "RECORD has no SHA-256 for demo/__init__.py"),
        ({"metadata": "Wheel-Version: 2.0\n"}, "version 1 of the wheel format"),
        ({"metadata": "Wheel-Version: 11.0\n"}, "version 1 of the wheel format"),
        ({"info": "other-1.0.dist-info"}, "exactly one .dist-info"),
        ({"extra": [("demo/more.py", b"")]}, "RECORD has no SHA-256 for demo/more.py"),
        ({"extra": [("demo/__init__.py", b"")]}, "or it has the file twice"),
        ({"extra": [("../out.py", b"")]}, "not plain|path"),
        ({"extra": [("/tmp/escaped", b"")]}, "not plain|path"),
        ({"extra": [("a\\b", b"")]}, "not plain"),
        ({"extra": [("a\nb", b"")]}, "not plain"),
        ({"modes": {"demo/__init__.py": 0o120777}}, "not a regular file"),
        ({"modes": {"demo/__init__.py": 0o020644}}, "not a regular file"),
        ({"record": INFO + '/RECORD,,\n"a\n'}, "not a valid wheel|RECORD"),
    ],
)
def test_a_bad_wheel_is_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(IntegrityError, match=f"demo-1.0-py3-none-any.whl.*(?:{reason})"):
        opened(wheel(FILES, **options))


@pytest.mark.parametrize("algorithm", ["md5", "sha1"])
def test_a_weak_digest_is_none(algorithm: str) -> None:
    files = {"x.py": b"x"}
    info = {f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n", f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: demo\n"}
    record = "".join(record_line(name, content, algorithm) for name, content in {**files, **info}.items())
    with pytest.raises(IntegrityError, match="no SHA-256"):
        opened(wheel(files, record=record + f"{INFO}/RECORD,,\n"))


@pytest.mark.parametrize(
    "name", ["demo-1.0.data/scripts/../../out", "demo-1.0.data/sbin/tool", "a//b", "./a", "a/../../out"]
)
def test_no_name_leads_out(name: str) -> None:
    with pytest.raises(IntegrityError):
        opened(wheel({name: b"x"}))


def test_metadata_of_another_distribution() -> None:
    with pytest.raises(IntegrityError, match="doesn't match wheel filename"):
        opened(wheel({}, info="other-1.0.dist-info"))


def test_record_lists_only_what_is_there() -> None:
    lines = [record_line(name, content) for name, content in FILES.items()]
    with zipfile.ZipFile(io.BytesIO(wheel(FILES))) as archive:
        record = archive.read(f"{INFO}/RECORD").decode()
    with pytest.raises(IntegrityError, match=r"lists gone\.py, which is not in the archive"):
        opened(wheel(FILES, record=record + record_line("gone.py", b"")))
    assert lines[0] in record
    with pytest.raises(IntegrityError, match=r"demo/__init__\.py didn't match RECORD"):
        opened(wheel({**FILES, "demo/__init__.py": b"answer = 43\n"}, record=record))


@pytest.mark.parametrize(
    "line", ["../x = a:b", "x = a", "x = a:b; evil", "x = a b:c", "- = a:b", ".. = a:b", "a/b = a:b", "no equals"]
)
def test_what_can_be_no_script(line: str) -> None:
    with pytest.raises(IntegrityError, match=r"script|valid wheel"):
        opened(wheel({f"{INFO}/entry_points.txt": f"[console_scripts]\n{line}\n".encode()}))


@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\x05\x06" + b"\xff" * 18, wheel(FILES)[:-30]])
def test_what_is_no_archive(data: bytes) -> None:
    with pytest.raises(IntegrityError, match="not a valid wheel"):
        opened(data)


@pytest.mark.thorough
def test_a_large_file_is_read_whole() -> None:
    content = os.urandom(9 * 1024 * 1024)
    assert content in [stream.read() for _, stream, _ in opened(wheel({"demo/large": content})).get_contents()]


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_no_changed_byte_makes_anything_but_the_same_files_or_an_error(position: int, value: int) -> None:
    content = b"answer = 42\n" * 20
    data = bytearray(wheel({"demo/__init__.py": content}))
    data[position % len(data)] = value
    try:
        found = {record[0]: stream.read() for record, stream, _ in opened(bytes(data)).get_contents()}
    except IntegrityError:
        return
    assert {name: text for name, text in found.items() if "demo/" in name} == {"demo/__init__.py": content}


def test_wheels_together(tmp_path: Path) -> None:
    one = written(tmp_path, wheel({"space/__init__.py": b"same", "space/one.py": b"1"}, "one"), "one")
    two = written(tmp_path, wheel({"space/__init__.py": b"same", "space/two.py": b"2"}, "two"), "two")
    (_, first), (_, second) = wheels.added([one, two])
    assert {"lib/space/__init__.py", "lib/space/one.py"} < set(first)
    assert {path for path in second if "dist-info" not in path} == {"lib/space/two.py"}
    other = written(tmp_path, wheel({"space/__init__.py": b"else"}, "three"), "three")
    with pytest.raises(UsageError, match=r"both contain lib/space/__init__.py, with different content"):
        list(wheels.added([one, other]))
    tools = {"demo-1.0.data/scripts/mpicc": b"1", "demo-1.0.data/scripts/mpiCC": b"2"}
    assert wheels.programs([written(tmp_path, wheel(tools))]) == {"mpicc", "mpiCC"}


@pytest.mark.parametrize("files", [({"demo": b"a file"}, {"demo/x.py": b"x"}), ({"demo/x.py": b"x"}, {"demo": b"x"})])
def test_a_file_of_one_wheel_is_no_folder_of_another(tmp_path: Path, files: tuple[dict[str, bytes], ...]) -> None:
    found = [written(tmp_path, wheel(content, name), name) for name, content in zip("ab", files, strict=True)]
    with pytest.raises(UsageError, match="lib/demo is both a file and a folder"):
        list(wheels.added(found))


_WHEEL = """
import io, struct
from deployer.contract.base.errors import IntegrityError
from deployer.connected.rootfs.wheels import Wheel, named
entry = struct.pack("<4s6H3L5H2L", b"PK\\1\\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
names = entry * (int(sys.argv[1]) // len(entry))
end = struct.pack("<4s4H2LH", b"PK\\5\\6", 0, 0, 65535, 65535, len(names), 0, 0)
try:
    with named("demo-1.0-py3-none-any.whl"):
        Wheel(io.BytesIO(names + end), "demo-1.0-py3-none-any.whl")
except IntegrityError as error:
    print(error.message)
"""


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (40 * 2**20, "its list of files has"),
        pytest.param(7 * 2**20, "exactly one", marks=pytest.mark.thorough),
    ],
)
def test_a_wheel_with_millions_of_files(size: int, reason: str) -> None:
    used, text = peak(_WHEEL, size)
    assert reason in text
    assert used < LIMIT
