"""udocker's runtime: its argv, its engine made of a bundle's kit, and the program that starts it, with a small stand-in
for udocker and proot. The real ones: tests/integration/test_udocker.py."""

import os
import signal
import stat
import subprocess
import time

import pytest

from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.site.plan import Bind
from deployer.site.container import container
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container, Here
from deployer.site.install.install import install
from deployer.site.install.remove import remove
from deployer.site.storage.store import Store
from tests import bundles, running
from tests.wheels import file_name, wheel

runtime = RUNTIMES["udocker"]

UMAIN = """\
import os
from udocker.engine import proot
from udocker.utils.curl import GetURL
from udocker.utils.mountpoint import MountPoint

class UMain(object):
    def __init__(self, argv):
        self.argv = argv
        GetURL()
        MountPoint()

    def execute(self):
        if "/nowhere" in self.argv:
            print("no such command")
            return 2
        [root] = [word[len("--location="):] for word in self.argv if word.startswith("--location=")]
        with open(root + "/../udocker", "w") as out:
            out.write("\\n".join(self.argv + sorted(name + "=" + os.environ[name] for name in os.environ)))
        engine = os.environ["UDOCKER_USE_PROOT_EXECUTABLE"]
        [folder] = [word[len("--workdir="):] for word in self.argv if word.startswith("--workdir=")]
        return proot.subprocess.call([engine, root, "-w", folder, self.argv[-1]], shell=False, env=None)
"""
#: On a node that has neither.
CURL = """\
class GetURL(object):
    def __init__(self):
        self._select_implementation()

    def _select_implementation(self):
        raise NameError("need curl or pycurl")
"""
#: In the current folder, as with --location.
MOUNTPOINT = """\
import os

class MountPoint(object):
    def __init__(self):
        self.setup()

    def setup(self):
        os.mkdir(".mountpoints")
"""
WHEEL = wheel(
    {
        "udocker/__init__.py": b"",
        "udocker/engine/__init__.py": b"",
        "udocker/engine/proot.py": b"import subprocess\n",
        "udocker/umain.py": UMAIN.encode(),
        "udocker/utils/__init__.py": b"",
        "udocker/utils/curl.py": CURL.encode(),
        "udocker/utils/mountpoint.py": MOUNTPOINT.encode(),
    },
    name="udocker",
    version="1.3.17",
)
PROOT = b"#!/bin/sh\ncd $1\necho $3 >../folder\nshift 3\nexec $@\n".replace(b"$@", b'"$@"')
KIT = [("deployer/kit/" + file_name("udocker", "1.3.17"), WHEEL), ("deployer/kit/proot", PROOT)]


def installed(folder, extra=KIT):
    plan = running.PLAN._replace(python=["python3"])
    path = bundles.write(folder / "b.tar", extra=[*extra, running.member(plan)])
    return install(str(path), Store(str(folder / "root"))).image


@pytest.fixture
def image(tmp_path):
    return installed(tmp_path)


def start(image, *command, options=(), folder=None, **environment):
    """Start a command in a current folder and return the process; its environment is what is given and PATH."""
    argv = [image.engine + "/run", "--set-env=PATH=" + os.environ["PATH"], *options, image.rootfs, "--", *command]
    return subprocess.Popen(
        argv,
        env=dict(environment, PATH=os.environ["PATH"]),
        cwd=folder,
        stdout=subprocess.PIPE,
        universal_newlines=True,
    )


def ended(process):
    out = process.communicate(timeout=60)[0]
    return process.returncode, out


# ---------------------------------------------------------------- argv


def test_argv_is_one_word_an_option():
    made = Container(
        "/i/rootfs", [Bind("/a b", "/data", "why")], {"B": "2", "A": "$x "}, ["SLURM_*"], "/w", "/i/engine"
    )
    assert runtime.argv(made, ["sh", "-c", "true"]) == [
        "/i/engine/run",
        "--pass=SLURM_*",
        "--set-env=A=$x ",
        "--set-env=B=2",
        "--bind=/a b:/data",
        "--cd=/w",
        "/i/rootfs",
        "--",
        "sh",
        "-c",
        "true",
    ]
    assert runtime.join_options(4, "x") == []


def test_what_udocker_cannot_be_told_is_refused():
    with pytest.raises(UsageError, match="has a colon"):
        runtime.options(Container("/i", [Bind("/a:b", "/data", "")], {}, [], "/"))
    with pytest.raises(UsageError, match="is not a glob"):
        runtime.options(Container("/i", [], {}, ["A B"], "/"))


def test_a_site_s_own_udocker_is_not_used(image):
    assert "packed without udocker's kit" in str(runtime.veto(Here("/usr/bin/udocker", ["udocker"], "/nowhere")))
    assert runtime.veto(Here(None, [], image.engine)) is None


# ---------------------------------------------------------------- the engine


def test_install_makes_the_engine_ready(image):
    names = set(os.listdir(image.engine))
    assert {"run", "start.py", "bin", "lib", "doc", "repos", "layers", "containers"} <= names
    assert os.path.isfile(image.engine + "/lib/VERSION")
    assert os.access(image.engine + "/bin/proot", os.X_OK)
    compiled = [
        name for _, _, names in os.walk(image.engine + "/lib/udocker") for name in names if name.endswith("pyc")
    ]
    assert compiled


