"""Roots that mmdebstrap makes, with a stand-in for it, and the pins of the lab's Apptainer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests import running
from tests.lab import LabError, apptainer, roots

#: Prints an archive if the file ``right`` is there; otherwise the first line of ``wrong``, which it takes out.
MMDEBSTRAP = """\
#!/bin/sh
[ "$1" != --version ] || exec echo mmdebstrap 1
cd "$(dirname "$0")"
[ -s wrong ] || exec tar -c right
head -n 1 wrong >&2; sed -i 1d wrong; exit 1
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the stand-in, whose errors are in ``wrong``."""
    running.program(tmp_path, "mmdebstrap", MMDEBSTRAP)
    (tmp_path / "right").write_text("right")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    roots.root.cache_clear()
    return tmp_path


@pytest.mark.thorough
def test_a_download_that_fails_is_tried_again(stand_in: Path) -> None:
    (stand_in / "wrong").write_text("E: Failed to fetch x\nE: Failed to fetch y\n")
    assert (roots.root("sid", ("x",), "x") / "right").read_text() == "right"


@pytest.mark.thorough
def test_after_three_tries_the_last_words_are_shown(stand_in: Path) -> None:
    (stand_in / "wrong").write_text("E: one\nE: two\nE: three\nE: four\n")
    with pytest.raises(LabError, match="mmdebstrap cannot make sid: E: three"):
        roots.root("sid", ("x",), "x")


@pytest.mark.thorough
def test_a_version_that_the_mirror_lacks_is_an_error_at_once(stand_in: Path) -> None:
    (stand_in / "wrong").write_text("E: Version '1' for 'apptainer' was not found\nE: two\n")
    with pytest.raises(LabError, match=r"cannot get Apptainer 1\.\S+ of Debian's sid: .*was not found") as caught:
        apptainer.pinned_root()
    assert "change the pins" in caught.value.hint
    assert (stand_in / "wrong").read_text() == "E: two\n"


def test_another_program_is_not_used(tmp_path: Path) -> None:
    for name in apptainer.PINS:
        path = tmp_path / "usr" / name
        path.parent.mkdir(parents=True)
        path.write_text("other")
    with pytest.raises(LabError, match=r"of Apptainer \S+ has the SHA-256 d9298a10\w+, not the pinned"):
        apptainer.check(tmp_path)


@pytest.mark.needs("root")
def test_a_program_in_a_root_has_devices_and_folders(tmp_path: Path) -> None:
    """Without /dev/null, autoconf and the MPI-IO of Open MPI end with errors that say nothing of it."""
    for name in ("dev", "mnt", "usr"):
        (tmp_path / name).mkdir()
    for name in ("bin", "lib", "lib64"):
        (tmp_path / name).symlink_to(f"usr/{name}")
    out = tmp_path / "out"
    out.mkdir()
    script = "exec 3</dev/urandom && echo none >/dev/null && echo some >/mnt/made"
    roots.run_inside(tmp_path, ["sh", "-c", script], [(Path("/usr"), "/usr"), (out, "/mnt")])
    assert (out / "made").read_text() == "some\n"
    assert not any((tmp_path / "dev").iterdir())
