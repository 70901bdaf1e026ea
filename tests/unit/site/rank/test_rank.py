"""The payload is run as if nothing were between it and the launcher, and what it mapped is written down."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from deployer.contract.rules import hostfiles
from deployer.site.rank import launched, payload_monitor, rank
from deployer.site.rank.observed import mapped_mpi
from deployer.system import elf
from tests.evidence import recorded

#: Called with the folder of the rank, that of all ranks, and the seconds for goodbyes; last words are shorter here.
#: It ends as first_module does.
CODE = """
import os, sys
from deployer.site.rank import rank, payload_monitor as watch
watch._LAST_WORDS = 0.1
watch.GRACE = float(sys.argv[3])
os._exit(rank.main(["--out", sys.argv[1], "--shared", sys.argv[2], *sys.argv[4:]]))
"""


def start(out, *command, shared=None, goodbye=20.0, task=5, reads="", options=(), environment=(), **more):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "SLURM_PROCID": str(task)}
    env.update(environment)
    words = [*options, *(["--stdin", reads] if reads else [])]
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(out), str(shared or out), str(goodbye), *words, "--", *command],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


def finish(process):
    out, err = process.communicate(timeout=30)
    return process.returncode, out.decode(), err.decode()


def record(out):
    return json.loads(recorded(out, "payload-5.json"))


@pytest.mark.thorough
@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_codes_are_the_payload_s(tmp_path, code):
    assert finish(start(tmp_path, "sh", "-c", "exit %d" % code))[0] == code
    assert (record(tmp_path)["exit_code"], record(tmp_path)["signal"]) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_that_ends_the_payload_ends_the_rank(tmp_path, number):
    assert finish(start(tmp_path, "sh", "-c", "kill -%d $$" % number))[0] == -number
    assert (record(tmp_path)["exit_code"], record(tmp_path)["signal"]) == (None, number)


def test_sigterm_to_the_group_lets_the_payload_decide(tmp_path):
    script = 'trap "echo saved; exit 5" TERM; echo ready; while :; do sleep 0.1; done'
    process = start(tmp_path, "sh", "-c", script, preexec_fn=os.setsid)
    assert process.stdout.readline() == b"ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    code, out, _ = finish(process)
    assert (code, out) == (5, "saved\n")


def test_sigterm_to_the_rank_alone_reaches_the_payload_if_the_launcher_may_do_so(tmp_path):
    """PALS: it is not known whether it signals the ranks' children too."""
    script = 'trap "echo saved; exit 5" TERM; echo ready; while :; do sleep 0.1; done'
    process = start(tmp_path, "sh", "-c", script, options=["--end"])
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    code, out, _ = finish(process)
    assert (code, out) == (5, "saved\n")


@pytest.mark.thorough
def test_a_launcher_that_passes_on_sigusr2_lets_the_payload_decide(tmp_path):
    """The payload's own SIGUSR2, which the launcher sends to the whole group, does nothing, however often it comes."""
    script = 'trap "echo saved; sleep 0.5; exit 5" TERM; echo ready; while :; do sleep 0.1; done'
    process = start(tmp_path, "sh", "-c", script, options=["--end"], preexec_fn=os.setsid)
    assert process.stdout.readline() == b"ready\n"
    for _ in range(2):
        os.killpg(process.pid, signal.SIGUSR2)
    code, out, _ = finish(process)
    assert (code, out) == (5, "saved\n")


@pytest.mark.thorough
@pytest.mark.parametrize(("seconds", "saved"), [(60, True), (0.2, False)])
def test_a_rank_that_is_asked_to_end_waits_for_the_goodbyes_of_the_others(tmp_path, seconds, saved):
    """A launcher ends all of them when it sees that one has failed."""
    first = ["sh", "-c", 'trap "sleep 1; echo saved; exit 5" TERM; echo ready; while :; do sleep 0.1; done']
    second = ["sh", "-c", "echo ready; exec sleep 60"]
    nodes = [tmp_path / "cn1", tmp_path / "cn2"]
    ranks = []
    for task, (node, command) in enumerate(zip(nodes, [first, second])):
        node.mkdir()
        ranks.append(start(node, *command, shared=tmp_path, goodbye=seconds, task=task, preexec_fn=os.setsid))
        assert ranks[task].stdout.readline() == b"ready\n"
    for process in ranks:
        os.killpg(process.pid, signal.SIGTERM)
    assert finish(ranks[1])[0] == -signal.SIGTERM
    assert bool(list(nodes[0].iterdir())) is saved
    assert finish(ranks[0])[:2] == (5, "saved\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cn1", "cn2"]


