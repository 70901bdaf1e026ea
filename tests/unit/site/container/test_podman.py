"""podman's words, and the script around them with stand-ins for podman and unshare. The real ones:
tests/integration/test_podman.py."""

import fcntl
import os
import re
import select
import socket
import subprocess
import time

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.base.shell import Variable, Word, argv
from deployer.contract.site.plan import Bind
from deployer.site.container import runtime_check
from deployer.site.container.runtimes import RUNTIMES, podman
from deployer.site.container.runtimes.interface import Container, Here
from tests import running as made

runtime = RUNTIMES["podman"]
OWN = Word(Variable("home"))
#: Shows its words and environment, a line each.
PODMAN = """\
printf '%s\\0' "$@" >"$SHOWN/words"; env -0 >"$SHOWN/environment"
[ -z "$PMI_FD" ] || cat <&"$PMI_FD" >"$SHOWN/read"
exec sh -c "$STAND_IN"
"""
UNSHARE = 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"'


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a command with the stand-ins: its exit code, podman's words and environment.

    ``launcher`` is called before the end of podman is waited for.
    """
    programs, private = tmp_path / "bin", tmp_path / "private"
    for folder in (programs, private):
        folder.mkdir()
    made.program(programs, "podman", PODMAN)
    made.program(programs, "unshare", UNSHARE)
    made.program(programs, "crun", "exit 1")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def call(container, *command, launcher=lambda: None, streams=(subprocess.DEVNULL, None, None), **host):
        words = argv(runtime.argv(container, command), {"home": str(private)})
        known = {"SHOWN", "STAND_IN"}
        words[6:6] = ["--pass=" + name for name in sorted(known)]
        environment = {"PATH": os.environ["PATH"], "SHOWN": str(tmp_path), "STAND_IN": "exit 7", **host}
        fds = [int(host["PMI_FD"])] if "PMI_FD" in host else []
        stdin, stdout, stderr = streams
        with subprocess.Popen(
            words, env=environment, pass_fds=fds, stdin=stdin, stdout=stdout, stderr=stderr
        ) as process:
            launcher()
            code = process.wait()
        said = (tmp_path / "words").read_text().split("\0")[:-1]
        found = dict(each.partition("=")[::2] for each in (tmp_path / "environment").read_text().split("\0") if each)
        return code, said, found

    return call


def box(**values):
    return Container(
        "/i/rootfs", [Bind("/a b", "/data", "why")], {"A": "$x\n*"}, ["SLURM_*"], "/w", private=OWN
    )._replace(**values)


def test_the_words():
    found = runtime.options(box())
    assert found[:3] == ["bash", "-p", "-c"]
    assert found[4:] == ["podman", OWN, "--pass=SLURM_*", "--set-env=A=$x\n*", "--volume=/a b:/data", "--workdir=/w"]
    assert runtime.starting_in("/work") == ["--workdir=/work"]
    assert runtime.join_options(4, "tag") == []


def test_what_podman_gets(start, tmp_path):
    code, words, environment = start(
        box(),
        "sh",
        "--",
        "x y",
        SLURM_JOB_ID="7 8",
        LEAK="1",
        CONTAINER_HOST="unix:///x",
        state="s",
        CONTAINERS_CONF="/c",
    )
    assert code == 7
    run = words.index("run")
    state = environment["HOME"]
    assert os.path.dirname(state) == str(tmp_path / "private")
    places = [word for word in words[:run] if word.startswith(("--root=", "--runroot=", "--tmpdir="))]
    assert len(places) == 3
    assert all(re.fullmatch(r"--\w+=/proc/\d+/cwd/\w+", word) for word in places)  # podman refuses long ones
    for word in (
        "--pull=never", "--read-only", "--read-only-tmpfs=false", "--unsetenv-all", "--http-proxy=false", "--rm",
        "--env=SLURM_JOB_ID", "--log-driver=passthrough", "--volume=/a b:/data", "--env=A=$x\n*",
    ):  # fmt: skip
        assert word in words[run:]
    assert words[-5:] == ["--rootfs", "/i/rootfs", "sh", "--", "x y"]
    assert words.index("--env=SLURM_JOB_ID") < words.index("--env=A=$x\n*")  # ours override
    assert "--uidmap=%d:0:1" % os.getuid() in words
    assert not {"LEAK", "CONTAINER_HOST", "state"} & set(environment)
    assert not [word for word in words if "LEAK" in word or "7 8" in word]
    assert environment["SLURM_JOB_ID"] == "7 8"
    for name in ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "XDG_RUNTIME_DIR", "HOME"):
        assert environment[name].startswith(state)


def test_the_launcher_s_descriptor_arrives(start, tmp_path):
    read, write = os.pipe()
    os.write(write, b"from the launcher")
    os.close(write)
    high = fcntl.fcntl(read, fcntl.F_DUPFD, 27)  # one that is free: dup2 would close another test's
    os.close(read)
    try:
        _, words, environment = start(box(passed=["PMI_*"]), "true", PMI_FD=str(high))
    finally:
        os.close(high)
    assert "--preserve-fds=1" in words
    assert environment["PMI_FD"] == "3"
    assert (tmp_path / "read").read_bytes() == b"from the launcher"


@pytest.mark.parametrize(
    ("terminals", "driver"),
    [
        ((), "passthrough"),
        ((0,), "none"),
        ((1,), "none"),  # Open MPI's mpirun
        ((2,), "none"),
        ((0, 1, 2), "none"),
    ],
)
def test_podman_copies_what_is_a_terminal(start, terminals, driver):
    ours, theirs = os.openpty()
    try:
        streams = tuple(theirs if number in terminals else subprocess.DEVNULL for number in range(3))
        _, words, _ = start(box(), "true", streams=streams)
    finally:
        os.close(ours)
        os.close(theirs)
    assert "--log-driver=" + driver in words
    assert ("--tty" in words) == (len(terminals) == 3)


@pytest.mark.thorough
def test_a_launcher_that_waits_for_its_descriptor_s_end_before_podman_s_is_not_kept_waiting(start, tmp_path):
    """As Hydra does."""
    ours, theirs = socket.socketpair()

    def launcher():
        theirs.close()
        assert select.select([ours], [], [], 20)[0]
        assert ours.recv(1) == b""
        until = time.time() + 10
        while any((tmp_path / "private").iterdir()) and time.time() < until:  # podman is a zombie, and its folder goes
            time.sleep(0.05)
        assert not any((tmp_path / "private").iterdir())

    theirs.set_inheritable(True)
    number = theirs.fileno()
    ours.shutdown(socket.SHUT_WR)
    with ours:
        code, _, _ = start(box(), "true", launcher=launcher, PMI_FD=str(number))
    assert code == 7


#: As conmon does, stays in podman's working folder and starts the command, which has another one and holds the output.
CONMON = "(cd / && exec sleep 60 >$SHOWN/output) & echo >$SHOWN/output; wait"
#: The same with a command that started another process, in namespaces of their own.
TWO = '(cd / && exec /usr/bin/unshare --user --mount sh -c "sleep 60 & echo; exec sleep 60" >$SHOWN/output) & wait'
#: A process in podman's working folder that starts while another one is ended, as conmon does, which forks.
LATE = """\
exec 5<"$HOME"; cd /
{ (cd /proc/self/fd/5 && echo >$SHOWN/output && exec sleep 60); cd /proc/self/fd/5 && exec sleep 6077; } &
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("conmon", "removed"),
    [
        pytest.param(CONMON, False, id="kept"),
        pytest.param(CONMON, True, id="removed"),
        pytest.param(LATE, False, id="late"),
        pytest.param(TWO, False, id="two processes", marks=pytest.mark.needs("user-namespaces")),
    ],
)
def test_a_container_whose_podman_was_killed_ends(start, tmp_path, conmon, removed):
    os.mkfifo(str(tmp_path / "output"))
    output = os.open(str(tmp_path / "output"), os.O_RDWR)
    podman = "sh -c '{}' & read -r began <$SHOWN/output; {} kill -9 $$".format(
        conmon, "rm -rf $HOME;" if removed else ""
    )
    code, _, environment = start(box(), "true", STAND_IN=podman)
    reader = os.open(str(tmp_path / "output"), os.O_RDONLY)
    os.close(output)
    assert code == -9
    assert select.select([reader], [], [], 10)[0]
    assert os.read(reader, 1) == b""  # no process has it
    os.close(reader)
    until = time.time() + 10
    while os.path.exists(environment["HOME"]) and time.time() < until:
        time.sleep(0.05)
    assert not os.path.exists(environment["HOME"])
    time.sleep(0.5)
    assert subprocess.call(["pgrep", "-fx", "sleep 6077"]) == 1


