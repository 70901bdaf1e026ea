"""A job's hub, nodes and launcher as processes on this machine: the container is a shell, the launcher a script."""

import contextlib
import os
import queue
import resource
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from deployer.site.inside import folder, hub, inside, node
from deployer.system import channel
from deployer.system.channel import ChannelError

ROOT = Path(__file__).resolve().parents[4]
_CALL = "from deployer.cli.site.main import main; sys.exit(main())"
TOOL = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {_CALL}"]
#: What the image's launcher does: it starts a daemon on each node, and ends as the last of them.
LAUNCHER = f"""
export NAMES="$1" {folder.HUB}="$2"
code=0; all=
for place in $(echo "$1" | tr , ' '); do "$START" -x -q "$place" "$3" & all="$all $!"; done
for each in $all; do wait $each || code=$?; done
exit $code
"""


def job(path, daemon, nodes=2, starter=(), passes_on=True):
    """Start a job's hub with ``nodes`` nodes on this machine, and return its process."""
    container = ["env", f"START={path}/start"]
    words = [*container, node.LAUNCHER, "sh", "-c", LAUNCHER, "sh", node.NODES, node.HUB, daemon, node.RANKS]
    each = [*TOOL, "inside", "--node", "--hub", node.HUB, "--number", node.NUMBER, "--key", f"{path}/key", "--"]
    agent = path.parent / "agent"
    agent.write_text('#!/bin/bash\nexec {} bash -c "$2"\n'.format(" ".join(starter)))
    agent.chmod(0o700)
    machines = path.parent / "machines"
    machines.write_text("".join("n%d slots=2\n" % number for number in range(nodes)))
    argv = [*TOOL, "inside", "--serve", str(path), "--nodes", str(nodes), "--image-python", sys.executable]
    argv += ["--passes-on"] if passes_on else []
    argv += ["--agent", str(agent), "--machines", str(machines), "--", *each, *words]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return a job's folder; what launchers call is this checkout's tool, not the container's."""
    made = tmp_path / "inside"
    made.mkdir(mode=0o700)
    quoted = " ".join(map(shlex.quote, TOOL))
    text = f'#!/bin/sh\nexec {quoted} inside --ask --key {made}/key --hub "${folder.HUB}" -- "$@"\n'
    (made / "start.own").write_text(text)
    (made / "start.own").chmod(0o700)
    return made


@pytest.fixture(autouse=True)
def sigterm():
    """Restore its handling, which ``ask`` changes: the processes of other tests would inherit that."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def ended(process, timeout=50):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out.decode(), err.decode()


def own_start(text, path):
    """Use the start program of this test in a daemon's or launcher's words."""
    return text.replace("$START", f"{path}/start.own")


@pytest.mark.thorough
def test_the_launcher_starts_a_daemon_on_each_node_and_its_exit_code_is_the_jobs(path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "LAUNCHER", own_start(LAUNCHER, path))
    code, out, err = ended(job(path, 'echo "daemon $PPID of $0 a  b"; exit 7'))
    assert (code, err) == (7, "")
    said = out.splitlines()
    assert len(said) == 2
    assert all(line.endswith("a  b") for line in said)
    assert stat.S_IMODE((path / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.thorough
def test_sigterm_reaches_all_processes_and_the_launcher_decides_when_the_job_ends(path, monkeypatch):
    """The launcher ignores it, as the product's own command does by blocking it; daemons end in their own time."""
    monkeypatch.setattr(sys.modules[__name__], "LAUNCHER", "trap '' TERM\n" + own_start(LAUNCHER, path))
    daemon = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    process = job(path, daemon)
    assert [process.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
    process.send_signal(signal.SIGTERM)
    code, out, _ = ended(process)
    assert (code, out) == (3, "bye\nbye\n")


@pytest.mark.parametrize("more", ["", "; exit $?"])
def test_a_daemons_shell_lives_on_when_sigterm_comes(tmp_path, more):
    """dash unblocks signals; the job's end failed, or came at once with podman, because the shell had ended."""
    program = tmp_path / "daemon"
    program.write_text(
        "import signal; signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True); input()"
    )
    text = f'"{sys.executable}" "{program}"{more}'
    words = node.daemon(node.split(["env", node.LAUNCHER, node.RANKS]), text, "cn1:5")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert process.stdout.readline() == b"up\n"
    process.terminate()
    assert process.communicate(b"\n", timeout=20) == (b"", None)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ('"/usr/bin/hydra_pmi_proxy" --control-port 10.0.0.1:5 --proxy-id 1', True),
        ('orted -mca orte_node_regex "cn[1:1-2]@0(2)" -mca plm "rsh"', True),
        ("/a/proxy a | b", False),
        ("PATH=/a:$PATH ; export PATH ; orted", False),
        ("A=1 orted", False),
        ("exec orted", False),
        ("orted 'open", False),
        ("", False),
    ],
)
def test_a_shell_becomes_the_daemon_if_that_is_one_command(text, one):
    (word,) = node.daemon(node.split([node.LAUNCHER, node.RANKS]), text, "cn1:5")[2:]
    assert word == ("exec " + text if one else "trap : TERM\n" + text)