def test_descriptors_and_environment_are_handed_on_as_they_came(tmp_path):
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)  # as srun's PMI descriptor
    process = start(tmp_path, "bash", "-c", "echo pmi >&%d; env" % writer, close_fds=False)
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == "pmi\n"
    names = {line.partition("=")[0] for line in finish(process)[1].splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "PYTHONPATH", "SLURM_PROCID"}


def test_signals_are_as_a_shell_would_leave_them(tmp_path):
    def as_from_a_shell():  # who started the tests may ignore some: a background job, nohup
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)

    script = "grep -E 'Sig(Blk|Ign)' /proc/self/status"
    _, out, _ = finish(start(tmp_path, "sh", "-c", script, preexec_fn=as_from_a_shell))
    assert [int(line.split()[1], 16) for line in out.splitlines()] == [0, 0]


def test_a_payload_reads_its_file_from_the_beginning(tmp_path):
    text = tmp_path / "in put"
    text.write_text("one\ntwo\n")
    for _ in range(2):
        assert finish(start(tmp_path, "cat", reads=str(text), stdin=subprocess.DEVNULL))[:2] == (0, "one\ntwo\n")


def test_a_file_that_cannot_be_read_ends_the_rank(tmp_path):
    code, out, err = finish(start(tmp_path, "echo", "started", reads=str(tmp_path / "gone"), stdin=subprocess.DEVNULL))
    assert (code, out) == (2, "")
    said = "deployer: error: cannot read %s, the job's stdin: No such file or directory\n" % (tmp_path / "gone")
    assert err == said
    assert record(tmp_path)["exit_code"] == 2


def test_a_program_that_is_not_there(tmp_path):
    code, _, err = finish(start(tmp_path, "/no/such/program"))
    assert code == 7
    assert err.startswith("deployer: error: cannot start /no/such/program")
    assert "Traceback" not in err


@pytest.mark.thorough
@pytest.mark.parametrize("nested", [False, True])
def test_the_library_that_the_payload_maps_is_written_down(tmp_path, stand_in, nested):
    code = "import ctypes, sys, time; ctypes.CDLL(sys.argv[1]); time.sleep(1)"
    command = [sys.executable, "-c", code, stand_in]
    if nested:  # a wrapper, as many payloads have
        command = ["sh", "-c", '"$@"; echo done', "sh", *command]
    assert finish(start(tmp_path, *command))[0] == 0
    assert record(tmp_path)["libraries"] == [
        {"path": stand_in, "identity": elf.identity(stand_in), "says": "Stand-in MPI 1.0"}
    ]


#: Maps the files that it gets, of which only the name matters: what is mapped is read from the kernel.
MAPS = (
    "import mmap, sys, time; files = [open(name) for name in sys.argv[1:]]; "
    "maps = [mmap.mmap(file.fileno(), 0, access=1) for file in files]; time.sleep(0.6)"
)


def file_of_mpi(folder):
    folder.mkdir(exist_ok=True)
    (folder / "libmpi.so.12").write_bytes(bytes(4096))
    return str(folder / "libmpi.so.12")


@pytest.mark.thorough
@pytest.mark.parametrize(("words", "expected"), [(["env"], []), (["env", "-u", "PMI_FD"], ["PMI_FD"])])
def test_variables_of_the_launcher_that_a_program_with_mpi_lacks(tmp_path, words, expected):
    command = [*words, sys.executable, "-c", MAPS, file_of_mpi(tmp_path)]
    assert finish(start(tmp_path, *command, environment={"PMI_FD": "1"}))[0] == 0
    assert record(tmp_path)["unset"] == expected


def test_two_mpi_libraries_of_one_process(tmp_path):
    first, second = file_of_mpi(tmp_path / "a"), file_of_mpi(tmp_path / "b")
    assert finish(start(tmp_path, sys.executable, "-c", MAPS, first, second))[0] == 0
    assert sorted(record(tmp_path)["together"]) == [first, second]


