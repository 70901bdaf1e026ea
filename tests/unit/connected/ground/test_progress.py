import contextlib
import io
import itertools
import sys
import threading
from pathlib import Path

import pytest

from deployer.connected.ground import caches, progress
from deployer.contract.base import dialogue
from deployer.contract.base.errors import TransferError
from deployer.system import terminal


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> _Screen:
    """Make standard error a terminal. In a fixture it would last only until pytest's capture resumes."""
    made = _Screen()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def test_a_bar_of_several_downloads_has_rate_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal_of(monkeypatch)
    clock = itertools.count(100.0)  # a second per look
    monkeypatch.setattr("tqdm.std.time", lambda: next(clock))
    with progress.parts_bar("pull") as tell:
        tell("a", 0, 4000)
        tell("b", 500, 1000)
        tell("a", 2000, 4000)
    said = screen.getvalue()
    assert "pull" in said
    assert "B/s" in said
    assert "<" in said  # the remaining time


def test_a_folder_that_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal_of(monkeypatch)
    assert progress.of_folder("fetch", tmp_path, 10, lambda: (tmp_path / "x").write_text("12345")) == 5
    (tmp_path / "link").symlink_to("nowhere")
    assert caches.size(tmp_path) == 5 + len("nowhere")
    assert progress.of_folder("fetch", tmp_path / "gone", 10, lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        progress.of_folder("fetch", tmp_path, None, lambda: 1 // 0)
    assert "fetch" in screen.getvalue()


def test_a_bar_that_begins_later_begins_again_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as shown:
        assert progress.late_far_bar("install", shown) is None
        terminal_of(monkeypatch)
        begun: list[str] = []
        made = progress._tqdm
        monkeypatch.setattr(progress, "_tqdm", lambda what, total: begun.append(what) or made(what, total))
        tell = progress.late_far_bar("install", shown)
        assert tell is not None
        assert begun == []
        tell(1, 2)
        tell(2, 2)
        assert begun == ["install"]
        shown.close()
        tell(1, 2)
        assert begun == ["install"] * 2


def test_nothing_is_shown_without_a_terminal_or_with_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal_of(monkeypatch)
    with terminal.manners(True, False), progress.bar("x", 5) as advance, progress.far_bar("y") as tell:
        advance(5)
        assert tell is None
    assert screen.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.parts_bar("x") as each:
        each("a", 1, 2)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_only_reports_of_progress_are_taken_from_what_a_site_says() -> None:
    seen: list[tuple[int, int]] = []
    hear = dialogue.listener(lambda done, total: seen.append((done, total)))
    assert hear
    assert hear("deployer-progress:5 70")
    for said in ("deployer-progress:5", "deployer-progress:-1 2", "deployer-progress:٣ 4", "x", "deployer-progress: 1"):
        assert not hear(said)
    assert seen == [(5, 70)]
    assert dialogue.listener(None) is None


def test_an_error_of_the_look_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal_of(monkeypatch)
    looked = threading.Event()

    def size() -> int:
        looked.set()
        raise TransferError("the connection broke")

    assert progress.of_size("send", size, 5, lambda: looked.wait(5)) is True
    assert "Traceback" not in screen.getvalue()


def test_the_work_does_not_wait_for_a_look_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal_of(monkeypatch)
    monkeypatch.setattr(progress, "_LAST_LOOK", 0.01)
    looked, goes_on, counted = threading.Event(), threading.Event(), threading.Event()

    def size() -> int:
        looked.set()
        goes_on.wait(5)
        counted.set()
        return 5

    assert progress.of_size("send", size, 5, lambda: looked.wait(5), every=0.001) is True
    assert not counted.is_set()
    goes_on.set()
    assert counted.wait(5)
