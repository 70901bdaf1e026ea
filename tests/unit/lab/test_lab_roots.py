"""Roots that mmdebstrap makes, with a stand-in for it, and the pins of the lab's Apptainer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

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
    program = tmp_path / "mmdebstrap"
    program.write_text(MMDEBSTRAP)
    program.chmod(0o755)
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
