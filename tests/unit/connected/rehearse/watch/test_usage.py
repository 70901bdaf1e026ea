import os
import subprocess
import sys
import tempfile
import time

import pytest

from deployer.connected.rehearse.watch import usage
from deployer.connected.rehearse.watch.usage import RankUsage


class Inside(usage.Tracee):
    """A process in a container: of the processes here, those that a test started."""

    def __init__(self, task):
        super().__init__(task)
        self.inside = "DEPLOYER_TEST_INSIDE" in self.command


BUSY = """
import sys, threading, time
DEPLOYER_TEST_INSIDE = bytearray({mib} << 20)
DEPLOYER_TEST_INSIDE[::4096] = b"x" * len(DEPLOYER_TEST_INSIDE[::4096])
def work():
    while True: sum(range(1000))
for _ in range({threads} - 1): threading.Thread(target=work, daemon=True).start()
print(flush=True)
work()
"""


@pytest.fixture
def start(monkeypatch):
    """Return a function that starts a rank's process that uses memory and threads."""
    monkeypatch.setattr(usage, "Tracee", Inside)
    monkeypatch.setattr(usage, "_PERIOD", 0.0)
    monkeypatch.setattr(usage, "_SHARE", 1e9)
    started = []

    def begin(mib, threads, **variables):
        environment = dict(os.environ, **variables)
        code = BUSY.format(mib=mib, threads=threads)
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
        started.append(child)
        child.stdout.readline()
        return child

    yield begin
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.mark.thorough
def test_memory_and_threads_of_each_rank(start):
    measured = RankUsage([])
    start(60, 1, OMPI_COMM_WORLD_RANK="1")
    start(30, 2, PMI_RANK="0", SLURM_PROCID="7")
    for _ in range(4):
        measured.look()
        time.sleep(0.15)
    found = measured.record()
    assert set(measured._peaks) == {0, 1}
    assert 60 <= found["peak_memory"] == -(-measured._peaks[1] // 1024) < 120
    assert ({rank: busy[-1] for rank, busy in measured._busy.items()}, found["threads"]) == ({0: 2, 1: 1}, 2)
    assert found["temporary"] is None


def test_a_short_process_counts_when_it_exits(start):
    measured = RankUsage([])
    child = start(40, 1, PMI_RANK="3")
    measured.look_at_last(child.pid)
    assert 40 <= measured._peaks[3] / 1024 < 100


def test_nothing_that_ran_is_unknown():
    found = RankUsage([]).record()
    assert (found["peak_memory"], found["threads"]) == (None, None)


def test_temporary_files_are_those_that_were_added(tmp_path):
    (tmp_path / "before").write_bytes(b"x" * 100000)
    measured = RankUsage([str(tmp_path)])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "new").write_bytes(b"x" * 50000)
    (tmp_path / "link").symlink_to("/usr")
    os.link(str(tmp_path / "a" / "new"), str(tmp_path / "again"))
    measured.look(last=True)
    (tmp_path / "a" / "new").unlink()
    (tmp_path / "again").unlink()
    measured.look(last=True)
    assert 50000 <= measured.record()["temporary"] < 100000


def test_what_is_mounted_below_a_folder_is_not_temporary():
    """An installed image, if the cache is below /tmp: to count its files took longer than an observer may need."""
    assert os.stat("/dev").st_dev != os.stat("/dev/shm").st_dev
    measured = RankUsage(["/dev"])
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as named:
        named.write(b"x" * 100000)
        named.flush()
        measured.look(last=True)
    assert measured.record()["temporary"] == 0
