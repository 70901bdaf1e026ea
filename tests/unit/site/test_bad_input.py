"""What people get wrong, command by command, and records that were damaged: one line, a documented code, no defect."""

import json
import os
import subprocess
import sys

import pytest

from deployer.cli.site import main
from tests import running as made

LONG = "n" * 3000


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a store with an image, which DEPLOYER_ROOT names, and a fake Slurm on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (
        ("ch-run", "exit 0"),
        ("python3", "exit 0"),
        ("sbatch", "echo 77"),
        ("squeue", 'echo "77|COMPLETED|0:01|cn1|None"'),
    ):
        made.program(folder, name, text)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    found = made.store(tmp_path / "root")
    monkeypatch.setenv("DEPLOYER_ROOT", found.root)
    monkeypatch.chdir(tmp_path)
    return found


def says(capsys, words, code):
    """Return what a command says on stderr: one line, at most a hint, and the command that explains it."""
    assert main.main(list(words)) == code, words
    text = capsys.readouterr().err
    lines = text.splitlines()
    assert lines.pop().startswith("more: python3 deployer.pyz explain ")
    assert lines[0].startswith("deployer: error: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: "))
    assert "unexpected" not in text
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("name", ["nope", ":1", "hello:2", "h\u00e9llo", LONG])
@pytest.mark.parametrize("verb", ["run", "exec", "shell", "remove", "doctor"])
def test_an_image_that_is_not_there(store, capsys, verb, name):
    words = [verb, name] + (["--", "true"] if verb == "exec" else [])
    assert f"no image {name} is installed" in says(capsys, words, 2)


@pytest.mark.parametrize("verb", ["status", "logs", "cancel"])
def test_a_job_that_is_not_there(store, capsys, verb):
    assert "there are no jobs" in says(capsys, [verb], 2)
    assert main.main(["run", "hello"]) == 0
    capsys.readouterr()
    for name in ("nope", "", "78", "h\u00e9llo", LONG):
        assert "no job" in says(capsys, [verb, name], 2)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["run", "hello", "nope"], 2, "its jobs: train, short"),
        (["run", "hello", "--plan", ""], 2, "no plan for site ''"),
        (["run", "hello", "--bind", ""], 2, "names no source"),
        (["run", "hello", "--bind", ":/data"], 2, "names no source"),
        (["run", "hello", "--nodes", "1.5"], 2, "invalid int value"),
        (["run", "hello", "--nodes", "9" * 30], 2, "are too many"),
        (["run", "hello", "--threads", "9" * 30], 3, "CPUs"),
        (["run", "hello", "--memory", "0"], 2, "MiB of memory per rank must be at least 1, not 0"),
        (["run", "hello", "--memory=-1"], 2, "must be at least 1, not -1"),
        (["run", "hello", "--time", ""], 2, "is not [D-]HH:MM:SS"),
        (["run", "hello", "--time", "00:00:00"], 2, "zero means no limit"),
        (["run", "hello", "--time", "99999999999-00:00:00"], 2, "is not [D-]HH:MM:SS"),
        (["run", "hello", "--directive=exclusive"], 2, "not a valid word for sbatch"),
        (["run", "hello", "--bogus"], 2, "see: deployer.pyz run --help"),
        (["exec", "hello"], 2, "no command to run"),
        (["doctor", "", "--dry-run"], 2, "no image"),
        (["doctor", "--patience", "nan"], 2, "must be a number above 0"),
        (["doctor", "--patience", "0"], 2, "must be a number above 0"),
        (["gc", "--keep", "x"], 2, "invalid count value: 'x'"),
        (["install", ""], 2, "cannot open"),
        (["install", "/"], 2, "Is a directory"),
        (["install", "bin/sbatch"], 4, "is not a bundle"),
        (["list", "--root", "nope"], 2, "there is no folder"),
        (["gc", "--root", "nope"], 2, "there is no folder"),
        (["remove", ""], 2, "remove requires an image or --all"),
        (["capture", "--merge", "root/receipt.json"], 2, "is not a profile"),
    ],
)
def test_wrong_words(store, capsys, words, code, text):
    made.write(os.path.join(store.root, "receipt.json"), {"schema": "deployer.held"})
    assert text in says(capsys, words, code)
    assert not os.path.exists("nope")


