import os
import socket
import stat
import time

import pytest

from deployer.site.storage import unfinished


def dead_pid():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def make(parent, name, age=0.0):
    path = os.path.join(str(parent), name)
    os.makedirs(os.path.join(path, "rootfs", "bin"))
    os.chmod(os.path.join(path, "rootfs", "bin"), 0o500)
    for where in (os.path.join(path, "rootfs"), path):
        os.utime(where, (time.time() - age, time.time() - age))
    return path


def test_a_folder_is_there_for_the_block_and_its_owner_lives(tmp_path):
    with unfinished.folder(str(tmp_path)) as path, unfinished.folder(str(tmp_path)) as other:
        assert os.path.isdir(path)
        assert path != other
        assert unfinished.stale(str(tmp_path)) == []
    assert os.listdir(str(tmp_path)) == []


def test_one_that_was_renamed_is_kept(tmp_path):
    with unfinished.folder(str(tmp_path)) as path:
        os.rename(path, str(tmp_path / "image"))
    assert os.listdir(str(tmp_path)) == ["image"]


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o2700), (0o002, 0o2775), (0o022, 0o2755)])
def test_the_umask_and_the_parents_group_hold(tmp_path, umask, mode):
    os.chmod(str(tmp_path), 0o2775)
    before = os.umask(umask)
    try:
        with unfinished.folder(str(tmp_path)) as path:
            assert stat.S_IMODE(os.stat(path).st_mode) == mode
    finally:
        os.umask(before)


def test_what_a_dead_process_left_is_reaped_at_once(tmp_path):
    dead = make(tmp_path, ".installing-%s-%d-77-abcd" % (socket.gethostname(), dead_pid()))
    assert unfinished.stale(str(tmp_path)) == [dead]
    unfinished.reap(str(tmp_path))
    assert os.listdir(str(tmp_path)) == []


def test_a_later_process_with_the_same_number_is_another(tmp_path):
    make(tmp_path, ".removing-%s-%d-1-abcd" % (socket.gethostname(), os.getpid()))
    unfinished.reap(str(tmp_path))
    assert os.listdir(str(tmp_path)) == []


@pytest.mark.parametrize("name", [".installing-another-host-with-dashes-1-1-ab", ".installing-xyz"])
def test_what_cannot_be_asked_is_reaped_when_it_is_old(tmp_path, name):
    make(tmp_path, name, age=unfinished.STALE - 60)
    unfinished.reap(str(tmp_path))
    assert os.listdir(str(tmp_path)) == [name]
    old = make(tmp_path / "old", name, age=unfinished.STALE + 60)
    unfinished.reap(os.path.dirname(old))
    assert os.listdir(str(tmp_path / "old")) == []


def test_other_names_are_not_touched(tmp_path):
    make(tmp_path, "0123abcd", age=10 * unfinished.STALE)
    unfinished.reap(str(tmp_path))
    unfinished.reap(str(tmp_path / "not there"))
    assert os.listdir(str(tmp_path)) == ["0123abcd"]


def test_discard_is_content_when_another_was_first(tmp_path):
    path = make(tmp_path, "image")
    unfinished.discard(path)
    unfinished.discard(path)
    assert os.listdir(str(tmp_path)) == []
