"""The line and its faults, with a fake ssh and sftp on PATH; tests/integration has the real ones."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import deployer
from deployer.cli.laptop import main
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.site_profile.profile import Profile, load
from deployer.connected.transfer.remote import MARK, Attended, Remote, _is_newer, _is_trusted, _sftp_quoted
from deployer.connected.transfer.submission import Submission
from deployer.contract.base import dialogue
from deployer.contract.base.errors import DeployerError, JobFailed, MissingTool, SpaceError, TransferError, UsageError
from tests import running

#: Plays ssh: `-G` names a path for connections if the user has one; `-O check` succeeds when the master runs; a command
#: runs here, in a home of its own.
SSH = """#!/bin/sh
echo "noise of a login shell"
case "$*" in
  "-G "*) [ ! -e "$FAKE/shared" ] || echo "controlpath $FAKE/shared" ;;
  *"-O check"*) test -e "$FAKE/master" ;;
  *" -N "*) [ -z "$FAKE_MASTER" ] || { echo "$FAKE_MASTER" >&2; exit 255; }
        touch "$FAKE/master"; exec sleep 60 ;;
  *) [ -z "$FAKE_LINE" ] || { echo "$FAKE_LINE" >&2; exit 255; }
     for last; do :; done; HOME="$FAKE/home" exec sh -c "$last" ;;