#: Signals this shell, whose only child may end at that, and a process that does not exist.
CHILD = """\
sleep 60 </dev/null >/dev/null 2>&1 & sleeping=$!
kill() { echo "$2"; [ -z "$gone" ] || { builtin kill -KILL $sleeping; wait $sleeping; }; } 2>/dev/null
for task in $$ 99999999; do
    %s
    done
done 2>/dev/null
builtin kill -KILL $sleeping 2>/dev/null; echo $$ $sleeping
"""


@pytest.mark.parametrize(("gone", "killed"), [("1", "{0} 99999999"), ("", "{0} {1} 99999999")])
def test_a_number_that_may_be_another_process_s_by_now_is_not_killed(gone, killed):
    lines = podman.START.own.splitlines()
    (first,) = [number for number, line in enumerate(lines) if "read -r -a children" in line]
    script = f"gone={gone}\n" + CHILD % "\n".join(lines[first : first + 3])
    *signalled, last = subprocess.check_output(["bash", "-c", script]).decode().splitlines()
    assert " ".join(signalled) == killed.format(*last.split())


def test_a_private_folder_is_needed(start):
    with pytest.raises(FileNotFoundError):  # podman was not called
        start(box(private="/nowhere"), "true")


@pytest.mark.parametrize("name", ["A|B", "A B", "", "$(x)", "[A]"])
def test_a_name_cannot_open_the_gate(name):
    with pytest.raises(UsageError):
        runtime.options(box(passed=[name]))


