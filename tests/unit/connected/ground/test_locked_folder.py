"""Folders that a killed process leaves are removed by the next; those of the living and of others stay."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from deployer.connected.ground import locked_folder

HOLD = """
import sys, time
from deployer.connected.ground import locked_folder
with locked_folder.LockedFolder(locked_folder.SSH) as name:
    print(name, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_private_and_gone_at_the_end(temporary: Path) -> None:
    with locked_folder.LockedFolder(locked_folder.PARTS) as name:
        assert os.stat(name).st_mode & 0o777 == 0o700
        locked_folder.reap(temporary)  # its own lock holds
        assert Path(name).is_dir()
    assert list(temporary.iterdir()) == []


def test_a_killed_process_leaves_nothing_for_long(temporary: Path) -> None:
    env = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=env) as process:
        left = Path(process.stdout.readline().strip())
        (left / "socket").write_text("")
        locked_folder.reap(temporary)
        assert left.is_dir()  # it lives
        process.send_signal(signal.SIGKILL)
    assert left.is_dir()
    with locked_folder.LockedFolder(locked_folder.SSH) as name:
        assert [path.name for path in temporary.iterdir()] == [Path(name).name]


def test_what_is_not_ours_is_left_alone(temporary: Path) -> None:
    mine = temporary / "deployer-backup1"
    unlocked = temporary / "deployer-ssh-aaaaaaaa"
    elsewhere = temporary / "elsewhere"
    for folder in (mine, unlocked, elsewhere):
        folder.mkdir()
    (elsewhere / "lock").touch()
    link = temporary / "deployer-ssh-bbbbbbbb"
    link.symlink_to(elsewhere)
    trap = temporary / "deployer-ssh-cccccccc"
    trap.mkdir()
    os.mkfifo(trap / "lock")  # opening it must not wait for a reader
    locked_folder.reap(temporary)
    assert mine.is_dir()
    assert unlocked.is_dir()
    assert (elsewhere / "lock").is_file()
    old = time.time() - 2 * 24 * 3600
    os.utime(unlocked, (old, old))
    locked_folder.reap(temporary)
    assert not unlocked.exists()