esac
"""
#: Plays sftp: understands the batch that we write.
SFTP = """#!/bin/sh
[ -z "$FAKE_SFTP" ] || { echo "$FAKE_SFTP" >&2; exit 1; }
while [ "$1" != -b ]; do shift; done
sed -e 's/^-mkdir/mkdir -p/' -e 's/^put/cp/' -e 's/^rename/mv/' "$2" | sh -e
"""
#: The same for what we fetch.
GET = """#!/bin/sh
while [ "$1" != -b ]; do shift; done
sed 's/^get -rp/cp -rp/' "$2" | sh -e
"""


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the fakes on PATH; return the far home."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("ssh", SSH), ("sftp", SFTP)):
        running.program(programs, name, text)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(
        "deployer.connected.transfer.remote._ENVIRONMENT", ("FAKE", "FAKE_MASTER", "FAKE_LINE", "FAKE_SFTP")
    )
    monkeypatch.setattr("deployer.connected.transfer.remote._ASK_SECONDS", 0.1)  # the fake makes no socket
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "host key",
            "ssh-keygen -R",
        ),
        (
            "No ED25519 host key is known for login1.\nHost key verification failed.",
            "host key is not known here yet",
            "log in once with ssh login1, and",
        ),
        ("alice@login1: Permission denied (publickey).", "refused the login", "key"),
        ("ssh: Could not resolve hostname login1: Name or service not known", "cannot be resolved", "--ssh-config"),
        ("ssh: connect to host login1 port 22: Connection timed out", "does not answer", "try again"),
        ("something else", "something else", "check that ssh login1 works"),
    ],
)
def test_no_connection(far: Path, monkeypatch: pytest.MonkeyPatch, said: str, message: str, hint: str) -> None:
    monkeypatch.setenv("FAKE_MASTER", said)
    with pytest.raises(TransferError, match=message) as caught, Remote(load("lab")):
        pass
    assert hint in caught.value.hint


@pytest.mark.thorough
def test_prepare_brings_the_site_half(far: Path) -> None:
    with Remote(load("lab")) as remote:
        remote.prepare()
        assert remote.workspace == str(far / "deployer")
        assert (far / "deployer" / "deployer.pyz").read_bytes() == make_pyz()
        answer = remote.site(["known", "sha256:00"])
        assert answer.record["folder"] is None
    with Remote(load("lab")) as remote:  # a second time it is there already
        remote.prepare()


@pytest.mark.thorough
def test_the_far_sides_errors_keep_their_code_and_hint(far: Path) -> None:
    with Remote(load("lab")) as remote:
        remote.prepare()
        with pytest.raises(DeployerError, match="login1: no image nothing") as caught:
            remote.site(["remove", "nothing"])
    assert caught.value.exit_code == UsageError.exit_code
    assert "install a bundle first" in caught.value.hint


@pytest.mark.thorough
def test_without_multiplexing_each_command_logs_in(far: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MASTER", 'unix_listener: path "/very/long" too long for Unix domain socket')
    with Remote(load("lab")) as remote:
        remote.prepare()
        assert remote.site(["known", "sha256:00"]).record["folder"] is None
        assert "ControlPath=none" in remote._ssh(["true"])
        assert not remote.multiplexes


def test_the_users_own_master_is_used(far: Path, tmp_path: Path) -> None:
    (tmp_path / "master").touch()
    (tmp_path / "shared").touch()
    with Remote(load("lab")) as remote:
        assert remote._ssh(["true"]) == ["ssh", "login1", "true"]
        assert remote.multiplexes


def test_a_tunnel_is_opened_in_the_connection_and_closed(far: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "ssh").write_text(SSH.replace("#!/bin/sh", '#!/bin/sh\necho "$*" >>"$FAKE/asked"'))
    with Remote(load("lab")) as remote:
        with (
            pytest.raises(TransferError, match="cannot forward port 8888") as caught,
            remote.tunnel(8888, "n1", "4711"),
        ):
            pass
        assert "--port" in caught.value.hint
        running.program(tmp_path / "bin", "login1", "exit 0")  # the fake runs its last word
        with remote.tunnel(8888, "10.1.0.5", "4711"):
            pass
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if "10.1.0.5" in line]
    ends = [line.partition("-O ")[2] for line in asked]
    assert ends == [f"{what} -L 127.0.0.1:8888:10.1.0.5:4711 login1" for what in ("forward", "cancel")]


def test_ssh_is_not_asked_for_a_connection_of_the_user_who_has_no_path_for_it(
    far: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", "deployer.process"), Remote(load("lab")):
        started = [record.message.split()[1:] for record in caplog.records if record.message.startswith("$ ")]
    assert started[0] == ["ssh", "-G", "login1"]
    assert "-N" in started[1]


@pytest.mark.parametrize("alone", [False, True])
def test_a_result_is_fetched_also_if_its_size_takes_too_long(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    asked = []

    def size(*_: object) -> int:
        asked.append(1)
        raise JobFailed("du did not end within 10 s")

    monkeypatch.setattr(Remote, "size", size)
    monkeypatch.setattr("deployer.system.terminal.shows_progress", lambda: True)
    (tmp_path / "bin" / "sftp").write_text(GET)
    (far / "job").mkdir()
    (far / "job" / "output.log").write_text("x")
    if alone:
        monkeypatch.setenv("FAKE_MASTER", "too long for Unix domain socket")
    else:
        (tmp_path / "master").touch()
    with Remote(load("lab")) as remote:
        remote.download(str(far / "job"), tmp_path / "fetched")
    assert (tmp_path / "fetched" / "output.log").read_text() == "x"
    assert len(asked) == (0 if alone else 1)


@pytest.mark.parametrize(
    ("command", "printed", "message", "hint"),
    [
        ("run", "", "broke before the site reported a job", "the job may have been submitted: the same command again"),
        ("run", f"{MARK}x-1 7", "login1 broke$", "the job continues: the same command again follows it"),
        ("logs", "", "login1 broke$", "try again"),
    ],
)
def test_a_line_that_breaks_during_a_command(
    far: Path, monkeypatch: pytest.MonkeyPatch, command: str, printed: str, message: str, hint: str
) -> None:
    with Remote(load("lab")) as remote, contextlib.closing(Submission("run", "x", "lab", [])) as submission:
        submission.record()
        monkeypatch.setattr(remote, "python", "sh")
        monkeypatch.setattr(remote, "_site_argv", lambda words: ["sh", "-c", f"echo '{printed}'; exit 255"])
        with pytest.raises(TransferError, match=message) as caught:
            remote.attach([command, "x"], recorded=submission.recorded, reported=submission.reported)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(("status", "code"), [(3, 3), (126, 1), (137, 1)])
def test_only_documented_exit_codes_come_from_the_site(far: Path, status: int, code: int) -> None:
    with Remote(load("lab")) as remote, pytest.raises(DeployerError, match="no words") as caught:
        remote.shell(f"echo no words >&2; exit {status}")
    assert caught.value.exit_code == code


def test_a_full_disk_for_the_site_half(far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running.program(tmp_path / "bin", "cat", "echo cat: write error: Disk quota exceeded >&2; exit 1\n")
    with Remote(load("lab")) as remote, pytest.raises(SpaceError, match="quota"):
        remote.prepare()
    assert list((far / "deployer" / "incoming").iterdir()) == []
    assert not (far / "deployer" / "deployer.pyz").exists()


#: A site's tool that answers as a released one of another version does.
RELEASED = "import sys\nprint('{}' if sys.argv[1:] == ['--version'] else 'noise')\n"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("there", "stays"),
    [
        (RELEASED.format("0.2.1"), True),
        (RELEASED.format("0.10"), True),
        (RELEASED.format("0.0.9"), False),
        (RELEASED.format(deployer.__version__), False),
        (RELEASED.format("0.2.0.dev1"), False),
        (RELEASED.format("ours"), False),
        (RELEASED.format(rf"9.0\\n{MARK}home=/nowhere"), False),
        ("damaged", False),
    ],
)
def test_a_newer_site_half_stays_with_a_warning(
    far: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], there: str, stays: bool
) -> None:
    monkeypatch.setattr("deployer.connected.transfer.remote.make_pyz", lambda: b"ours")
    tool = far / "deployer" / "deployer.pyz"
    tool.parent.mkdir()
    tool.write_text(there)
    with Remote(load("lab")) as remote:
        remote.prepare()
    assert tool.read_text() == (there if stays else "ours")
    said = capfd.readouterr().err
    assert ("login1 keeps its deployer.pyz 0." in said) is stays
    assert (f"(owner: {tool.owner()})" in said) is stays
    assert list((far / "deployer" / "incoming").iterdir()) == []


@pytest.mark.thorough
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of others: run it as root")
@pytest.mark.parametrize(
    ("folder", "mode", "file", "runs"),
    [
        (0, 0o755, 0, True),
        (0, 0o755, 65534, True),
        (65534, 0o770, 65534, True),
        (0, 0o1777, 0, True),
        (0, 0o1777, 65534, False),
        (0, 0o777, 65534, False),
    ],
)
def test_a_site_half_of_others_is_not_run_where_anybody_can_put_one(
    far: Path, monkeypatch: pytest.MonkeyPatch, folder: int, mode: int, file: int, runs: bool
) -> None:
    monkeypatch.setattr("deployer.connected.transfer.remote.make_pyz", lambda: b"ours")
    tool = far / "project" / "deployer.pyz"
    tool.parent.mkdir()
    (far / "deployer").symlink_to(tool.parent)  # a link itself has all permissions
    tool.write_text(f"open({str(far / 'run')!r}, 'w')\nprint('9.0')")
    os.chown(tool, file, file)
    os.chown(tool.parent, folder, folder)
    tool.parent.chmod(mode)
    with Remote(load("lab")) as remote:
        remote.prepare()
    assert (far / "run").exists() is runs
    assert (tool.read_text() != "ours") is runs


@pytest.mark.thorough
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of others: run it as root")
@pytest.mark.parametrize(
    ("folder", "mode", "file", "used"),
    [(0, 0o755, 0, True), (65534, 0o770, 65534, True), (0, 0o1777, 0, True), (0, 0o1777, 65534, False)],
)
def test_our_own_site_half_is_not_used_if_a_stranger_could_change_it_later(
    far: Path, folder: int, mode: int, file: int, used: bool
) -> None:
    """It is the same now, and its owner may write to it before each start."""
    tool = far / "deployer" / "deployer.pyz"
    tool.parent.mkdir()
    tool.write_bytes(make_pyz())
    os.chown(tool, file, file)
    os.chown(tool.parent, folder, folder)
    tool.parent.chmod(mode)
    before = tool.stat().st_ino
    with Remote(load("lab")) as remote:
        remote.prepare()
    assert (tool.stat().st_ino == before) is used
    assert tool.stat().st_uid == (file if used else 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of others: run it as root")
def test_root_s_site_half_is_used_and_no_link() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        own, link, other = (Path(folder, name) for name in ("own", "link", "other"))
        for path in own, other:
            path.write_text("")
        link.symlink_to(own)
        os.chown(other, 65533, 65533)

        def is_used(path: Path) -> bool:
            argv = ["setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", _is_trusted(str(path), folder)]
            return subprocess.run(argv, check=False).returncode == 0

        assert [is_used(path) for path in (own, link, other)] == [True, False, False]
        os.chown(own, 65534, 65534)
        assert [is_used(path) for path in (own, link)] == [True, False]


def test_a_marked_line_of_a_login_shell_is_no_answer(far: Path, tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(ssh.read_text().replace("noise of a login shell", f"{MARK}noise"))
    with Remote(load("lab")) as remote:
        remote.prepare()
        assert remote.workspace == str(far / "deployer")


def test_a_version_has_ascii_digits() -> None:
    assert _is_newer("9.0")
    assert not _is_newer("\u0669.0")


@pytest.mark.parametrize("cut", [False, True])
def test_a_site_without_sha256sum_counts_the_bytes(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    programs = tmp_path / "bin"
    for name in ("sh", "env", "mkdir", "mv", "rm", "wc", "head", "cat", "touch", "sleep"):
        (programs / name).symlink_to(str(shutil.which(name)))
    if cut:
        (programs / "cat").unlink()
        running.program(programs, "cat", "exec head -c 2\n")
    monkeypatch.setenv("PATH", str(programs))
    (far / "deployer" / "incoming").mkdir(parents=True)
    tool = far / "deployer" / "deployer.pyz"
    with Remote(load("lab")) as remote:
        if cut:
            with pytest.raises(TransferError, match="it did not arrive complete"):
                remote._put(b"ours")
        else:
            remote._put(b"ours")
    assert tool.exists() is not cut


def test_a_connection_that_nobody_needs_sends_no_site_half(far: Path) -> None:
    with Remote(load("lab")) as remote:
        remote.give_up()
        with pytest.raises(TransferError, match="is not needed any more"):
            remote._put(b"ours")


@pytest.mark.thorough
def test_a_site_half_that_arrives_incomplete_does_not_replace_the_one_there(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the connection broke: then the far shell reads an end of file."""
    monkeypatch.setattr("deployer.connected.transfer.remote.make_pyz", lambda: b"ours" * 1000)
    running.program(tmp_path / "bin", "cat", "exec head -c 100\n")
    tool = far / "deployer" / "deployer.pyz"
    tool.parent.mkdir()
    tool.write_text(RELEASED.format("0.0.9"))
    with (
        Remote(load("lab")) as remote,
        pytest.raises(TransferError, match=r"cannot write .*: it did not arrive complete"),
    ):
        remote.prepare()
    assert tool.read_text() == RELEASED.format("0.0.9")
    assert list((far / "deployer" / "incoming").iterdir()) == []