def test_a_colon_in_a_bind_is_refused():
    with pytest.raises(UsageError, match="has a colon, and podman"):
        runtime.options(box(binds=[Bind("/a:b", "/data", "")]))


def test_it_is_looked_for_by_name():
    assert runtime.veto(Here(None, [], "")) == "no podman in PATH"
    assert RUNTIMES["podman-hpc"].veto(Here(None, [], "")) == "no podman-hpc in PATH"
    assert RUNTIMES["podman-hpc"].options(box()) == runtime.options(box())


def test_an_old_podman_is_passed_over(tmp_path, monkeypatch):
    made.program(tmp_path, "podman", "echo podman version 3.4.4")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = runtime_check.objection(runtime, [], "", here=False)
    assert found == "podman 3.4.4 is too old: deployer uses 4.3 or newer"


def test_the_check_of_its_version_leaves_no_folders_of_podman_s(tmp_path, monkeypatch):
    """Podman makes folders in XDG_RUNTIME_DIR, and without one in /tmp."""
    makes = 'mkdir "${XDG_RUNTIME_DIR:=%s/tmp}/libpod" && echo "$XDG_RUNTIME_DIR" >%s/place; echo podman version 5.0.0'
    made.program(tmp_path, "podman", makes % (tmp_path, tmp_path))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert runtime_check.objection(runtime, [], "", here=False) is None
    assert not list((tmp_path / "tmp").iterdir())
    assert not os.path.lexists((tmp_path / "place").read_text().strip())