def test_what_is_not_there_is_not_said_to_be_removed(store, capsys):
    assert main.main(["remove", "--all", "--root", "nope"]) == 0
    assert capsys.readouterr().out.startswith("there is no folder ")


def test_no_image_at_all_is_said(store, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main.main(["list", "--root", "empty"]) == 0
    found = capsys.readouterr()
    assert (found.out, "no image is installed under " in found.err) == ("", True)


# --- records that were damaged ---

DAMAGED = [b"", b"{", b"[]", b"\xff\xfe", b'{"schema":"deployer.x"}', b"[" * 100000]


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_records(store, capsys, data):
    assert main.main(["run", "hello"]) == 0
    folder = capsys.readouterr().out.split()[-1]
    image = os.path.join(store.images, "aaaa")

    def damage(where, name):
        with open(os.path.join(where, name), "wb") as stream:
            stream.write(data)

    damage(folder, "result.json")  # how the job is, Slurm knows
    assert main.main(["status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["exit_code"]) == ("COMPLETED", None)
    assert "result.json" in status["problem"]
    damage(folder, "job_id")
    assert "was never submitted" in says(capsys, ["cancel"], 2)
    damage(folder, "job.json")
    for words in (["status"], ["run", "hello", "--plan", "lab", "--nodes", "0"]):
        says(capsys, words, 2)
    assert "cannot tell whether job" in says(capsys, ["remove", "hello"], 8)  # it may use the image
    damage(os.path.join(image, "plans"), "lab.json")
    for words in (["run", "hello"], ["exec", "hello", "--", "true"], ["shell", "hello"]):
        assert "plans/lab.json" in says(capsys, words, 2)
    damage(image, "receipt.json")  # one damaged image stops no other
    made.store(os.path.join(store.root, "other"), name="other")
    os.rename(os.path.join(store.root, "other", "images", "aaaa"), os.path.join(store.images, "bbbb"))
    assert main.main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "other:1"
    assert "installed: other:1" in says(capsys, ["run", "hello"], 2)


# --- words that the locale has no signs for ---

COMMAND = "import sys; from deployer.cli.site import main as site; sys.exit(site.main())"


def called(store, *words):
    """Call the command in the C locale, in which Python 3.6 knows ASCII alone, and return it when it has ended."""
    environment = dict(os.environ, LC_ALL="C", PYTHONPATH=os.getcwd(), PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    argv = [sys.executable, "-c", COMMAND, *words]
    return subprocess.run(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


@pytest.mark.thorough
def test_words_of_any_bytes_go_to_the_job_as_they_came(store, monkeypatch):
    monkeypatch.chdir(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__)))))
    for word in ("\u00e9".encode(), b"\xff"):
        done = called(store, b"run", b"hello", b"--dry-run", b"--", b"--name=" + word)
        assert (done.returncode, b"--name=" + word in done.stdout) == (0, True), done.stderr
        done = called(store, b"run", b"no" + word)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(b"deployer: error: no image no")
        assert b"Traceback" not in done.stderr
        logs = os.path.join(store.root, "logs")
        with open(
            os.path.join(logs, max(os.listdir(logs), key=lambda n: os.stat(os.path.join(logs, n)).st_mtime_ns))
        ) as log:
            assert "no image no\\udc" in log.read()


def test_what_a_job_said_is_shown_in_any_locale(store, capsys, monkeypatch):
    assert main.main(["run", "hello"]) == 0
    folder = capsys.readouterr().out.split()[-1]
    finding = {"code": "job.module", "severity": "error", "subject": "job", "message": "\u00e9", "remedy": "x"}
    stamp = {"schema": "deployer.result", "format": 1, "min_reader": 1}
    made.write(os.path.join(folder, "result.json"), dict(stamp, exit_code=1, findings=[finding]))
    monkeypatch.chdir(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__)))))
    done = called(store, b"status")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"job: \\xe9 (job.module)" in done.stdout