def test_two_laptops_bring_the_site_half_at_once(far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployer.connected.transfer.remote.make_pyz", lambda: b"ours")
    running.program(
        tmp_path / "bin",
        "cat",
        '/bin/cat; touch "$FAKE/arrived.$$"; while [ $(ls "$FAKE" | grep -c arr) -lt 2 ]; do :; done',
    )
    with Remote(load("lab")) as one, Remote(load("lab")) as other, ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(one.prepare), pool.submit(other.prepare)]:
            each.result()
    assert (far / "deployer" / "deployer.pyz").read_bytes() == b"ours"


def test_a_site_without_python(far: Path) -> None:
    profile = load("lab")
    bare = profile.model_copy(update={"login": profile.login.model_copy(update={"python": ["no-python-here"]})})
    wanted = "login1 has none of the Pythons of its profile: no-python-here"
    with pytest.raises(MissingTool, match=wanted) as caught, Remote(bare) as remote:
        remote.prepare()
    assert "login.python of the site profile" in caught.value.hint


@pytest.mark.thorough
@pytest.mark.parametrize(("watched", "told"), [(True, "1"), (False, "None")])
def test_the_far_end_is_told_that_somebody_looks_on(
    far: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], watched: bool, told: str
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: watched)
    with Remote(load("lab")) as remote:
        remote.prepare()
        tool = far / "deployer" / "deployer.pyz"
        tool.write_text("import os; print('told', os.environ.get('DEPLOYER_TERMINAL'))")
        assert remote.attach(["status"]).status == 0
    assert f"told {told}\n" in capfd.readouterr().out


