"""Which processes a lab takes for its own, and its lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.lab import state
from tests.lab.errors import LabError
from tests.lab.state import ProcessId, StateDir, default_state_dir, load_process, locked, parse_stat, save_process


def _own_process() -> ProcessId:
    stat = state.read_stat(os.getpid())
    return ProcessId(stat.pid, stat.start)


def test_stat_of_a_process_whose_name_holds_brackets_and_blanks() -> None:
    fields = ["S", *["0"] * 18, "4711", "0"]
    stat = parse_stat("12 (a) R 1 (b)) " + " ".join(fields))
    assert (stat.pid, stat.state, stat.start) == (12, "S", 4711)


def test_own_process_is_alive() -> None:
    assert _own_process().alive()


def test_same_pid_with_another_start_time_is_another_process() -> None:
    me = _own_process()
    assert not ProcessId(me.pid, me.start + 1).alive()


def test_a_process_that_is_not_ours_is_never_killed() -> None:
    with subprocess.Popen(["sleep", "30"]) as stranger:
        stat = state.read_stat(stranger.pid)
        ProcessId(stranger.pid, stat.start + 1).kill(timeout=1)
        assert stranger.poll() is None
        ours = ProcessId(stranger.pid, stat.start)
        ours.kill(timeout=10)  # a zombie, which it is until we wait for it, counts as gone
        assert not ours.alive()
        assert stranger.wait(timeout=10) == -9


def test_record_of_a_living_process_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "nodes/cn1/process.json"
    save_process(file, _own_process())
    assert load_process(file) == _own_process()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": "x", "start": 1}', '{"pid": 1'])
def test_unreadable_record_means_no_process(tmp_path: Path, text: str) -> None:
    file = tmp_path / "process.json"
    file.write_text(text)
    assert load_process(file) is None


def test_record_of_a_dead_process_means_no_process(tmp_path: Path) -> None:
    file = tmp_path / "process.json"
    file.write_text(json.dumps({"pid": os.getpid(), "start": 1}))
    assert load_process(file) is None


def test_state_dir_follows_xdg() -> None:
    assert default_state_dir("a-1", {"HOME": "/h"}) == Path("/h/.local/state/deployer/lab/a-1")
    assert default_state_dir("a", {"HOME": "/h", "XDG_STATE_HOME": "/s"}) == Path("/s/deployer/lab/a")


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-a", "a" * 32])
def test_bad_lab_names_are_refused(name: str) -> None:
    with pytest.raises(LabError, match="not a lab name"):
        default_state_dir(name, {})


def test_unchanged_file_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "folder/file"
    assert state.write_atomically(file, "one", mode=0o600)
    inode = file.stat().st_ino
    assert not state.write_atomically(file, "one")
    assert file.stat().st_ino == inode
    assert state.write_atomically(file, "two", mode=0o640)
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("two", 0o640)
    assert os.listdir(file.parent) == ["file"]


def test_lock_is_exclusive_and_free_again(tmp_path: Path) -> None:
    lock = StateDir(tmp_path).lock_file
    with locked(lock), pytest.raises(LabError, match="another command holds"), locked(lock, wait=0.1):
        pass
    with locked(lock, wait=0.1):
        pass


def test_lock_ends_with_a_killed_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = "import fcntl,sys,time; f=open(sys.argv[1],'a'); fcntl.flock(f,2); print('held',flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        with locked(lock, wait=5):
            pass


def test_waiting_for_a_lock_whose_folder_is_purged(tmp_path: Path) -> None:
    """The one that waited must not hold a lock file that nobody else sees."""
    lock = tmp_path / "lab/lock"
    seen = []

    def wait() -> None:
        with locked(lock, wait=10):
            seen.append(lock.exists())

    with locked(lock):
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.1)
        lock.unlink()
        lock.parent.rmdir()
    waiter.join(10)
    assert seen == [True]