@pytest.mark.thorough
def test_nothing_is_left_of_a_job_whose_hub_is_killed(path, monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules[__name__], "LAUNCHER", own_start(LAUNCHER, path))
    mark = "%d.25" % (10**6 + os.getpid())
    process = job(path, f"trap '' TERM; (setsid sleep {mark} &) ; echo up; sleep {mark}")
    assert [process.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    until = time.monotonic() + 20
    while subprocess.run(["pgrep", "-f", f"sleep {mark}"], stdout=subprocess.DEVNULL, check=False).returncode == 0:
        assert time.monotonic() < until, "processes are left"
        time.sleep(0.05)


def test_a_node_that_cannot_start_ends_the_job_with_its_exit_code(path):
    code, _, err = ended(job(path, "true", starter=["false #"]))
    assert code == 1
    assert "could not be started, or ended: exit code 1" in err


def test_the_key_is_made_once_and_others_cannot_read_it(tmp_path):
    place = str(tmp_path / "inside")
    key = folder.make(place, "/usr/bin/py thon")
    assert folder.make(place, "/usr/bin/py thon") == key
    assert len(key) == 64
    assert (
        "exec '/usr/bin/py thon' -I -S /deployer/deployer.pyz inside --ask" in (tmp_path / "inside/start").read_text()
    )
    assert sorted(os.listdir(place)) == ["key", "start"]
    (tmp_path / "inside/key").chmod(0o640)
    with pytest.raises(ChannelError, match="others can read"):
        folder.read_key(place + "/key")


def test_a_link_is_not_taken_for_the_key(tmp_path):
    (tmp_path / "real").write_text("x" * 64)
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "key").symlink_to(tmp_path / "real")
    with pytest.raises(ChannelError, match="cannot read"):
        folder.read_key(str(tmp_path / "key"))


def test_addresses_are_one_word():
    assert inside.parse("10.0.0.1,cn1:4711") == [("10.0.0.1", 4711), ("cn1", 4711)]
    assert hub.own_addresses()[-1] == socket.gethostname()
    assert not any(address.startswith("127.") for address in hub.own_addresses()[:-1])


def test_words_that_are_known_at_the_start_replace_only_the_launchers_own():
    words = ["ch-run", node.NODES, node.LAUNCHER, "mpiexec", "-hosts", node.NODES, "-localhost", node.FIRST]
    words += [node.SLOTS + "2", node.HUB, node.RANKS, "train", node.FIRST, node.RANKS]
    found = node.launcher(node.split(words), ["10.0.0.1", "10.0.0.2"], "cn1:5")
    assert found == ["ch-run", node.NODES, "mpiexec", "-hosts", "10.0.0.1,10.0.0.2", "-localhost", "10.0.0.1",
                     "10.0.0.1:2,10.0.0.2:2", "cn1:5", "train", node.FIRST, node.RANKS]  # fmt: skip


def test_the_hubs_word_is_replaced_before_the_container_only():
    command = hub._known(["srun", "--node", node.HUB, "--", "ch-run", node.HUB], "cn1:5", 0)
    assert command == ["srun", "--node", "cn1:5", "--", "ch-run", node.HUB]


def test_the_launcher_starts_with_sigterm_blocked_and_knows_the_hub(tmp_path):
    show = "import os, signal; print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []), os.environ[%r])"
    argv = [*TOOL, "inside", "--launch", "--hub", "cn1:5", "--", sys.executable, "-c", show % folder.HUB]
    assert subprocess.check_output(argv) == b"True cn1:5\n"


def test_no_hub_is_one_clear_error(tmp_path):
    folder.make(str(tmp_path), "python3")
    from deployer.contract.base.errors import JobFailed

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        word = "127.0.0.1:%d" % taken.getsockname()[1]
        assert inside.ask(word, str(tmp_path / "key"), ["cn2", "true"]) == 255
        with pytest.raises(JobFailed, match="cannot reach the first node"):
            inside.node(word, str(tmp_path / "key"), 0, ["a", node.LAUNCHER, "b", node.RANKS])


def accepted(listener, key):
    """Return the hub's end of the next connection, which has proven the key."""
    found = channel.Channel(listener.accept()[0], key, serves=True)
    while not found.proven:
        found.receive()
    return found


@pytest.mark.thorough
def test_a_daemon_may_run_for_longer_than_a_message_may_take(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "PATIENCE", 0.3)
    key = folder.make(str(tmp_path), "python3")

    def serve():
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            places.put("%s:%d" % listener.getsockname())
            peer = accepted(listener, key)
            assert peer.receive() == [{"ask": "cn2", "text": "daemon"}]
            time.sleep(0.9)
            peer.send({"code": 7})
            peer.close()

    places = queue.Queue()
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert inside.ask(places.get(timeout=10), str(tmp_path / "key"), ["-x", "cn2", "daemon"]) == 7
    finally:
        thread.join()