@pytest.mark.thorough
def test_doctor_looks_for_what_a_job_would_find(
    far: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A runtime that only a login shell has in PATH; what that shell prints is not in the output."""
    (far / ".bash_profile").write_text("echo welcome\nexport PATH=$HOME/apptainer/bin:$PATH\n")
    (far / "apptainer" / "bin").mkdir(parents=True)
    program = far / "apptainer" / "bin" / "apptainer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(Remote, "prepare", lambda self: _with_tool(self, far))
    for command, found in (("doctor", str(program)), ("status", "None")):
        assert main.main([command, "--site", "lab", "hello"]) == 0
        said = capfd.readouterr()
        assert said.out.splitlines()[-1] == f"found {found}"
        assert ("welcome" in said.err) == (command == "doctor")
        assert "welcome" not in said.out


@pytest.mark.parametrize("command", ["doctor", "status"])
def test_a_login_shell_that_ends_before_doctor_is_named(
    far: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    (far / ".bash_profile").write_text("exit 0\n")
    monkeypatch.setattr(Remote, "prepare", lambda self: _with_tool(self, far))
    is_login = command == "doctor"
    assert main.main([command, "--site", "lab", "hello"]) == (TransferError.exit_code if is_login else 0)
    assert ("login1: the login shell ended before it ran a command" in capfd.readouterr().err) == is_login


@pytest.mark.thorough
@pytest.mark.parametrize(("target", "code", "said"), [("| head -n 1", 0, ""), ("> /dev/full", 6, "cannot write")])
def test_a_reader_that_ends_and_a_full_disk(far: Path, target: str, code: int, said: str) -> None:
    """As `deployer logs | head`: the reader has what it wants."""
    tool = "import sys\nfor _ in range(100000): sys.stdout.write('a line of the log\\n')\nsys.stdout.flush()\n"
    laptop = "import sys; from deployer.connected.transfer import remote; remote._ENVIRONMENT = ('FAKE',); "
    laptop += f"remote.make_pyz = lambda: {tool.encode()!r}; "
    laptop += "from deployer.cli.laptop import main; sys.exit(main.main(['logs', '--site', 'lab', 'x']))"
    words = ["bash", "-c", f'set -o pipefail; "$0" -c "$1" {target}', sys.executable, laptop]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(words, check=False, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "cannot start" in done.stderr) == (code, False)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def _with_tool(remote: Remote, far: Path) -> None:
    """Be prepared with a tool that tells whether it finds a runtime."""
    (far / "deployer.pyz").write_text("import shutil; print('found', shutil.which('apptainer'))\n")
    remote.python, remote.workspace = sys.executable, str(far)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["run", "hello"], ["run", "--token", "T", "hello", "--plan", "lab"]),
        (["run", "hello", "--dry-run"], ["run", "hello", "--dry-run", "--plan", "lab"]),
        (["run", "../hello"], ["run", "../hello", "--plan", "lab"]),
        (["run", "hello", "--plan", "x"], ["run", "--token", "T", "hello", "--plan", "x"]),
        (["run", "hello", "--plan=x", "--", "--plan"], ["run", "--token", "T", "hello", "--plan=x", "--", "--plan"]),
        (["status", "77", "--json"], ["status", "77", "--json"]),
    ],
)
def test_the_words_go_there_as_they_are(
    far: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sent: list[str]
) -> None:
    seen: list[list[str]] = []

    def attach(self: Remote, given: list[str], *_: object, **__: object) -> Attended:
        seen.append(list(given))
        return Attended(0, "", "")

    monkeypatch.setattr(Remote, "attach", attach)
    monkeypatch.setattr(Remote, "prepare", lambda self: None)
    assert main.main([words[0], "--site", "lab", *words[1:]]) == 0
    assert [["T" if dialogue.TOKEN.match(word) else word for word in given] for given in seen] == [sent]


#: Plays the site's `run`: it makes one job of each name, and answers with it. The line breaks before or after that.
_RUNS = """
import os, sys
if sys.argv[1] == "status":
    print('{"active": true}')
    sys.exit(255 if os.path.exists(os.path.join(os.environ["HOME"], "cut")) else 0)
job = "hello-" + sys.argv[sys.argv.index("--token") + 1]
jobs = os.path.join(os.environ["HOME"], "jobs")
if job not in (open(jobs).read() if os.path.exists(jobs) else ""):
    open(jobs, "a").write(job + "\\n")
if sys.argv[-1] == "after":
    print("deployer-answer:%s 77" % job, flush=True)
sys.exit(255 if os.path.exists(os.path.join(os.environ["HOME"], "cut")) else 0)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_line_that_breaks_while_a_job_is_submitted_leaves_one_job(
    far: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], place: str
) -> None:
    def run(*words: str) -> int:
        return main.main(["run", "--site", "lab", "hello", *words, "--", place])

    def jobs() -> list[str]:
        return (far / "jobs").read_text().split()

    monkeypatch.setattr("deployer.connected.transfer.remote.make_pyz", _RUNS.encode)
    (far / "cut").touch()
    assert run() == TransferError.exit_code
    assert "the same command again follows it" in capfd.readouterr().err
    assert run("--wait") == TransferError.exit_code  # the same job, whether or not it is followed here
    assert len(jobs()) == 1
    (far / "cut").unlink()
    assert run("--nodes", "2") == 0
    assert len(jobs()) == 2  # another command
    assert run() == 0
    assert len(jobs()) == 2
    assert run() == 0
    assert len(jobs()) == (3 if place == "after" else 2)  # that was the answer


