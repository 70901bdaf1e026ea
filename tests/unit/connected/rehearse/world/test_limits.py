"""What a rehearsal may use of this machine: nine tenths of what was free, and a number of processes."""

import os

import pytest

from deployer.connected.rehearse.world import limits
from deployer.connected.rehearse.world.limits import LaptopLimit

GIB = 1024**3


@pytest.mark.parametrize(
    ("memory", "space", "inodes", "tasks", "said"),
    [
        (11, 11, 101, 100, ""),
        (11, 9, 101, 100, "it filled the disk"),
        (11, 11, 99, 100, "it filled the disk with small files"),
        (9, 11, 101, 100, "less than a tenth of the memory"),
        (11, 11, 101, 101, "it started more than 100 processes"),
    ],
)
def test_what_is_used_up_ends_the_rehearsal(memory, space, inodes, tasks, said, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_memory", lambda: 100 * GIB)
    monkeypatch.setattr(LaptopLimit, "_space", lambda _: (100 * GIB, 1000))
    limit = LaptopLimit(str(tmp_path), 100)
    monkeypatch.setattr(limits, "_memory", lambda: memory * GIB)
    monkeypatch.setattr(LaptopLimit, "_space", lambda _: (space * GIB, inodes))
    monkeypatch.setattr(limits, "_tasks", lambda: tasks)
    assert limit.reached().startswith(said)
    assert bool(limit.reached()) is bool(said)


def test_this_machine_is_measured(tmp_path):
    assert limits._memory() > GIB // 4
    assert limits._tasks() >= len([name for name in os.listdir("/proc") if name.isdigit()]) // 2
    assert LaptopLimit(str(tmp_path), 10**9).reached() == ""
