import os
import signal
import subprocess
import sys
import time

import pytest

from deployer.contract.base.errors import JobFailed, MissingTool
from deployer.system import escapes, process


def python(code, **options):
    return process.run([sys.executable, "-c", code], timeout=30, **options)


def test_output_status_and_input():
    done = python("import sys; print(sys.stdin.read()); print('e', file=sys.stderr)", stdin="fed")
    assert (done.returncode, done.stdout, done.stderr) == (0, "fed\n", "e\n")


def test_stdin_is_closed():
    assert python("import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_a_lot_on_stderr_does_not_block():
    assert len(python("import sys; sys.stderr.write('x' * 1000000)").stderr) == 1000000


def test_a_failure_shows_the_last_words():
    with pytest.raises(JobFailed, match=r"exit 3.*the reason") as caught:
        python("import sys; print('the reason', file=sys.stderr); sys.exit(3)", hint="do this")
    assert caught.value.hint == "do this"
    assert python("import sys; sys.exit(3)", check=False).returncode == 3


@pytest.mark.thorough
def test_the_time_limit_kills_the_child():
    started = time.time()
    with pytest.raises(JobFailed, match="within 1 s"):
        process.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=1)
    assert time.time() - started < 20


def test_a_missing_program():
    with pytest.raises(MissingTool, match="no-such-program"):
        process.run(["no-such-program"], timeout=1)


def test_the_environment_is_what_is_listed(monkeypatch):
    monkeypatch.setenv("DEPLOYER_TEST_SECRET", "1")
    assert "DEPLOYER_TEST_SECRET" not in python("import os; print(list(os.environ))").stdout
    assert process.base_environment("DEPLOYER_TEST_SECRET")["DEPLOYER_TEST_SECRET"] == "1"


def test_background_is_stopped(tmp_path):
    log = str(tmp_path / "log")
    code = "import time; print('up', flush=True); time.sleep(60)"
    child = process.Background([sys.executable, "-c", code], os.environ, log)
    while "up" not in child.output():
        assert child.poll() is None
        time.sleep(0.01)
    child.stop()
    assert child.poll() is not None


def test_ctrl_c_within_a_look_at_a_child_does_not_block_its_end(tmp_path):
    """It came just after ``Popen`` had taken its lock: the next ``wait`` of ``Popen`` would never return."""
    child = process.Background([sys.executable, "-c", "import time; time.sleep(60)"], os.environ, str(tmp_path / "log"))
    child._process._waitpid_lock.acquire()
    child.stop()
    assert child.poll() == -signal.SIGTERM

    started = subprocess.Popen(["sleep", "60"])
    started._waitpid_lock.acquire()
    with pytest.raises(KeyboardInterrupt), process._ended(started):
        raise KeyboardInterrupt
    assert started.returncode == -signal.SIGKILL


@pytest.mark.thorough
@pytest.mark.parametrize("hear", [None, lambda line: line == b"kept"])
def test_attach_leaves_out_what_is_printed_before_a_mark(capfdbinary, hear):
    script = "printf 'Welcome '; sleep 0.2; printf 'ma'; sleep 0.2; printf 'rk\\nkept\\n'; printf 'the end'"
    assert process.attach(["sh", "-c", script], hear=hear, after=b"mark\n") == 0
    assert capfdbinary.readouterr().out == (b"the end" if hear else b"kept\nthe end")
    assert process.attach(["sh", "-c", "echo Welcome; exit 3"], hear=hear, after=b"mark\n") == 3
    assert capfdbinary.readouterr().out == b""


#: Becomes a program that attaches a shell's command, as the laptop attaches ssh.
ATTACHES = (
    "import sys; from deployer.system import process; process.attach(['sh', '-c', sys.argv[1]], after=b'begun\\n')"
)


@pytest.mark.thorough
def test_attach_keeps_the_order_of_output_and_errors():
    argv = [sys.executable, "-c", ATTACHES, "echo noise; echo begun; for i in 1 2 3; do echo out; echo err >&2; done"]
    environment = dict(os.environ, PYTHONPATH=os.getcwd())
    for _ in range(3):
        said = subprocess.run(
            argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True
        ).stdout
        assert said.startswith(b"out\n")
        assert (said.count(b"out\n"), said.count(b"err\n"), len(said)) == (3, 3, 24)