@pytest.mark.thorough
@pytest.mark.parametrize("active", [True, False])
def test_a_reported_job_is_followed_only_while_it_is_active(
    far: Path, monkeypatch: pytest.MonkeyPatch, active: bool
) -> None:
    """Its user may have seen that it ended, or cancelled it."""
    monkeypatch.setattr(
        "deployer.connected.transfer.remote.make_pyz", _RUNS.replace("true", str(active).lower()).encode
    )
    (far / "cut").touch()
    words = ["run", "--site", "lab", "hello", "--", "after"]
    assert main.main(words) == TransferError.exit_code
    (far / "cut").unlink()
    assert main.main(words) == 0
    assert len((far / "jobs").read_text().split()) == (1 if active else 2)


@pytest.mark.thorough
@pytest.mark.parametrize(("code", "kept"), [(2, False), (3, False), (7, False), (1, True)])
def test_a_refusal_of_the_site_is_an_answer(
    far: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], code: int, kept: bool
) -> None:
    tool = f"import sys; sys.exit({code} if sys.argv[1] == 'run' else 2)"
    monkeypatch.setattr("deployer.connected.transfer.remote.make_pyz", tool.encode)
    assert main.main(["run", "--site", "lab", "hello"]) == code
    assert bool(list((far.parent / "state" / "deployer" / "submissions").iterdir())) is kept


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_only_a_recorded_submission_is_found_by_the_same_command(
    far: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    def full(*_: object) -> None:
        raise SpaceError("cannot write x: No space left on device")

    monkeypatch.setattr(Submission, "record", full)
    monkeypatch.setattr("deployer.connected.transfer.remote.make_pyz", lambda: b"raise SystemExit(255)")
    assert main.main(["run", "--site", "lab", "hello", *words]) == TransferError.exit_code
    said = capfd.readouterr().err
    assert ("the job may have been submitted" in said) == (not words)
    assert "follows it" not in said


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_record_that_cannot_be_used_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with contextlib.closing(Submission("run", "hello", "lab", ["hello"])) as first:
        first.record()

    def refused(self: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refused)
        assert Submission("run", "hello", "lab", ["hello"]).job != first.job
        assert list(Submission("run", "hello", "lab", ["-v"]).others()) == []
    assert capfd.readouterr().err.count("deployer: warning: a job that had no answer may not be found") == 2


def test_the_same_command_twice_at_once_is_two_submissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second, other = (Submission("run", "hello", site, ["hello"]) for site in ("lab", "lab", "x"))
    for each in first, second, other:
        each.record()
    assert len({first.job, second.job, other.job}) == 3
    first.close()
    again = Submission("run", "hello", "lab", ["hello"])
    assert again.token == first.token
    again.answered()
    for each in second, other:
        each.close()
    with contextlib.closing(Submission("run", "hello", "lab", ["hello"])) as last:
        assert last.token == second.token
        assert list(last.others()) == []  # the other site's
        folder = tmp_path / "deployer" / "submissions"
        assert {path.name.rpartition("-")[2] for path in folder.iterdir()} == {
            each.job.rpartition("-")[2] for each in (last, other)
        }
        with contextlib.closing(Submission("run", "hello", "x", ["-v"])) as changed:
            assert [(each.job, each.is_late) for each in changed.others()] == [(other.job, False)]


def test_a_missing_ssh_configuration() -> None:
    with pytest.raises(UsageError, match="no ssh configuration"):
        Remote(load("lab"), Path("/nowhere/config"))


#: Becomes the laptop's command line, whose far end has a tool that announces a job and follows it for ever.
WAITING = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from deployer.cli.laptop import main
from deployer.connected.transfer import remote
remote._ENVIRONMENT = ("FAKE",)
prepare = remote.Remote.prepare
def brought(self):
    prepare(self)
    Path(self.workspace, "deployer.pyz").write_text(sys.argv[1])
remote.Remote.prepare = brought
sys.exit(main.main(sys.argv[2:]))
"""
#: As ssh does, it answers Ctrl-C by 255.
FOLLOWING = """
import os, signal, time
signal.signal(signal.SIGINT, lambda *_: os._exit(255))
assert os.environ["DEPLOYER_ANNOUNCE"] == "1"
print(ANNOUNCED, end="", flush=True)
print("job hello-1 submitted", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("announced", "said"),
    [
        (
            "deployer-answer:hello-1 77\n",
            "job hello-1 (77) continues on the site\nhint: to end it: deployer cancel --site lab hello-1\n",
        ),
        pytest.param(
            "deployer-answer:hello-1 77;cluster-2\n",
            "job hello-1 (77;cluster-2) continues on the site\nhint: to end it: deployer cancel --site lab hello-1\n",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "",
            "before the site reported a job; it may have been submitted\nhint: the same command again follows it",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_ctrl_c_tells_what_becomes_of_the_job(far: Path, announced: str, said: str) -> None:
    argv = [sys.executable, "-c", WAITING, FOLLOWING.replace("ANNOUNCED", repr(announced))]
    environment = {**os.environ}
    with subprocess.Popen(
        [*argv, "run", "--site", "lab", "hello", "--wait"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as laptop:
        lines = iter(laptop.stdout.readline, "")
        shown = next(line for line in lines if line != "noise of a login shell\n")
        os.killpg(laptop.pid, signal.SIGINT)
        _, err = laptop.communicate(timeout=30)
    assert shown == "job hello-1 submitted\n"
    assert laptop.returncode == 130
    assert "deployer: interrupted" in err
    assert said in err


def lab_at(workspace: str) -> Profile:
    return load("lab").model_copy(update={"workspace": workspace})


def test_a_workspace_with_variables_is_where_the_login_shell_says(far: Path) -> None:
    (far / ".profile").write_text(f"echo Welcome\nexport PROJECT=ab12 SCRATCH={far}/scratch\n")
    with Remote(lab_at("$SCRATCH/${PROJECT}/deployer")) as remote:
        remote.prepare()
        assert remote.workspace == f"{far}/scratch/ab12/deployer"
    assert (far / "scratch" / "ab12" / "deployer" / "deployer.pyz").is_file()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", r"workspace .* is \$SCRATCH/x, and \$SCRATCH is empty or not set in your login shell"),
        ("export SCRATCH='/tmp/$(touch here)'", r"the value of \$SCRATCH is unsafe"),
        ("export SCRATCH=/scratch/../etc", r"the value of \$SCRATCH is unsafe"),
    ],
)
def test_a_variable_that_is_empty_or_unsafe_is_named(far: Path, line: str, message: str) -> None:
    (far / ".profile").write_text(line + "\n")
    with Remote(lab_at("$SCRATCH/x")) as remote, pytest.raises(UsageError, match=message):
        remote.prepare()
    assert [path.name for path in far.iterdir()] == [".profile"]


@pytest.mark.thorough
def test_a_file_is_fetched_whole_or_not_at_all(far: Path) -> None:
    data = bytes(range(256)) * 1000
    (far / "a b'c").write_bytes(data)
    with Remote(load("lab")) as remote:
        assert remote.fetch(str(far / "a b'c"), len(data)) == data
        with pytest.raises(TransferError, match="incomplete, or has more than 1000 bytes"):
            remote.fetch(str(far / "a b'c"), 1000)
        with pytest.raises(TransferError, match=r"missing"):
            remote.fetch(str(far / "missing"), 1000)
        (far / "d").mkdir()
        (far / "d" / "x").write_text("")
        assert remote.has(str(far / "d"), "x")
        assert not remote.has(str(far / "d"), "y")
        (far / "f" / "e").mkdir(parents=True)
        (far / "f" / "e" / "a b").write_text("123")
        (far / "f" / "l").symlink_to("x")
        listed, state = remote.files_in(str(far / "f")), (far / "f" / "e" / "a b").stat()
        assert [(name, each.size, each.inode) for name, each in listed.items()] == [("e/a b", 3, state.st_ino)]
        assert int(float(listed["e/a b"].time)) == int(state.st_mtime)
        with pytest.raises(DeployerError, match="nowhere"):
            remote.has(str(far / "nowhere"), "x")
        with pytest.raises(DeployerError, match="nowhere"):
            remote.files_in(str(far / "nowhere"))
        remote.workspace = str(far / "d")
        remote.remove(["x", ""])
        assert not (far / "d").exists()


def test_a_path_of_the_site_adds_no_line_to_a_batch_of_sftp(far: Path, tmp_path: Path) -> None:
    """A line that begins with ! is a command for this machine."""
    (tmp_path / "master").touch()
    with Remote(load("lab")) as remote, pytest.raises(TransferError, match="its path has a line end"):
        remote.download(f'/x"\n!touch {tmp_path}/made\n"', tmp_path / "fetched")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("path", "why"), [("/x" + "y" * 900, "more than 900 bytes"), ("/" + "\\" * 500, "more than 900"), ("/x\0", "a NUL")]
)
def test_a_path_that_sftp_would_cut(path: str, why: str) -> None:
    assert _sftp_quoted("/" + "y" * 899) == f'"/{"y" * 899}"'
    with pytest.raises(TransferError, match=why):
        _sftp_quoted(path)


def noisy(far: Path, noise: str) -> None:
    """Let the far login shell print or do something before each command."""
    ssh = far.parent / "bin" / "ssh"
    ssh.write_text(ssh.read_text().replace('HOME="$FAKE/home" exec', f'{noise}\n     HOME="$FAKE/home" exec'))


@pytest.mark.thorough
def test_what_a_login_shell_prints_without_a_line_end_hides_no_answer(
    far: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noisy(far, "printf '\\033]0;alice\\007' | tee /dev/stderr")
    with Remote(load("lab")) as remote:
        remote.prepare()
        assert remote.workspace == str(far / "deployer")
        assert remote.site(["known", "sha256:00"], login=True).record["folder"] is None
        assert remote.site(["known", "sha256:00"], tell=lambda *_: None).record["folder"] is None
        with pytest.raises(DeployerError, match=r"^login1: no image x is installed") as caught:
            remote.site(["run", "x"])
        assert caught.value.hint.startswith("install a bundle")
        capfd.readouterr()
        assert remote.attach(["list", "--json"]).status == 0
    assert json.loads(capfd.readouterr().out)["images"] == []


@pytest.mark.parametrize(
    ("noise", "said"), [("exit 0", "a command$"), ("echo For people only; exit 1", "a command: .*For people only$")]
)
def test_a_login_shell_that_ends_before_the_command_is_named(far: Path, noise: str, said: str) -> None:
    ssh = far.parent / "bin" / "ssh"
    ssh.write_text(ssh.read_text().replace('echo "noise of a login shell"', ""))
    noisy(far, noise)
    with Remote(load("lab")) as remote, pytest.raises(TransferError, match=rf"ended before it ran {said}") as caught:
        remote.prepare()
    assert "start-up file" in caught.value.hint


def test_a_full_disk_for_the_workspace(far: Path, tmp_path: Path) -> None:
    running.program(
        tmp_path / "bin", "mkdir", "echo 'mkdir: cannot create directory: Disk quota exceeded' >&2; exit 1\n"
    )
    with Remote(load("lab")) as remote, pytest.raises(SpaceError, match="no space or quota left"):
        remote.prepare()


def test_a_python_that_does_not_start_is_named_with_its_words(far: Path, tmp_path: Path) -> None:
    for name, does in (("old", "exit 1"), ("module-only", "echo libpython3.9.so.1.0: cannot open >&2; exit 127")):
        running.program(tmp_path / "bin", name, f"{does}\n")
    profile = load("lab")
    login = profile.login.model_copy(update={"python": ["nowhere", "old", "module-only"]})
    why = r"\(old: older than 3\.6; module-only: libpython3\.9\.so\.1\.0: cannot open\)$"
    with Remote(profile.model_copy(update={"login": login})) as remote, pytest.raises(MissingTool, match=why) as caught:
        remote.prepare(tries=True)
    assert "write a script" in caught.value.hint
