import errno
import os
from collections import namedtuple

import pytest

from deployer.contract.base.errors import SpaceError
from deployer.site.storage import space

State = namedtuple("State", "f_frsize f_bavail f_files f_favail")


def test_bytes_and_inodes(tmp_path, monkeypatch):
    monkeypatch.setattr(space.os, "statvfs", lambda folder: State(4096, 10, 10, 10))
    space.check(str(tmp_path), 1000, 10)
    with pytest.raises(SpaceError, match=r"41.0 kB free; 43.0 kB are needed: 2.0 kB are missing"):
        space.check(str(tmp_path), 10 * 4096 - 2048, 2)  # blocks that are half full count as well
    with pytest.raises(SpaceError, match="inodes"):
        space.check(str(tmp_path), 1000, 11)


def test_a_file_system_without_a_count_of_inodes(tmp_path, monkeypatch):
    monkeypatch.setattr(space.os, "statvfs", lambda folder: State(4096, 10**6, 0, 0))
    space.check(str(tmp_path), 1000, 11)


@pytest.mark.parametrize(("number", "refused"), [(errno.EDQUOT, True), (errno.ENOSPC, True), (errno.EOPNOTSUPP, False)])
def test_a_quota_is_asked_by_a_reservation(tmp_path, monkeypatch, number, refused):
    monkeypatch.setattr(space, "_file_system", lambda folder: "xfs")
    monkeypatch.setattr(space, "reserve", lambda descriptor, size: number)
    if refused:
        with pytest.raises(SpaceError, match="quota"):
            space.check(str(tmp_path), 1000, 1)
    else:
        space.check(str(tmp_path), 1000, 1)
    assert os.listdir(str(tmp_path)) == []


def test_a_reservation_writes_nothing(tmp_path):
    with open(str(tmp_path / "f"), "wb") as stream:
        assert space.reserve(stream.fileno(), 1 << 20) in (0, errno.EOPNOTSUPP)
        assert os.fstat(stream.fileno()).st_size == 0
        assert space.reserve(stream.fileno(), 1 << 60) in (errno.ENOSPC, errno.EFBIG, errno.EOPNOTSUPP)


def test_the_file_system_is_known():
    assert space._file_system("/proc") == "proc"


def test_human():
    assert [space.human(n) for n in (5, 1500, 2500000, 3 * 10**12)] == ["5 B", "1.5 kB", "2.5 MB", "3000.0 GB"]
