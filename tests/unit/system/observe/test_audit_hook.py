"""The audit hook in real processes: what they reach for is written down, and they notice nothing of it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from deployer.contract.rehearsal import observation, rehearsal
from deployer.system.observe import audit_hook

PROGRAM = """\
import ctypes, os, pathlib, socket, subprocess, sys, threading, urllib.request
print(sorted(vars(threading)) != [], sys.flags.no_site, sys.path[0] != "")

def pooled(dataset_name):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(1) as pool:
        pool.submit(socket.gethostbyname, "pool.invalid").exception()

pooled("mnist")

def load(url, repo_or_dir=pathlib.Path("data")):
    try:
        urllib.request.urlopen(url, timeout=1)
    except OSError as error:
        print(type(error).__name__)

def tries(function, *args):
    for _ in range(3):
        try:
            function(*args)
        except (OSError, TypeError, ValueError) as error:
            print(type(error).__name__)

load("http://data.invalid/mnist.npz")
tries(open, "nothing/x.csv")
tries(open, b"\\xff")
tries(open, "a\\0b", "w")
tries(open, "own", "w")
tries(os.makedirs, "own/y")
tries(subprocess.call, ["nvidia-smix"])
print(subprocess.call([sys.executable, "-c", "import os; os.execv('/no/prog', ['x'])"]))
tries(socket.socket(socket.AF_UNIX).connect, "/no/sock")
tries(ctypes.CDLL, "libnothing.so")
try:
    input()
except EOFError:
    pass
if os.fork() == 0:
    os.closerange(3, 100)
    tries(socket.create_connection, ("127.0.0.1", 9))
    os._exit(0)
os.wait()
thread = threading.Thread(target=lambda: [][1])
thread.start()
thread.join()
sys.excepthook = lambda *_: print("own hook", flush=True)
try:
    [][0]
except IndexError as error:
    raise RuntimeError("the end") from error
"""


@pytest.fixture
def place(tmp_path):
    for name in ("hook", "seen", "work"):
        (tmp_path / name).mkdir()
    shutil.copy(audit_hook.__file__, str(tmp_path / "hook/sitecustomize.py"))
    return tmp_path


def run(place, words, environment):
    return subprocess.run(
        [sys.executable, *words],
        cwd=str(place / "work"),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


def start(place, program, **variables):
    """Run a program twice: observed, and not; return both outcomes and the observations."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "LC_ALL": "C.UTF-8", **variables}
    (place / "work/program.py").write_text(program)
    watched = {"PYTHONPATH": str(place / "hook"), audit_hook.FOLDER: str(place / "seen")}
    ended = [run(place, ["program.py"], dict(environment, **more)) for more in ({}, watched)]
    names = sorted(os.listdir(str(place / "seen")))
    found = observation.read((name, (place / "seen" / name).read_bytes()) for name in names)
    assert not found.unreadable
    return ended, found.observations


AUDITED = pytest.mark.skipif(sys.version_info < (3, 8), reason="no audit hooks; the next test is for this Python")