def peer(address, reached):
    return types.SimpleNamespace(address=address, channel=types.SimpleNamespace(address=reached))


def test_the_first_node_is_named_by_the_address_by_which_others_reach_it():
    """It reached the hub by a bridge, which each machine has with the same address."""
    nodes = [peer("172.17.0.1", "172.17.0.1"), peer("10.0.0.2", "10.0.0.1"), peer("10.0.0.3", "10.0.0.1")]
    hub._name_as_others_do(nodes)
    assert [each.address for each in nodes] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    alone = [peer("10.0.0.1", "10.0.0.1")]
    hub._name_as_others_do(alone)
    assert alone[0].address == "10.0.0.1"


@contextlib.contextmanager
def waiting(path, starter):
    """Yield a process of a hub whose node does not register, and the hub's port."""
    process = job(path, "true", nodes=1, starter=starter)
    try:
        inodes = set()
        until = time.monotonic() + 20
        while not inodes:
            assert time.monotonic() < until
            time.sleep(0.02)
            with contextlib.suppress(OSError):
                held = {os.readlink(str(each)) for each in Path("/proc/%d/fd" % process.pid).iterdir()}
                lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
                inodes = {each[1] for each in lines if each[3] == "0A" and f"socket:[{each[9]}]" in held}
        port = int(inodes.pop().rpartition(":")[2], 16)
        with socket.create_connection(("127.0.0.1", port)) as first:
            assert first.recv(1) == b"d"  # it is at work
            yield process, port
    finally:
        process.terminate()  # it ends what it has started
        if process.returncode is None:
            process.communicate()


@pytest.mark.thorough
def test_a_job_that_is_asked_to_end_before_its_nodes_register_ends_at_once(path):
    with waiting(path, ["sleep 60 #"]) as (process, _):
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process, 8)
    assert code == 143
    assert "asked to end before all nodes registered" in err


@pytest.mark.thorough
def test_many_strangers_do_not_keep_a_node_out(path):
    """They connect first and say nothing."""
    with waiting(path, ["sleep 60 #"]) as (_, port), contextlib.ExitStack() as stack:
        for _ in range(hub._MOST_STRANGERS + 3):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            stranger.settimeout(10)
            assert stranger.recv(1) == b"d"
        found = channel.connect([("127.0.0.1", port)], folder.read_key(str(path / "key")))
        assert found.proven
        found.close()


@pytest.mark.thorough
def test_the_hub_may_have_all_files_that_the_system_allows_and_what_it_starts_has_not(path, tmp_path):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    show = tmp_path / "limit"
    with waiting(path, [f"bash -c 'ulimit -S -n >{show}; sleep 60' #"]) as (process, _):
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (most, most)
        until = time.monotonic() + 20
        while not (show.exists() and show.read_text()):
            assert time.monotonic() < until
            time.sleep(0.02)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert show.read_text().strip() == str(soft)


@pytest.mark.thorough
def test_what_the_agent_ignores_the_launcher_ignores_too(path, monkeypatch):
    """Grid Engine sends SIGUSR2 to all processes of the first node, and the launcher must not end of it."""
    monkeypatch.setattr(sys.modules[__name__], "LAUNCHER", "kill -USR2 $$; echo lives; exit 5")
    code, out, _ = ended(job(path, "", nodes=1, starter=["env --ignore-signal=USR2"]))
    assert (code, out) == (5, "lives\n")


@pytest.mark.thorough
@pytest.mark.parametrize("message", [{"node": "x"}, {"node": None}, {"ask": 1}, {"ended": 1e999}, {"ended": []}])
def test_a_malformed_message_of_a_rank_ends_its_connection_and_not_the_hub(path, message):
    with waiting(path, ["sleep 60 #"]) as (process, port):
        key = folder.read_key(str(path / "key"))
        other = channel.connect([("127.0.0.1", port)], key)
        other.send(message)
        with pytest.raises(channel.ChannelError, match="closed"):
            other.receive()
        other.close()
        channel.connect([("127.0.0.1", port)], key).close()  # it lives on
        assert process.poll() is None


def drain(end):
    while True:
        end.receive()


def test_a_message_that_is_nested_too_deep_is_none_and_the_kernel_asks_after_the_other_end():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        client = socket.create_connection(listener.getsockname())
        ends = [channel.Channel(listener.accept()[0], b"key", serves=True), channel.Channel(client, b"key", False)]
        assert all(end.connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for end in ends)
        for end in (ends[1], ends[0], ends[1]):
            end.receive()
        body = "[" * 100000
        ends[1]._write("{} {}".format(ends[1]._seal("client", 0, body), body))
        with pytest.raises(channel.ChannelError, match="not a message"):
            drain(ends[0])
        for end in ends:
            end.close()
