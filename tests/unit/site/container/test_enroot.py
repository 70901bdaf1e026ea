"""enroot's words, and the script around them with a stand-in that checks enroot's grammar (tests/lab/fake_enroot.py).

Whole containers with the stand-in: tests/integration/test_enroot.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.base.shell import Variable, Word, argv
from deployer.contract.site.plan import Bind
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container, Here
from tests import running as made

FAKE = Path(__file__).parents[3] / "lab" / "fake_enroot.py"
OWN = Word(Variable("home"))
runtime = RUNTIMES["enroot"]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a command: its exit code and output, and what the stand-in was told."""
    for name in ("bin", "private", "i/etc"):
        (tmp_path / name).mkdir(parents=True)
    made.program(tmp_path / "bin", "enroot", f'exec {sys.executable} -I -S {FAKE} "$@"')
    monkeypatch.setenv("PATH", "%s:/usr/bin:/bin" % (tmp_path / "bin"))

    def call(container, *command, **host):
        words = argv(runtime.argv(container, command), {"home": str(tmp_path / "private")})
        environment = {"PATH": os.environ["PATH"], "FAKE_ENROOT_SHOW": str(tmp_path / "shown"), **host}
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, cwd=str(tmp_path)) as process:
            out = process.communicate()[0].decode()
        shown = tmp_path / "shown"
        return process.returncode, out, json.loads(shown.read_text()) if shown.exists() else None

    return call


def box(tmp_path, **values):
    image = str(tmp_path / "i")
    return Container(
        image, [Bind("/a b\\c", "/data", "why")], {"A": "it's\n$x"}, ["SLURM_*"], "/tmp", private=OWN
    )._replace(**values)


def test_the_words():
    found = runtime.options(box(Path("/r")))
    assert found[:3] == ["bash", "-p", "-c"]
    assert found[4:] == ["enroot", OWN, "--pass=SLURM_*", "--set-env=A=it's\n$x", "--bind=/a b\\c:/data", "--cd=/tmp"]
    assert runtime.starting_in("/work") == ["--cd=/work"]
    assert runtime.join_options(4, "tag") == []


def test_what_enroot_gets(start, tmp_path):
    for name in ("hosts", "passwd"):
        (tmp_path / "i" / "etc" / name).write_text("root:x:0:0::/:/bin/sh\n")
    _, _, shown = start(box(tmp_path, arguments=["--env=X=1"]), "true", "x y", "--", USER="me")
    state = os.path.dirname(os.path.dirname(shown["root"]))
    assert os.path.dirname(state) == str(tmp_path / "private")
    assert shown["listed"] == []  # enroot starts an empty folder, never the image's
    assert shown["command"] == ["true", "x y", "--"]
    assert shown["options"] == {
        "rc": state + "/rc",
        "conf": "",
        "env": ["X=1"],
        "mount": [
            "%s:/:none:rbind,ro" % (tmp_path / "i"),  # before all others, and read-only
            "/proc:/proc:none:rbind",
            "/sys:/sys:none:rbind",
            "/dev:/dev:none:rbind",
            "/tmp:/tmp:none:rbind",
            "/etc/hosts:/etc/hosts:none:rbind",
            f"{state}/passwd:/etc/passwd:none:rbind",
            "/a\\040b\\134c:/data:none:rbind",
            f"none:{state}/data/image:none:x-detach,nofail,silent",
            f"none:{state}/data/image:none:x-detach,nofail,silent",
            f"none:{state}/run:none:x-detach,nofail,silent",
        ],
    }
    mine = "me:x:%d:%d::/:/bin/sh\n" % (os.getuid(), os.getgid())
    assert Path(state, "passwd").read_text() == mine + "root:x:0:0::/:/bin/sh\n"


def test_the_container_has_the_passed_and_set_variables_alone(start, tmp_path):
    hostile = {
        "SLURM_ID": "it's 7\n", "LEAK": "1", "BASH_ENV": "/evil", "UID": "3", "ENROOT_REMAP_ROOT": "y",
        "ENROOT_ROOTFS_WRITABLE": "y", "ENROOT_LOGIN_SHELL": "y", "ENROOT_SYSCONF_PATH": "/evil", "ENROOT_EVIL": "1",
        "ENROOT_DATA_PATH": "/evil", "ENROOT_UNSHARE_PID": "y", "ENROOT_LIBRARY_PATH": "/evil",
    }  # fmt: skip
    own = {"A": "it's\n$x", "HOME": "/h", "UID": "0", "a.b": "no name of a shell", "SLURM_NAME": "ours"}
    code, out, _ = start(box(tmp_path, environment=own), "env", "-0", SLURM_NAME="host's", **hostile)
    assert code == 0
    found = dict(line.partition("=")[::2] for line in out.split("\0") if line)
    of_the_shell = {"PWD", "SHLVL", "_"}
    assert {name: value for name, value in found.items() if name not in of_the_shell} == {
        "A": "it's\n$x",
        "HOME": "/h",
        "SLURM_ID": "it's 7\n",
        "SLURM_NAME": "ours",
    }


def test_the_folder_and_the_exit_code_are_the_command_s(start, tmp_path):
    inside = tmp_path / "it's a folder"
    inside.mkdir()
    folder = box(tmp_path, workdir=str(inside))
    assert start(folder, "sh", "-c", "pwd; exit 7")[:2] == (7, f"{inside}\n")
    assert start(folder, "no-such-program")[0] == 127
    assert start(box(tmp_path, workdir="/no/such"), "true")[0] == 126


def test_a_link_in_the_image_reads_no_file_of_the_host(start, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "i" / "etc" / "passwd").symlink_to(tmp_path / "secret")
    _, _, shown = start(box(tmp_path), "true")
    assert not [each for each in shown["options"]["mount"] if "passwd" in each]
    (tmp_path / "i" / "etc" / "passwd").unlink()
    (tmp_path / "i" / "etc").rmdir()
    (tmp_path / "passwd").write_text("secret")
    (tmp_path / "i" / "etc").symlink_to(tmp_path)
    _, _, shown = start(box(tmp_path), "true")
    assert not [each for each in shown["options"]["mount"] if "passwd" in each]


def test_a_file_of_the_current_folder_is_not_taken_for_the_image(start, tmp_path):
    (tmp_path / "image").write_text("")
    assert start(box(tmp_path), "true")[0] == 0


def test_a_private_folder_is_needed(start, tmp_path):
    assert start(box(tmp_path, private="/nowhere"), "true") == (125, "", None)


def test_what_enroot_has_no_way_to_express_is_refused():
    with pytest.raises(UsageError, match="has a colon, and enroot"):
        runtime.options(box(Path("/r"), binds=[Bind("/a:b", "/data", "")]))
    with pytest.raises(UsageError):
        runtime.options(box(Path("/r"), passed=["A B"]))
    assert runtime.veto(Here(None, [], "")) == "no enroot in PATH"
