"""What a laptop is: its processor, whether mmdebstrap works there, and how it decompresses frames."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
import zstandard

from deployer.connected.ground import frames, this_machine
from deployer.connected.ground.locked_folder import SSH, LockedFolder
from deployer.contract.base.errors import IntegrityError
from deployer.system import codec
from tests import running


@pytest.mark.parametrize(("told", "kernel"), [("arm64", "aarch64"), ("aarch64", "aarch64"), ("x86_64", "x86_64")])
def test_a_processor_has_the_name_of_linux(monkeypatch: pytest.MonkeyPatch, told: str, kernel: str) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Darwin", "mac", "24", "", told)))
    assert this_machine.machine() == kernel


@pytest.mark.parametrize(
    ("platform", "user", "program", "reason"),
    [
        ("linux", 0, "exit 1", ""),
        ("linux", 1000, "exit 0", ""),
        ("linux", 1000, "echo E: no >&2; exit 25", "mmdebstrap lacks user namespaces: E: no"),
        ("linux", 0, "", "mmdebstrap is not installed"),
        ("darwin", 0, "exit 0", "mmdebstrap needs Linux"),
    ],
)
def test_whether_mmdebstrap_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, user: int, program: str, reason: str
) -> None:
    if program:
        running.program(tmp_path, "mmdebstrap", program)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert this_machine.without_mmdebstrap() == reason


def test_frames_are_decompressed_without_a_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_load_libzstd", lambda: None)
    monkeypatch.setattr(codec, "_load_zstd_module", lambda: None)
    decompress, frame = codec.decompressor("zstd", frames._zstd), zstandard.ZstdCompressor().compress(b"a" * 1000)
    assert bytes(decompress(frame, 1000)) == b"a" * 1000
    for broken, size in ((frame, 999), (frame, 1001), (frame[:-1], 1000), (frame + b"x", 1000), (b"x", 1000)):
        with pytest.raises(IntegrityError):
            decompress(broken, size)


def test_sockets_of_ssh_fit_though_the_folder_for_temporary_files_is_that_of_macos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (tmp_path / "var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T", Path("/tmp")):
        place.mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        with LockedFolder(SSH, this_machine.folder_for_sockets()) as folder:
            assert len(f"{folder}/{'c' * 40}.{'x' * 16}") <= 103  # ssh's %C, and its suffix until the socket listens
