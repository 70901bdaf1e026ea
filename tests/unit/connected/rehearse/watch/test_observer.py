"""The observer of a node keeps within its limits, and reports what it did not see."""

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.rehearse.watch import observer, syscalls, tracee
from deployer.connected.rehearse.watch.observer import NodeObserver, ObservationFile
from deployer.connected.rehearse.watch.tracee import Tracee
from deployer.contract.rehearsal import observation


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeObserver]:
    monkeypatch.setattr(syscalls, "SOCKET", f"\0deployer-test-observer-{os.getpid()}")
    monkeypatch.setattr(observer, "_TICK", 0.01)
    made = NodeObserver(str(tmp_path), "node1", [], [], names=False)
    yield made
    made.close()


def used(folder: Path) -> Any:
    return json.loads((folder / "node1.used.json").read_text())


def test_a_flood_does_not_hide_what_the_network_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_MOST", 5)
    monkeypatch.setattr(observer, "_MOST_BYTES", 2000)
    notes = ObservationFile(str(tmp_path / "node1.network.jsonl"), "node1")
    for number in range(20):
        notes.add(observation.WRITE, f"/no/{number}", {"command": "x" * 5000})
    notes.add(observation.HOST, "late.example", {})
    notes.close()
    assert not notes.whole
    data = (tmp_path / "node1.network.jsonl").read_bytes()
    found = observation.read([("node1.network.jsonl", data)]).observations
    assert [item.kind for item in found].count(observation.MORE) == 1
    assert found[-1].what == "late.example"
    assert len(data) < 4000


@pytest.mark.parametrize(
    ("times", "main", "later", "lines"), [(3, "yes", 0, 2), (1, "yes", 0, 1), (3, "", 0, 1), (3, "yes", 60, 1)]
)
def test_what_the_main_thread_asks_for_again_and_again_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, main: str, later: int, lines: int
) -> None:
    notes = ObservationFile(str(tmp_path / "node1.network.jsonl"), "node1")
    for _ in range(times):
        notes.add(observation.ADDRESS, "192.0.2.7 port 9", {"main": main})
    now = time.monotonic()
    monkeypatch.setattr(observer.time, "monotonic", lambda: now + later)
    notes.add_still_asked()
    notes.close()
    data = (tmp_path / "node1.network.jsonl").read_bytes()
    found = observation.read([("node1.network.jsonl", data)]).observations
    assert [item.about.get("still") for item in found] == [None, "yes"][:lines]


def test_what_fails_is_reported_and_the_observer_goes_on(
    watching: NodeObserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        watching.end()
        raise RuntimeError

    monkeypatch.setattr(watching.usage, "look", lambda last=False: None if last else fail())
    watching.serve()
    assert used(tmp_path)["whole"] is False
    assert "the observer failed: RuntimeError" in (tmp_path / "node1.network.jsonl").read_text()


@pytest.mark.thorough
def test_an_observer_that_saw_everything_says_so(watching: NodeObserver, tmp_path: Path) -> None:
    watching.end()
    watching.serve()
    assert used(tmp_path)["whole"] is True


@pytest.mark.thorough
def test_a_program_without_a_filter_makes_the_account_incomplete(watching: NodeObserver, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(syscalls.SOCKET)
        watching._accept()
        other.sendall(b"another program observes it already")
        (connection, _) = next(iter(watching._waits.values()))
        watching._greet(connection)
    watching.end()
    watching.serve()
    assert used(tmp_path)["whole"] is False
    assert "are not observed: another program observes it already" in (tmp_path / "node1.network.jsonl").read_text()


def test_the_list_of_files_tells_whether_all_are_in_it(watching: NodeObserver, tmp_path: Path) -> None:
    watching.reach.opened.update(["/one", "/two\nlines"])
    watching.end()
    watching.serve()
    assert (tmp_path / "node1.files").read_text() == "/one\n"
    assert (used(tmp_path)["whole"], used(tmp_path)["all_files_listed"]) == (True, False)


def test_programs_of_a_container_cannot_speak_to_it(watching: NodeObserver, monkeypatch: pytest.MonkeyPatch) -> None:
    class Apart(Tracee):
        def __init__(self, task: int) -> None:
            super().__init__(task)
            self.apart = True

    monkeypatch.setattr(observer, "_MAX_WAITS", 1)
    with monkeypatch.context() as inside, socket.socket(socket.AF_UNIX) as other:
        inside.setattr(observer, "Tracee", Apart)
        other.connect(syscalls.SOCKET)
        watching._accept()
        assert other.recv(1) == b""
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for each in (first, second):
            each.settimeout(5)
            each.connect(syscalls.SOCKET)
            watching._accept()
        assert second.recv(1) == b""
        monkeypatch.setattr(observer.time, "monotonic", lambda: 1e12)
        watching._drop_silent()
        assert first.recv(1) == b""


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["/usr/bin/python3", "-I", "-S", "/deployer/deployer.pyz", "rank"], True),
        (["/usr/bin/python3", "train.py", "/deployer/deployer.pyz"], False),
        (["/usr/bin/python3", "-I", "-S", "-c", "import socket", "/deployer/deployer.pyz"], False),
        (["/app/tool", "/mine/deployer.pyz"], False),
    ],
)
def test_a_word_among_its_arguments_makes_no_program_ours(
    words: list[str], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracee, "_command", lambda _: words)
    assert Tracee(os.getpid()).own == own
