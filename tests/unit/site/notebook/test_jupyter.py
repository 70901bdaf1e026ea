"""Jupyter on a node, with a fake Jupyter: its configuration, what other users can read, and the files after its end."""

import json
import os
import re
import signal
import stat
from pathlib import Path

import pytest

from deployer.contract.base.errors import JobFailed
from deployer.contract.site.network import NodeAddress
from deployer.site.notebook import jupyter
from deployer.site.rank import interfaces
from tests import running as made

#: Listens, writes Jupyter's record of its address, prints what other users can read, and ends.
FAKE = """
config=${1#--config=}
cat "$config" >"$SEEN.config"
echo "$@" >"$SEEN.argv"; env >"$SEEN.env"; ls -ld "$JUPYTER_RUNTIME_DIR" "$config" >"$SEEN.modes"
token=$(grep -o "'token': '[0-9a-f]*'" "$config" | head -n 1 | cut -d "'" -f 4)
printf '{"hostname": "10.1.0.5", "port": 4711, "token": "%s"}' "${TOKEN-$token}" >"$JUPYTER_RUNTIME_DIR/jpserver-7.json"
until [ -e "$SEEN.enough" ]; do sleep 0.1; done
"""
NODE = [NodeAddress("lo", "127.0.0.1", 8), NodeAddress("eth0", "10.1.0.5", 24)]
LOGIN = [NodeAddress("ext0", "192.0.2.1", 24), NodeAddress("eth0", "10.1.0.1", 24)]


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return the private folder of a notebook's job, for a login node of the same network."""
    folder = tmp_path / "notebook"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(jupyter, "_FOLDER", str(folder))
    monkeypatch.setattr(interfaces, "addresses", lambda: NODE)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    request(folder, LOGIN)
    before, mask = signal.getsignal(signal.SIGTERM), os.umask(0o022)
    yield folder
    os.umask(mask)
    signal.signal(signal.SIGTERM, before)


def request(folder, login):
    (folder / jupyter.REQUEST).write_text(json.dumps({"program": "jupyter-lab", "idle": 60, "login": login}))


def seen(tmp_path, what):
    return Path(str(tmp_path / "seen.") + what).read_text()


def configured(tmp_path):
    """Return what the configuration sets, by section."""
    text = seen(tmp_path, "config").rpartition("Config(")[2].rstrip(")\n")
    return json.loads(text.replace("'", '"').replace("False", "false").replace("True", "true"))


def test_only_its_user_can_use_it_and_nothing_is_left(tmp_path, job):
    read = 'until [ -e "%s/server" ]; do sleep 0.1; done\nls -l "%s" >"$SEEN.folder"\ncp "%s/server" "$SEEN.server"\n'
    made.program(tmp_path, "jupyter-lab", FAKE.replace("until [", read % (job, job, job) + "until [", 1))
    (tmp_path / "seen.enough").touch()
    assert jupyter.serve() == 0
    known = configured(tmp_path)
    token = known["IdentityProvider"]["token"]
    assert re.match("[0-9a-f]{48}$", token)
    assert known["ServerApp"]["token"] == token
    assert known["ServerApp"]["ip"] == "10.1.0.5"
    assert known["ServerApp"]["port"] > 0
    assert known["KernelManager"] == {"transport": "ipc"}
    assert known["MappingKernelManager"]["cull_idle_timeout"] == 60
    assert seen(tmp_path, "server") == "10.1.0.5 4711 lab %s" % token
    assert all(line.startswith("-rw-------") for line in seen(tmp_path, "folder").splitlines() if "server" in line)
    assert [line[:10] for line in seen(tmp_path, "modes").splitlines()] == ["drwx------", "-rw-------"]
    assert token not in seen(tmp_path, "argv") + seen(tmp_path, "env")
    private = os.path.dirname(seen(tmp_path, "argv").strip()[len("--config=") :])
    assert not os.path.exists(private)
    # A socket's path has at most 107 bytes.
    assert len(private) + len("/kernel-") + 36 + len("-ipc-1") <= 107
    assert sorted(os.listdir(str(job))) == [jupyter.LOG, jupyter.REQUEST]
    assert stat.S_IMODE((job / jupyter.LOG).stat().st_mode) == 0o600


def test_the_page_without_lab_and_the_loopback_if_no_network_is_shared(tmp_path, job):
    request(job, NODE)  # the login node is this machine
    (job / jupyter.REQUEST).write_text((job / jupyter.REQUEST).read_text().replace("jupyter-lab", "jupyter-notebook"))
    keep = 'until [ -e "%s/server" ]; do sleep 0.1; done\ncp "%s/server" "$SEEN.server"\nuntil [' % (job, job)
    made.program(tmp_path, "jupyter-notebook", FAKE.replace("until [", keep, 1))
    (tmp_path / "seen.enough").touch()
    assert jupyter.serve() == 0
    assert configured(tmp_path)["ServerApp"]["ip"] == "127.0.0.1"
    assert " tree " in seen(tmp_path, "server")


def test_a_server_that_requires_no_token_is_ended(tmp_path, job, monkeypatch):
    monkeypatch.setenv("TOKEN", "")
    made.program(tmp_path, "jupyter-lab", FAKE)
    with pytest.raises(JobFailed, match="does not require the token"):
        jupyter.serve()
    assert not (job / jupyter.SERVER).exists()


def test_why_jupyter_did_not_start_is_its_last_line(tmp_path, job):
    made.program(tmp_path, "jupyter-lab", "echo starting; echo 'ImportError: no module named tornado' >&2; exit 1")
    with pytest.raises(JobFailed, match="did not start: ImportError: no module named tornado"):
        jupyter.serve()