def observed(pid):
    observer = payload_monitor._Observer(pid, 0, launched.RankOptions({"--out": "/nowhere"}))
    observer.look()
    return observer.record


def test_the_version_is_asked_of_the_file_that_is_mapped(tmp_path, monkeypatch):
    """Under proot the kernel's path of the host's library leads to the image's own file."""
    asked = []
    monkeypatch.setattr(payload_monitor, "_says", asked.append)
    monkeypatch.setattr(mapped_mpi, "family", lambda pid: [pid])
    monkeypatch.setattr(mapped_mpi, "maps", lambda pid: "0-1 r-xp 0 08:01 %d %s" % (os.stat(host).st_ino, image))
    host, image = file_of_mpi(tmp_path / "host"), file_of_mpi(tmp_path / "image")
    monkeypatch.setattr(hostfiles, "LIBRARIES", str(tmp_path / "host"))
    assert observed(os.getpid())["together"] == []
    assert asked == [host]


def test_an_mpi_library_in_each_of_two_processes_is_no_second_one(monkeypatch):
    texts = {1: "0-1 r-xp 0 08:01 5 /a/libmpi.so.12", 2: "0-1 r-xp 0 08:01 6 /b/libmpi.so.12"}
    monkeypatch.setattr(mapped_mpi, "family", lambda pid: list(texts))
    monkeypatch.setattr(mapped_mpi, "maps", texts.get)
    found = observed(1)
    assert found["together"] == []
    assert len(found["libraries"]) == 2


def test_evidence_that_cannot_be_written_does_not_end_the_payload(tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = finish(start(tmp_path / "file", "echo", "trained"))
    assert (code, out) == (0, "trained\n")
    assert "deployer: error: cannot write" in err


def test_the_end_is_noticed_at_once(tmp_path):
    begun = time.time()
    finish(start(tmp_path, "sleep", "0.5"))
    assert time.time() - begun < 3


def test_next_to_nothing_is_imported_before_the_payload_is_on_its_way():
    """Every rank of a job waits for it; ``typing``, ``json`` and ``re`` alone take longer than the rest."""
    code = f"import sys; sys.path.insert(0, {os.getcwd()!r}); import deployer.site.rank.rank; print(*sys.modules)"
    modules = set(subprocess.check_output([sys.executable, "-I", "-S", "-c", code]).decode().split())
    slow = {"typing", "json", "re", "argparse", "logging", "subprocess", "socket", "tempfile", "hashlib", "contextlib"}
    assert "deployer.system.payload" in modules
    assert not modules & slow
    assert {name for name in modules if name.startswith("deployer.")} <= {
        "deployer.site", "deployer.site.rank", "deployer.site.rank.launched", "deployer.site.rank.rank",
        "deployer.site.rank.rendezvous",
        "deployer.system", "deployer.system.payload",
    }  # fmt: skip


@pytest.mark.parametrize(
    "words", [[], ["--out", "x"], ["--out", "x", "--"], ["--out"], ["--out", "x", "--no", "--", "y"], ["true"]]
)
def test_it_is_called_by_the_script_alone(words, capsys):
    assert rank.main(words) == 2
    assert "job.sh" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, None])
def test_after_a_request_to_end_the_home_is_removed_on_each_node(tmp_path, number):
    """Not before all payloads have ended: each may save its state there. Without a request, job.sh does it."""
    home = tmp_path / "home"
    (home / "closed").mkdir(parents=True)
    (home / "closed").chmod(0o500)
    saves = "exec 2>/dev/null; trap 'sleep 0.5; echo saved >{}/state; exit 9' TERM; echo ready; {}".format(
        home,
        "while :; do sleep 0.1; done" if number else ":",
    )
    process = start(tmp_path, "sh", "-c", saves, options=["--home", str(home)], start_new_session=True)
    assert process.stdout.readline() == b"ready\n"
    if number:
        os.killpg(process.pid, number)
    code, _, err = finish(process)
    assert (code, err) == (9 if number else 0, "")
    assert home.exists() is (number is None)
