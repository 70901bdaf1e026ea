import io
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.contract.base.errors import IntegrityError
from deployer.system import files
from deployer.system.wheel import Wheel, claim
from tests.wheels import file_name, wheel

FILES = {"demo/__init__.py": b"answer = 42\n", "demo/big.bin": bytes(bytearray(range(256))) * 8000}


def opened(data, name=None):
    return Wheel(io.BytesIO(data), name or file_name())


def test_a_good_wheel_is_read():
    found = opened(wheel(FILES))
    assert {file.path: b"".join(found.chunks(file)) for file in found.files if "demo/" in file.path} == {
        "lib/" + name: content for name, content in FILES.items()
    }
    assert "Name: demo" in found.text("METADATA")
    assert found.scripts("python3") == {}
    found.check()


def test_what_the_archive_claims():
    found = claim(io.BytesIO(wheel(FILES)), "x")
    assert found.files == 5 + 1  # and bytecode
    assert found.bytes > sum(map(len, FILES.values()))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"record": "demo-1.0.dist-info/RECORD,,\n"}, "RECORD does not list demo/__init__.py"),
        ({"metadata": "Wheel-Version: 2.0\n"}, "version 1 of the wheel format"),
        ({"info": "other-1.0.dist-info"}, "belongs to another distribution"),
        ({"extra": [("demo/more.py", b"")]}, "RECORD does not list demo/more.py"),
        ({"extra": [("../out.py", b"")]}, "not plain"),
        ({"modes": {"demo/__init__.py": 0o120777}}, "not a regular file"),
    ],
)
def test_a_bad_wheel_is_refused_when_it_is_opened(options, reason):
    with pytest.raises(IntegrityError, match="demo-1.0-py3-none-any.whl: .*" + reason):
        opened(wheel(FILES, **options))


def test_a_file_that_is_not_what_record_says():
    good = wheel(FILES)
    other = wheel(dict(FILES, **{"demo/__init__.py": b"answer = 43\n"}))
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        record = archive.read("demo-1.0.dist-info/RECORD").decode()
    with zipfile.ZipFile(io.BytesIO(other)) as archive:
        assert archive.read("demo/__init__.py") == b"answer = 43\n"
    changed = wheel(dict(FILES, **{"demo/__init__.py": b"answer = 43\n"}), record=record)
    with pytest.raises(IntegrityError, match=r"__init__\.py does not have the digest of its RECORD"):
        opened(changed).check()


def test_an_encrypted_or_oddly_packed_archive_is_refused():
    stream = io.BytesIO(wheel(FILES))
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("demo/more.py", b"x")
    with pytest.raises(IntegrityError, match="a compression that wheels do not allow"):
        opened(stream.getvalue())


@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\x05\x06" + b"\xff" * 18, wheel(FILES)[:-30]])
def test_what_is_no_archive(data):
    for read in (opened, lambda data: claim(io.BytesIO(data), "x.whl")):
        with pytest.raises(IntegrityError, match="not a complete wheel"):
            read(data)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_no_changed_byte_makes_anything_but_the_same_files_or_an_error(position, value):
    files = {"demo/__init__.py": b"answer = 42\n" * 20}
    data = bytearray(wheel(files))
    data[position % len(data)] = value
    try:
        found = opened(bytes(data))
        found.check()
    except IntegrityError:
        return
    assert {file.path: b"".join(found.chunks(file)) for file in found.files if "demo/" in file.path} == {
        "lib/demo/__init__.py": files["demo/__init__.py"]
    }


def test_a_window_is_a_file_of_its_own(tmp_path):
    path = tmp_path / "whole"
    path.write_bytes(b"before" + b"0123456789" + b"after")
    with open(str(path), "rb") as whole, io.BufferedReader(files.Window(whole.fileno(), 6, 10)) as window:
        assert window.read() == b"0123456789"
        assert window.seek(-3, 2) == 7
        assert window.read(9) == b"789"
        assert window.seek(2) == 2
        assert window.read(2) == b"23"
        with pytest.raises(ValueError, match="before the start"):
            window.seek(-11, 2)
