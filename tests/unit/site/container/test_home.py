"""The home of a job or process: its own, made anew, closed to others, and gone after the end."""

import os
import signal
import subprocess
import sys
import time

import pytest

from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.contract.base.shell import argv
from deployer.site.container import container, home
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.run import exec as execs
from deployer.site.run import run
from deployer.site.run.prepare.request import RunRequest
from deployer.system import afterwards, process
from tests import running as made
from tests.others import NOBODY, somebody_else

REQUEST = RunRequest("hello")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a place like /tmp: everybody can write there, and remove what is their own."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(home, "BEGIN", f"{folder}/deployer-home-")
    return folder


@pytest.fixture
def programs(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    made.program(folder, "ch-run", "exit 0")
    made.program(folder, "python3", "exit 0")


def environment(pid):
    with open("/proc/%d/environ" % pid, "rb") as stream:
        return stream.read()


def mine(place, name):
    return "%s/deployer-home-%d-%s" % (place, os.getuid(), name)


def test_a_home_is_made_closed_whatever_the_umask(place):
    before = os.umask(0)
    try:
        home.make(mine(place, "a"))
    finally:
        os.umask(before)
    assert os.stat(mine(place, "a")).st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("kind", ["folder", "file", "link", "lost link"])
def test_a_home_that_is_there_already_is_not_taken(place, tmp_path, kind):
    path, other = mine(place, "a"), tmp_path / "other"
    other.mkdir()
    if kind == "folder":
        os.mkdir(path)
    elif kind == "file":
        open(path, "w").close()
    else:
        os.symlink(str(other if kind == "link" else tmp_path / "nothing"), path)
    with pytest.raises(DeployerError, match=r"cannot make .*: File exists"):
        home.make(path)
    assert os.listdir(str(other)) == []


def old(path):
    long_ago = time.time() - 2 * home._STALE
    os.utime(path, (long_ago, long_ago))


def test_what_dead_jobs_left_is_removed_and_nothing_else(place):
    dead, young, alive = (mine(place, name) for name in ("dead", "young", "alive"))
    for path in (dead, young, alive):
        home.make(path)
    os.mkdir(os.path.join(dead, "closed"), 0o500)
    user = subprocess.Popen(["sleep", "60"], env={"HOME": alive, "PATH": os.environ["PATH"]})
    try:
        while not environment(user.pid):  # Popen returns a moment before the kernel shows it
            time.sleep(0.001)
        for path in (dead, alive):
            old(path)
        home.make(mine(place, "new"))
        assert [os.path.isdir(path) for path in (dead, young, alive)] == [False, True, True]
    finally:
        user.kill()
        user.wait()
    home.reap()
    assert not os.path.exists(alive)


def test_the_home_of_a_job_that_has_ended_is_removed_by_the_next_job_on_the_node(place, tmp_path):
    """Its steps were killed, so nothing of it could remove it."""
    ended, active = (mine(place, name) for name in ("ended", "active"))
    for path in (ended, active):
        home.make(path, str(tmp_path / os.path.basename(path)))
    home.make(mine(place, "new"), "", lambda job: job == str(tmp_path / os.path.basename(ended)))
    assert [os.path.isdir(path) for path in (ended, active)] == [False, True]


def test_the_home_of_a_process_that_ended_is_removed_by_the_next_start(place):
    ended = subprocess.Popen(["true"])
    start = afterwards.began(ended.pid)
    ended.wait()
    gone = mine(place, "a-%d.%s" % (ended.pid, start))
    living = mine(place, "b-%d.%s" % (os.getpid(), afterwards.began(os.getpid())))
    for path in (gone, living):
        os.mkdir(path, 0o700)
    home.reap()
    assert [os.path.isdir(path) for path in (gone, living)] == [False, True]


def test_a_folder_of_another_user_with_a_name_of_ours_is_left_alone(place, tmp_path):
    theirs, link = mine(place, "theirs"), mine(place, "link")
    os.mkdir(theirs)
    if os.geteuid() == 0:
        os.chown(theirs, NOBODY, NOBODY)
        old(theirs)
    kept = tmp_path / "kept"
    kept.mkdir()
    os.symlink(str(kept), link)
    os.utime(link, (0, 0), follow_symlinks=False)
    home.reap()
    assert os.path.isdir(theirs)
    assert kept.is_dir()


@pytest.mark.thorough
@pytest.mark.parametrize("own", [True, False])
def test_the_home_of_a_process_goes_with_it_however_it_ends(place, own):
    """``own``: by a signal that cannot be caught; else by its own exit, as another program."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from deployer.site.container import home\n"
        "home.BEGIN = sys.argv[2]\n"
        "path = home.for_process()\n"
        "os.execvp('sh', ['sh', '-c', 'touch $0/x; echo $$ $0; read -r _', path])\n"
    )
    words = [sys.executable, "-c", code, os.getcwd(), home.BEGIN]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pid, path = started.stdout.readline().decode().split()
    assert int(pid) == started.pid
    assert os.path.exists(path + "/x")
    if own:
        started.kill()
    started.stdin.close()
    # Nobody but the process itself keeps the pipe open: a shell's $(...) would wait for it.
    assert started.stdout.read() == b""
    started.stdout.close()
    assert started.wait() in (0, 1, -signal.SIGKILL)
    until = time.time() + 20
    while os.path.exists(path) and time.time() < until:
        time.sleep(0.02)
    assert not os.path.exists(path)


def test_a_process_that_is_no_child_is_awaited():
    started = subprocess.Popen(["sleep", "0.3"])
    afterwards._await(started.pid, afterwards.began(started.pid))
    assert started.wait(5) == 0


# --- the home that the user names ---


def test_a_chosen_home_is_the_users_alone(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir(0o755)
    assert home.check_chosen(str(folder)) == str(folder)
    for mode in (0o775, 0o777, 0o1777):
        folder.chmod(mode)
        with pytest.raises(UsageError, match="others can write to"):
            home.check_chosen(str(folder))
    with pytest.raises(UsageError, match="there is no folder"):
        home.check_chosen(str(tmp_path / "none"))


def test_a_chosen_home_of_another_user_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    folder = tmp_path / "home"
    folder.mkdir(0o755)
    with somebody_else(0):
        os.chown(str(folder), NOBODY, NOBODY)
        with pytest.raises(UsageError, match="others can write to"):
            home.check_chosen(str(folder))


def test_a_job_with_a_chosen_home(tmp_path, programs):
    chosen = tmp_path / "mine"
    chosen.mkdir(0o700)
    store = made.store(tmp_path / "root")
    request = REQUEST._replace(home=container.Home(str(chosen), True))
    with pytest.raises(Refused, match="has no /deployer/home"):
        run.prepare(store, request)
    os.makedirs(store.installed()[0].rootfs + "/deployer/home")
    text = run.show_script(run.prepare(store, request))
    assert f"--bind={chosen}:/deployer/home\n" in text
    assert "--set-env=HOME=/deployer/home\n" in text
    assert '--set-env=TMPDIR="$home"\n' in text
    assert "PYTHONNOUSERSITE" not in text


def test_exec_has_a_home_that_is_made_for_it(tmp_path, programs, place, monkeypatch):
    seen = []

    def replaced(words, environment):
        seen.extend(words)
        assert "home" not in environment
        raise SystemExit

    monkeypatch.setattr(process, "replace", replaced)
    monkeypatch.setattr(afterwards, "run", seen.append)
    with pytest.raises(SystemExit):
        execs.execute(made.store(tmp_path / "root"), execs.ExecRequest("hello"), ["true"])
    action, *words = seen
    found = {word.split("=", 2)[1]: word.split("=", 2)[2] for word in words if word.startswith("--set-env=")}
    assert found["HOME"] == found["TMPDIR"] != "/tmp"
    assert os.listdir(str(place)) == [os.path.basename(found["HOME"])]
    assert found["PYTHONNOUSERSITE"] == "1"
    action()
    assert os.listdir(str(place)) == []


def test_without_a_container_the_home_is_the_users_own(tmp_path, programs):
    image = made.IMAGE._replace(env=["HOME=/root"])
    store = made.store(tmp_path / "root", image=image)
    found = container.make(store.installed()[0], image, made.PLAN, RUNTIMES["native"], [], {})
    assert "HOME" not in found.environment
    assert not container.needs_home(found)
    argv(list(found.environment.values()), {})