@pytest.mark.thorough
def test_attached_output_on_a_terminal_has_only_text_and_colours():
    """A site could set the window's title or the clipboard, or overwrite lines; a file receives all bytes."""
    hostile = r"\033]0;title\007\033]52;c;bXk=\007\033[2A\033[1;31mred\033[0m\033[K\tok\r\302\2332J\303\251"
    printed = b"\\x1b]0;title\\x07\\x1b]52;c;bXk=\\x07\\x1b[2A\x1b[1;31mred\x1b[0m\x1b[K\tok\r\\x9b2J\xc3\xa9"
    script = f"printf 'begun\\n{hostile}'; {{ printf '\033['; sleep 0.2; printf '32mgreen\033]0;x'; }} >&2"
    argv = [sys.executable, "-c", ATTACHES, script]
    environment = dict(os.environ, PYTHONPATH=os.getcwd())
    ours, theirs = os.openpty()
    try:
        subprocess.run(argv, env=environment, stdout=theirs, stderr=theirs, check=True)
        said = os.read(ours, 4096)
    finally:
        os.close(theirs)
        os.close(ours)
    assert said.startswith(printed)
    assert said.endswith(b"\x1b[32mgreen\\x1b]0;x")
    whole = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    assert whole.stdout.startswith(b"\x1b]0;title\x07")
    assert whole.stderr == b"\x1b[32mgreen\x1b]0;x"


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_escapes_that_are_cut_into_pieces(size):
    text = b"a\x1b[31mb\x1b]0;t\x07\xc3\xa9\xc2\x9b\xc2\xa0\x1b[K\x1b\x1b[0m\xc2"
    harmless = escapes.Harmless()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    said = b"".join(harmless.shown(piece) for piece in pieces) + harmless.shown(b"")
    assert said == b"a\x1b[31mb\\x1b]0;t\\x07\xc3\xa9\\x9b\xc2\xa0\x1b[K\\x1b\x1b[0m\xc2"


@pytest.mark.thorough
def test_attach_ends_a_program_whose_output_cannot_be_written(tmp_path):
    script = "echo $$ >%s; echo begun; for i in 1 2 3; do echo line || exit; sleep 0.1; done; exec sleep 60" % (
        tmp_path / "pid"
    )
    argv = [sys.executable, "-c", ATTACHES, script]
    environment = dict(os.environ, PYTHONPATH=os.getcwd())
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as gone:
        gone.stdout.readline()
        gone.stdout.close()
        said = gone.stderr.read().splitlines()[-1]
    assert said.startswith(b"BrokenPipeError")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(argv, check=False, env=environment, stdout=full, stderr=subprocess.PIPE)
    said = done.stderr.splitlines()[-1]
    assert said == b"deployer.contract.base.errors.SpaceError: cannot write the output: No space left on device"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_attach_gives_the_shells_status():
    assert process.attach([sys.executable, "-c", "import sys; sys.exit(7)"]) == 7
    assert process.attach([sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"]) == 143


@pytest.mark.thorough
def test_ctrl_c_that_ssh_answers_by_255_is_an_interruption():
    # It ends at once, so that its end and the signal often come to the parent together.
    child = "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); "
    child += "print('ready', flush=True); signal.sigwait([signal.SIGINT]); os._exit(255)"
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from deployer.system import process; sys.exit(process.attach([sys.executable, '-c', sys.argv[1]]))"
    )
    environment = dict(os.environ, PYTHONPATH=os.getcwd())
    argv = [sys.executable, "-c", code, child]
    for _ in range(5):
        with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, start_new_session=True) as ours:
            assert ours.stdout.readline() == b"ready\n"
            os.killpg(ours.pid, signal.SIGINT)
            assert ours.wait(30) == 130
    assert process.attach([sys.executable, "-c", "import sys; sys.exit(255)"]) == 255


def test_replace_keeps_pid():
    code = (
        "import os; from deployer.system import process; print(os.getpid(), flush=True); "
        "process.replace(['/bin/sh', '-c', 'echo $$'], {})"
    )
    out = subprocess.check_output([sys.executable, "-c", code], env=dict(os.environ, PYTHONPATH=os.getcwd()))
    first, second = out.split()
    assert first == second


def test_feed_gives_the_pieces_and_returns_what_it_said():
    code = "import sys; data = sys.stdin.buffer.read(); print(len(data)); sys.stderr.write('x' * 300000)"
    done = process.feed([sys.executable, "-c", code], (b"x" * 100000 for _ in range(20)), 30)
    assert (done.returncode, done.stdout, len(done.stderr)) == (0, "2000000\n", 300000)


def test_feed_of_a_program_that_ends_early():
    code = "import sys; sys.exit('no more')"
    done = process.feed([sys.executable, "-c", code], (b"x" * 100000 for _ in range(100)), 30)
    assert (done.returncode, done.stderr) == (1, "no more\n")


def test_feed_kills_when_the_pieces_fail_or_the_time_is_up():
    def pieces():
        yield b"x"
        raise KeyError("broken")

    with pytest.raises(KeyError):
        process.feed(["sleep", "60"], pieces(), 30)
    with pytest.raises(JobFailed, match="did not end within"):
        process.feed(["sleep", "60"], [], 0.2)
    with pytest.raises(MissingTool):
        process.feed(["/nowhere/program"], [], 1)