@pytest.mark.thorough
@AUDITED
def test_what_a_program_reaches_for(place):
    (alone, watched), found = start(place, PROGRAM)
    assert (watched.returncode, watched.stdout, watched.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    work = str(place / "work")
    kinds = [(item.kind, item.what) for item in found if item.kind not in ("process", "library")]
    assert set(kinds) == {
        ("address", "127.0.0.1 port 9"),
        ("daemon", "/no/sock"),
        ("host", "127.0.0.1"),
        ("host", "data.invalid"),
        ("host", "pool.invalid"),
        ("missing", "standard input"),
        ("missing", work + "/\udcff"),
        ("missing", work + "/nothing/x.csv"),
        ("program", "/no/prog"),
        ("program", "nvidia-smix"),
        ("uncaught", "FileNotFoundError: [Errno 2] No such file or directory"),
        ("uncaught", "IndexError: list index out of range"),
        ("uncaught", "RuntimeError: the end"),
        ("url", "http://data.invalid/mnist.npz"),
    }
    by_what = {item.what: item for item in found}
    asked = by_what["data.invalid"]
    assert [frame.function for frame in asked.stack][-2:] == ["load", "<module>"]
    assert asked.stack[-2].line == 13
    pooled = by_what["pool.invalid"]
    assert [frame.function for frame in pooled.stack][-2:] == ["pooled", "<module>"]
    assert pooled.about["dataset_name"] == "mnist"
    assert (asked.about["url"], asked.about["repo_or_dir"]) == ("http://data.invalid/mnist.npz", "data")
    assert by_what["libnothing.so"].kind == "library"
    end = by_what["RuntimeError: the end"]
    assert end.about["after"] == "IndexError: list index out of range"
    assert (end.stack[0].function, by_what["IndexError: list index out of range"].about["thread"]) == (
        "<module>",
        "yes",
    )
    assert len({item.process for item in found}) == 3  # the program, its child, and the Python that it started


LIBRARY = """\
import http.client, socket, urllib.request

def load(repo_id, depth=45):
    if depth:
        return inner(depth)
    try:
        urllib.request.urlopen("http://up.invalid/x", data=b"x", timeout=1)
    except OSError:
        socket.gethostbyname("deep.invalid")

def inner(depth):
    repo_id = "its own"
    return load("a/b", depth - 1)
"""


@pytest.mark.thorough
@AUDITED
def test_the_programs_line_is_kept_below_many_frames_of_a_library(place):
    package = place / "lib/site-packages"
    package.mkdir(parents=True)
    (package / "deep.py").write_text(LIBRARY)
    program = (
        f"import sys\nsys.path.append({str(package)!r})\nimport deep\n\ndef main():\n    deep.load('c/d')\nmain()\n"
    )
    _, found = start(place, program)
    by_what = {item.what: item for item in found}
    for what in ("deep.invalid", "http://up.invalid/x", "gaierror"):
        item = next(each for name, each in by_what.items() if name.startswith(what))
        assert str(rehearsal.user_frame(item.stack)).endswith("program.py:6 in main")
        assert item.about["repo_id"] == "c/d"
    assert by_what["http://up.invalid/x"].about["method"] == "POST"


@pytest.mark.skipif(sys.version_info >= (3, 8), reason="it has audit hooks")
def test_a_python_without_audit_hooks_says_so_and_tells_the_exception(place):
    (alone, watched), found = start(place, "open('nothing')\n")
    assert (watched.returncode, watched.stderr) == (alone.returncode, alone.stderr)
    assert [item.kind for item in found] == ["process", "blind", "uncaught"]
    assert found[-1].what == "FileNotFoundError: [Errno 2] No such file or directory: 'nothing'"


def test_the_images_own_sitecustomize_runs_as_well(place):
    for name in ("own", "broken"):
        (place / name).mkdir()
    (place / "own/sitecustomize.py").write_text("import sys\nsys.own = __file__\n")
    os.rename(str(place / "hook/sitecustomize.py"), str(place / "hook/kept.py"))
    program = "import sys\nprint(sys.own, sys.modules['sitecustomize'].__file__, len(sys.path))\nopen('no')\n"
    code = "import os, runpy; exec(open(os.path.join(os.path.dirname(__file__), 'kept.py')).read())\n"
    (place / "hook/sitecustomize.py").write_text(code)
    both = os.pathsep.join([str(place / "hook"), str(place / "own")])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": both, audit_hook.FOLDER: str(place / "seen")}
    done = run(place, ["-c", program], environment)
    own = str(place / "own/sitecustomize.py")
    assert done.stdout.decode().split()[:2] == [own, own]
    assert len(os.listdir(str(place / "seen"))) == 1


LISTS = """\
import glob, os, pathlib, sys
sys.path.append("/no-packages")
print(glob.glob("/no-site/data/*.npz"), glob.glob("/no-site/one.npz"), list(pathlib.Path("/no-site/set").rglob("*.x")))
for function in (os.listdir, os.scandir):
    try:
        function("/no-site/" + function.__name__)
    except OSError as error:
        print(error)
print(len(list(os.walk("/no-site/walk"))), os.listdir() == os.listdir(os.open(".", os.O_RDONLY)))
try:
    import nothing_of_this_name
except ImportError:
    pass
"""


@AUDITED
def test_folders_that_are_listed_and_missing(place):
    (alone, watched), found = start(place, LISTS)
    assert (watched.returncode, watched.stdout, watched.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    missing = sorted(item.what for item in found if item.kind == "missing")
    assert missing == ["/no-site/" + name for name in ("data", "listdir", "one.npz", "scandir", "set", "walk")]
    assert all(item.stack[-1].function == "<module>" for item in found if item.kind == "missing")


ASKS = """\
import inspect, os, os.path, pickle, shutil, sys
from os.path import exists
print(exists("/no-site/data"), os.path.isfile(b"/no-site/x.npz"), os.path.isdir("set"), os.path.exists("/"))
print(os.path.exists(0), os.path.exists("/no\\0site"), os.path.lexists("/no-site/lexists"))
print(inspect.signature(os.path.exists), pickle.loads(pickle.dumps(exists)) is exists, exists.__name__)
try:
    os.path.isdir([])
except TypeError as error:
    print(error)
shutil.which("/no-site/which")
"""


@pytest.mark.thorough
@AUDITED
def test_what_a_program_asks_for_that_is_not_there(place):
    (alone, watched), found = start(place, ASKS)
    assert (watched.returncode, watched.stdout, watched.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    asked = sorted((item.what, item.stack[0].line) for item in found if item.kind == "asked")
    expected = [("/no-site/data", 3), ("/no-site/x.npz", 3), (str(place / "work" / "set"), 3)]
    assert [item for item in asked if "\0" not in item[0]] == sorted(expected)


@AUDITED
def test_an_exception_in_the_observer_is_not_seen(place):
    # The folder does not exist any more: nothing can be written, and the program runs as ever.
    shutil.rmtree(str(place / "seen"))
    environment = {"PYTHONPATH": str(place / "hook"), audit_hook.FOLDER: str(place / "seen")}
    program = "import socket\ntry:\n    open('no')\nexcept OSError as e:\n    print(e, e.__context__)\n"
    done = run(place, ["-c", program], environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"[Errno 2] No such file or directory: 'no' None\n"


@pytest.mark.thorough
@AUDITED
def test_a_program_that_repeats_itself_does_not_fill_the_disk(place):
    program = "for n in range(1500):\n    try:\n        open('no%d' % (n % 1200))\n    except OSError:\n        pass\n"
    _, found = start(place, program)
    assert len([item for item in found if item.kind == "missing"]) == 1000
    (name,) = os.listdir(str(place / "seen"))
    for line in (place / "seen" / name).read_bytes().splitlines():
        json.loads(line.decode())


def test_a_path_with_dots_is_the_one_that_the_kernel_uses(tmp_path, monkeypatch):
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/sub")
    monkeypatch.chdir(str(tmp_path))
    folder = os.path.realpath(str(tmp_path))
    assert audit_hook._path(b"link/../x") == audit_hook._path("real/x") == folder + "/real/x"
    assert audit_hook._path("link/x") == folder + "/link/x"
