"""Rehearsals of programs that make it hard: they fork, close everything, catch everything, do not end, fill /tmp."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import ROOT, Cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_REACH = """\
import urllib.request
urllib.request.urlopen("http://data.example.invalid/set.tar", timeout=5)
"""
_TRAIN = "print('trained on', len("
_FILL = """\
with open(path, "wb") as stream:
    for _ in range(300):
        stream.write(bytes(1024 * 1024))
    stream.flush()
    import time
    time.sleep(3)
"""
#: What jobs have besides.
_MORE: dict[str, dict[str, Any]] = {
    "shared": {"memory": 200},
    "spools": {"memory": 200},
    "late": {"time": "00:00:02"},
}
#: Each is one process on each of two nodes.
PROGRAMS = {
    "forks": f"""\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
{"".join("        " + line + chr(10) for line in _REACH.splitlines())}
    os._exit(0)
os.wait()
time.sleep(3)
""",
    "orphan": """\
import os, time
if os.fork() == 0:
    os.setsid()
    for number in range(3):
        os.close(number)
    open("started", "w").close()
    time.sleep(3599)
print("parent ends")
""",
    "closes": f"import os\nos.closerange(0, 4096)\n{_REACH}",
    "catches": f"""\
try:
{"".join("    " + line + chr(10) for line in _REACH.splitlines())}
except BaseException:
    pass
print("trained")
""",
    "deaf": "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(1)\n",
    "fills": """\
import os
block = bytes(1024 * 1024)
with open("/tmp/full", "wb") as stream:
    for _ in range(96):
        stream.write(block)
    stream.flush()
    import time
    time.sleep(3)
""",
    "nothing": f"import glob\n{_TRAIN}glob.glob('/lustre/project/set/*.npz')))\n",
    "shared": f"path = '/dev/shm/shared'\n{_FILL}",
    "spools": f"import os\npath = os.environ['TMPDIR'] + '/spool'\n{_FILL}",
    "late": "import time\ntime.sleep(4)\n",
    "terminal": "open('/dev/tty').read()\n",
    "asks": "print('epochs?', input())\n",
}


@pytest.fixture(scope="module")
def difficult(built: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle with hello-mpi's image and a job for each program."""
    folder = tmp_path_factory.mktemp("difficult")
    (folder / "app").mkdir()
    for name, text in PROGRAMS.items():
        (folder / "app" / f"{name}.py").write_text(text)
    record = {
        "name": "difficult",
        "version": "1.0.0",
        "base": {"debian": "bookworm", "include": ["python3"]},
        "context": os.path.relpath(ROOT / "bundles" / "hello-mpi", folder),
        "mpi": [],
        "jobs": {
            name: {"command": ["python3", f"/deployer/app/{name}.py"], "nodes": 2, **_MORE.get(name, {})}
            for name in PROGRAMS
        },
    }
    (folder / "bundle.yaml").write_text(yaml.safe_dump(record))
    return _packed(built, folder)


def _packed(cli: Cli, folder: Path) -> Path:
    bundle = folder / "bundle.tar"
    cli("build", folder)
    cli("pack", folder, "--site", "lab", "-o", bundle)
    return bundle


def rehearse(cli: Cli, bundle: Path, job: str, code: int, *options: object) -> dict[str, Any]:
    """Rehearse a job and return the record."""
    done = cli("rehearse", bundle, job, "--site", "lab", "--json", *options, code=code)
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def _found(record: dict[str, Any], code: str) -> list[dict[str, Any]]:
    return [each for each in record["findings"] if each["code"] == code]


@pytest.mark.parametrize(("job", "code"), [("forks", 0), ("closes", 3), ("catches", 0)])
def test_what_it_reached_for_is_named(built: Cli, difficult: Path, job: str, code: int) -> None:
    record = rehearse(built, difficult, job, code)
    named = _found(record, "rehearse.network")
    assert [each["subject"] for each in named] == ["data.example.invalid"]
    assert named[0]["stopped"] is bool(code)
    assert named[0]["file"] == f"/deployer/app/{job}.py"


def test_a_program_deaf_to_sigterm_ends_with_the_time(built: Cli, difficult: Path) -> None:
    started = time.monotonic()
    record = rehearse(built, difficult, "deaf", 0, "--time", "5s")
    assert (record["ending"]["how"], record["verdict"]) == ("limit", "UNKNOWN")
    assert time.monotonic() - started < 120
    assert _running("/deployer/app/deaf.py") == []


def test_an_orphan_does_not_survive(built: Cli, difficult: Path) -> None:
    record = rehearse(built, difficult, "orphan", 0)
    assert record["ending"]["how"] == "done"
    assert _running("/deployer/app/orphan.py") == []


def test_a_full_tmp_is_measured(built: Cli, difficult: Path) -> None:
    record = rehearse(built, difficult, "fills", 0)
    assert record["used"]["temporary"] >= 96 * 1024**2


@pytest.mark.parametrize(
    ("job", "code", "verdict", "finding", "said"),
    [
        ("nothing", 0, "WARN", "rehearse.missing", "it opened no other data"),
        ("shared", 3, "REFUSE", "rehearse.memory", "the kernel killed it for lack of memory"),
        ("spools", 0, "WARN", "rehearse.memory", "if the site keeps /tmp in memory"),
        ("late", 0, "WARN", "rehearse.time", "and its time limit is 2 s"),
    ],
)
def test_what_the_site_lacks_is_no_run(
    built: Cli, difficult: Path, job: str, code: int, verdict: str, finding: str, said: str
) -> None:
    record = rehearse(built, difficult, job, code)
    assert record["verdict"] == verdict, record
    assert said in _found(record, finding)[0]["message"]


@pytest.mark.parametrize(("job", "said"), [("terminal", "/dev/tty"), ("asks", "EOF")])
def test_there_is_no_terminal(built: Cli, difficult: Path, job: str, said: str) -> None:
    record = rehearse(built, difficult, job, 3)
    assert record["ending"]["how"] == "failed"
    assert said in json.dumps(record)


def test_an_image_without_python(built: Cli, tmp_path: Path) -> None:
    record = {
        "name": "no-python",
        "version": "1.0.0",
        "base": {"debian": "bookworm"},
        "mpi": [],
        "jobs": {"ask": {"command": ["getent", "ahosts", "licence.example.invalid"], "nodes": 2}},
    }
    (tmp_path / "bundle.yaml").write_text(yaml.safe_dump(record))
    found = rehearse(built, _packed(built, tmp_path), "ask", 3)
    assert "python" not in found["watched"]
    assert [each["subject"] for each in _found(found, "rehearse.network")] == ["licence.example.invalid"]


def _running(word: str) -> list[str]:
    """Return the processes of this machine with a word in their command."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True, timeout=30).stdout
    return [line for line in listed.splitlines() if word in line and "ps -eo" not in line]