def test_the_files_of_the_image_are_read_only_and_can_be_removed(image):
    for folder, _, names in os.walk(image.rootfs):
        for path in [folder] + [os.path.join(folder, name) for name in names]:
            mode = os.lstat(path).st_mode
            assert stat.S_ISLNK(mode) or not mode & 0o222
    remove(Store(os.path.dirname(os.path.dirname(image.folder))), image, force=True)
    assert not os.path.exists(image.folder)


def test_without_a_kit_nothing_changes(tmp_path):
    image = installed(tmp_path, [])
    assert not os.path.exists(image.engine)
    assert os.stat(image.rootfs).st_mode & 0o200


def test_half_a_kit_is_refused(tmp_path):
    with pytest.raises(IntegrityError, match="udocker without proot"):
        installed(tmp_path, KIT[:1])


# ---------------------------------------------------------------- the start


def test_environment_is_exactly_what_is_given_and_passed(image):
    options = ["--pass=SLURM_*", "--set-env=A= $x b ", "--bind=/tmp:/data", "--cd=/w"]
    code, out = ended(start(image, "env", options=options, SLURM_ID="1", SECRET="2", SLURMX="3"))
    lines = dict(line.split("=", 1) for line in out.splitlines())
    assert code == 0
    assert (lines["A"], lines["SLURM_ID"]) == (" $x b ", "1")
    assert not {"SECRET", "SLURMX", "HOME", "UDOCKER_DIR"} & set(lines)
    assert not os.path.exists(lines["PROOT_TMP_DIR"])
    with open(image.layers[0] + "/udocker") as stream:
        words = stream.read().splitlines()
    assert words[:4] == ["udocker", "--allow-root", "--quiet", "run"]
    assert {"--volume=/tmp:/data", "--workdir=/w", "--nosysdirs", "UDOCKER_DIR=" + image.engine} <= set(words)
    assert not any(word.startswith(("SECRET", "SLURM")) for word in words)


@pytest.mark.parametrize(
    ("command", "source", "asked"), [("/bin/true", "/tmp", "/"), ("true", "/tmp", "/w"), ("/bin/true", "/none", "/w")]
)
def test_udocker_does_not_look_up_a_working_folder_that_is_bound(image, command, source, asked):
    """Each name in the path of the job's folder would be asked twice of the shared file system, by each rank."""
    assert ended(start(image, command, options=[f"--bind={source}:/w", "--cd=/w"])) == (0, "")
    with open(image.layers[0] + "/udocker") as stream:
        assert "--workdir=" + asked in stream.read().splitlines()
    with open(image.layers[0] + "/folder") as stream:
        assert stream.read() == "/w\n"


def test_what_proot_obeys_comes_from_a_plan_alone(image):
    """proot runs outside the container, with the payload's environment: PROOT_LOADER is a program of the host's."""
    hostile = image.manifest().image._replace(
        env=["PATH=/bin", "PROOT_LOADER=/tmp/x", "PROOT_NO_SECCOMP=1", "PROOTED=1"]
    )
    plan = running.PLAN._replace(binds=[], environment={"PROOT_NO_SECCOMP": "0"})
    found = container.make(image, hostile, plan, runtime, [], {}).environment
    assert {name: found[name] for name in found if name.startswith("PROOT")} == {
        "PROOTED": "1",
        "PROOT_NO_SECCOMP": "0",
    }


@pytest.mark.thorough
def test_nothing_is_made_in_the_current_folder(image, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    assert ended(start(image, "ls", "-A", str(folder), folder=str(folder))) == (0, "")
    assert os.listdir(str(folder)) == []


def test_words_reach_the_command_as_they_are(image):
    code, out = ended(start(image, "printf", "%s|", "a b", "", "--volume=/x:/y", "$HOME\n"))
    assert (code, out) == (0, "a b||--volume=/x:/y|$HOME\n|")


@pytest.mark.thorough
@pytest.mark.parametrize(("script", "expected"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_exit_code(image, script, expected):
    assert ended(start(image, "sh", "-c", script))[0] == expected


def test_what_cannot_be_started_has_an_exit_code(image):
    assert ended(start(image, "/nowhere")) == (2, "no such command\n")


def _wait_for(path):
    for _ in range(600):
        if os.path.exists(path):
            return
        time.sleep(0.05)
    raise AssertionError("it did not start")


HANDLER = "trap 'echo asked; exit 5' TERM; touch %s; while :; do sleep 0.1; done"


def test_a_signal_to_the_start_reaches_the_command(image, tmp_path):
    mark = str(tmp_path / "mark")
    # Of the stand-in for proot, which becomes the command, none is its parent: a shell is.
    process = start(image, "sh", "-c", 'sh -c "%s"; exit $?' % (HANDLER % mark))
    _wait_for(mark)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] in (5, 143)


@pytest.mark.thorough
def test_in_a_step_of_a_launcher_the_start_only_waits(image, tmp_path):
    mark = str(tmp_path / "mark")
    process = start(image, "sh", "-c", f"touch {mark}; sleep 1; exit 3", SLURM_STEP_ID="0")
    _wait_for(mark)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 3


def test_wrong_words_are_an_error(image):
    process = subprocess.run([image.engine + "/run", "--odd=1", "/", "--", "true"], stderr=subprocess.PIPE, check=False)
    assert (process.returncode, process.stderr) == (126, b"deployer: error: udocker: what is --odd?\n")