def test_a_background_process_ends_with_its_starter(tmp_path):
    code = "import os, sys, time; from deployer.system.process import Background\n"
    code += "child = Background(['sh', '-c', 'echo $$; exec sleep 60'], os.environ, sys.argv[1])\n"
    code += "while not child.output(): time.sleep(0.01)\n"
    code += "os.kill(os.getpid(), 9)"
    assert subprocess.call([sys.executable, "-c", code, str(tmp_path / "log")]) == -9
    command = "/proc/{}/cmdline".format((tmp_path / "log").read_text().strip())
    deadline = time.time() + 20
    while is_running(command) and time.time() < deadline:
        time.sleep(0.05)
    assert not is_running(command)


def is_running(command):
    try:
        with open(command, "rb") as stream:
            return stream.read() != b""  # a zombie's is empty
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_glance_at_a_good_program():
    done = process.glance(
        [sys.executable, "-c", "import sys; print('o'); print('e', file=sys.stderr); sys.exit(3)"], 30
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "o\n", "e\n")
    with pytest.raises(MissingTool):
        process.glance(["/no/such/program"], 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "script",
    [
        "exec sleep 600",
        "sleep 600 & exit 0",  # what it started holds its output open
        "trap '' TERM; sleep 600 & wait",
        "exec cat /dev/zero",
    ],
)
def test_a_glance_ends_whatever_the_program_does(script, tmp_path):
    mark = str(tmp_path / "mark")
    with pytest.raises(JobFailed, match=r"did not end within 0\.2 s, or printed more than 100000 bytes"):
        process.glance(["sh", "-c", f"exec 9>'{mark}'; {script}"], 0.2, limit=100000)
    # Nothing of it is left: nobody has its file open any more. What was killed may take a moment to go.
    end = time.time() + 30
    while _holders(mark):
        assert time.time() < end
        time.sleep(0.01)


def _holders(path):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/fd/9") == path:
                found.append(pid)
        except OSError:
            continue
    return found


def test_lines_of_errors_are_heard_as_they_come():
    code = (
        "import os, sys; print('x' * 300000); print(sys.stdin.read(), end='')\n"
        "for word in ('1 of 2', 'words', '2 of 2'): print(word, file=sys.stderr, flush=True)\n"
        "sys.stderr.write('last'); sys.exit(3)"
    )
    heard = []

    def hear(line):
        heard.append(line)
        return line.endswith("of 2")

    done = process.run([sys.executable, "-c", code], 30, stdin="fed", check=False, hear=hear)
    assert heard == ["1 of 2", "words", "2 of 2"]
    assert (done.returncode, done.stdout, done.stderr) == (3, "x" * 300000 + "\nfed", "words\nlast")


def test_a_silent_program_is_looked_at_while_it_runs(monkeypatch):
    monkeypatch.setattr(process, "_TICK", 0.01)
    seen = []
    code = "import os, time; time.sleep(0.1); print(os.getpid())"
    done = process.run([sys.executable, "-c", code], 30, tick=seen.append)
    assert set(seen) == {int(done.stdout)}
    with pytest.raises(JobFailed, match="did not end within"):
        process.run(["sleep", "60"], 0.05, tick=seen.append)


def test_a_conversation_sends_what_it_makes_of_the_first_answer():
    code = (
        "import sys; print('noise'); print('want 3', flush=True); data = sys.stdin.read(); "
        "sys.stderr.write('at 1\\nother\\n'); print(data)"
    )
    asked, heard = [], []

    def reply(line):
        asked.append(line)
        return ["x".encode()] * 3 if line == "want 3" else None

    def hear(line):
        heard.append(line)
        return line.startswith("at")

    later = []
    done = process.converse([sys.executable, "-c", code], reply, 30, 30, hear=hear, later=later.append)
    assert (done.stdout, done.stderr, later) == ("noise\nwant 3\nxxx\n", "other\n", ["xxx"])
    assert (asked, heard) == (["noise", "want 3"], ["at 1", "other"])


def test_a_conversation_ends_with_a_program_that_asks_nothing_or_hangs():
    done = process.converse(["sh", "-c", "echo no; exit 4"], lambda line: None, 30, 30)
    assert (done.returncode, done.stdout) == (4, "no\n")
    with pytest.raises(JobFailed, match="did not end within 0 s"):
        process.converse(["sleep", "60"], lambda line: None, 0.1, 30)
    with pytest.raises(JobFailed, match="did not end within 0 s"):
        process.converse(["sh", "-c", "echo ready; exec sleep 60"], lambda line: [b"x"], 30, 0.1)
