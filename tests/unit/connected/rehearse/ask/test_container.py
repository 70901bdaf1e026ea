"""A rehearsal in a container: what the engine is asked for, and how its answers are read."""

import io
import json
import os
import struct
import tarfile
from types import SimpleNamespace

import pytest
from docker.errors import APIError, NotFound

from deployer.connected.ground import engine, progress
from deployer.connected.rehearse.ask import container, container_image, crossing
from deployer.connected.rehearse.ask.container import rehearse
from deployer.connected.rehearse.ask.request import RehearsalRequest
from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.contract.bundle.job import Job
from deployer.contract.rehearsal.rehearsal import JobEnding, Rehearsal
from tests import bundles

OUTCOME = Rehearsal("b:1", "sha256:0", "main", "", 1, "0", 1, 1, (), JobEnding("done", 0, None, 1.0))
DONE = {"outcome.json": json.dumps(OUTCOME.record()), "output.log": "said", "other": "no"}


def tar(contents):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def frame(kind, data):
    return struct.pack(">BxxxL", kind, len(data)) + data


class FakeApi:
    """An engine that answers each container with the next answer; the files that it was given are in ``files``."""

    def __init__(self, *answers, security=(), known=()):
        self.answers, self.security, self.known = list(answers), list(security), set(known)
        self.made, self.files, self.removed, self.left = [], {}, [], []
        self.hooks = {"response": []}

    def info(self):
        return {"Architecture": "x86_64", "SecurityOptions": self.security, "MemTotal": 1000}

    def containers(self, filters, **_):
        self.filters = filters["label"]
        return self.left

    def create_host_config(self, **words):
        return words

    def create_container(self, image, command, **words):
        self.made.append(words)
        return {"Id": f"c{len(self.made)}"}

    def put_archive(self, _, path, data):
        data = data if isinstance(data, bytes) else b"".join(data)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            found = {f"/{each.name}": archive.extractfile(each).read() for each in archive if each.isreg()}
        self.files.update(found)
        self.known |= set(found)

    def get_archive(self, _, path):
        if path not in self.known:
            raise NotFound("no such file")
        return iter([b"x"]), {}

    def attach_socket(self, _, params):
        answer = self.answers.pop(0)
        return io.BytesIO(answer if isinstance(answer, bytes) else frame(1, tar(answer)))

    def start(self, _):
        profile = self.made[-1]["host_config"]["security_opt"][-1]
        if profile != "apparmor=unconfined" and "name=apparmor" not in self.security[1:]:
            raise APIError("no", explanation="apparmor failed to apply profile")

    def remove_container(self, name, force, v):
        self.removed.append(name)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    bundle = bundles.write(tmp_path / "b.tar", jobs=[Job("main", ["true"], 1, 1, 1, "00:01:00")])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(container_image, "ensure", lambda client, tell: "image")
    monkeypatch.setattr(container, "make_pyz", lambda: b"pyz")
    monkeypatch.setattr(container, "frames_iter", frames)
    monkeypatch.setattr(engine, "answers", lambda client: True)

    def ask(api, **words):
        monkeypatch.setattr(engine, "connect", lambda: SimpleNamespace(api=api, close=lambda: None))
        lines = []
        return rehearse(
            RehearsalRequest(str(bundle), None, None, None, 10, **words), ["rehearse.memory"], lines.append
        ), lines

    ask.bundle = bundle
    return ask


def frames(stream, tty):
    while head := stream.read(8):
        kind, size = struct.unpack(">BxxxL", head)
        yield kind, stream.read(size)


def test_the_container_has_no_rights_and_no_network_and_is_removed(asked):
    api = FakeApi(DONE)
    (found, _) = asked(api)
    made, host = api.made[0], api.made[0]["host_config"]
    assert (host["network_mode"], host["cap_drop"], host["auto_remove"]) == ("none", ["ALL"], True)
    assert "no-new-privileges" in host["security_opt"]
    assert "cap_add" not in host
    assert "privileged" not in host
    assert not made["user"].startswith("0:")
    assert made["stdin_open"]
    assert [mount["Type"] for mount in host["mounts"]] == ["volume"]
    assert api.removed == ["c1"]
    assert found.outcome == OUTCOME
    assert sorted(os.listdir(found.folder)) == ["output.log"]
    order = json.loads(api.files[crossing.ORDER])
    assert order["accepted"] == ["rehearse.memory"]
    assert api.files[order["request"]["bundle"]] == asked.bundle.read_bytes()


def test_installs_in_the_container_show_their_progress(asked, monkeypatch):
    told = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "late_far_bar", lambda what, _: lambda *done: told.append((what, *done)))
    said = b"installing b.tar\ndeployer-progress:5 70\ndeployer-progress:70 70\nrunning main\n"
    _, lines = asked(FakeApi(frame(2, said) + frame(1, tar(DONE))))
    assert told == [("install", 5, 70), ("install", 70, 70)]
    assert lines[-2:] == [f"installing {asked.bundle.name}", "running main"]


def test_a_bundle_that_the_volume_has_is_not_copied_again(asked):
    api = FakeApi(DONE, DONE)
    asked(api)
    api.files.clear()
    asked(api)
    assert sorted(api.files) == ["/etc/group", "/etc/passwd", crossing.ORDER]


def test_where_apparmor_forbids_namespaces_its_profile_for_ch_run_is_used(asked):
    no = {"error.json": json.dumps({"forbidden": "unshare: no"})}
    api = FakeApi(no, DONE, security=["name=seccomp", "name=apparmor"])
    assert asked(api)[0].outcome == OUTCOME
    assert [made["host_config"]["security_opt"][-1] for made in api.made] == ["apparmor=unconfined", "apparmor=ch-run"]
    assert api.removed == ["c1", "c2"]
    for security in ([], ["name=apparmor"]):  # no AppArmor; an AppArmor without this profile
        with pytest.raises(Refused, match="cannot simulate a site: unshare: no"):
            asked(FakeApi(no, DONE, security=security))


def test_an_error_in_the_container_is_the_error_of_the_command(asked):
    error = {"code": 3, "message": "it has no job x", "hint": "its jobs: y", "details": []}
    with pytest.raises(Refused, match="it has no job x"):
        asked(FakeApi({"error.json": json.dumps(error)}))


def test_an_error_in_the_container_names_paths_of_this_machine(asked, tmp_path):
    (tmp_path / "set").mkdir()
    error = {"code": 3, "message": "/binds/0 is \x1b[2J", "hint": "give /binds/0/x", "details": ["in /binds/0"]}
    with pytest.raises(Refused) as caught:
        asked(FakeApi({"error.json": json.dumps(error)}), binds=[f"{tmp_path}/set:/data"])
    found = caught.value
    assert found.message == f"{tmp_path}/set is \\x1b[2J"
    assert (found.hint, found.details) == (f"give {tmp_path}/set/x", [f"in {tmp_path}/set"])


def test_a_wrong_job_is_refused_before_anything_is_copied(asked, monkeypatch):
    api = FakeApi()
    monkeypatch.setattr(engine, "connect", lambda: SimpleNamespace(api=api, close=lambda: None))
    with pytest.raises(UsageError, match="has no job wrong"):
        rehearse(RehearsalRequest(str(asked.bundle), "wrong", None, None, 10), [], print)
    assert not api.made


def test_a_container_that_ends_without_an_answer_is_an_error_with_its_last_line(asked):
    for answer in (b"", frame(1, b"no tar"), frame(1, tar({"output.log": "x"}))):
        with pytest.raises(DeployerError, match="ended without an answer: Kill"):
            asked(FakeApi(frame(2, b"one\nKill") + frame(2, b"ed\n") + answer))


def test_progress_has_the_paths_of_this_machine(asked):
    place = []
    api = FakeApi(DONE)
    asked(api)
    place = json.loads(api.files[crossing.ORDER])["request"]["bundle"]
    _, lines = asked(FakeApi(frame(2, f"installing {place}\x1b[2J\n".encode()) + frame(1, tar(DONE))))
    assert f"installing {asked.bundle}\\x1b[2J" in lines


def test_folders_are_bound_only_if_the_engine_can_see_them(asked, monkeypatch, tmp_path):
    api = FakeApi(DONE)
    (tmp_path / "set").mkdir()
    asked(api, binds=[f"{tmp_path}/set:/data"])
    assert [mount["Source"] for mount in api.made[0]["host_config"]["mounts"][1:]] == [str(tmp_path / "set")]
    with pytest.raises(UsageError, match="the job could change it"):
        asked(FakeApi(DONE), binds=[f"{tmp_path}:/data"])
    assert json.loads(api.files[crossing.ORDER])["request"]["binds"] == ["/binds/0:/data"]
    with pytest.raises(UsageError, match="does not exist"):
        asked(FakeApi(DONE), binds=[str(tmp_path / "nowhere")])
    monkeypatch.setenv("DOCKER_HOST", "tcp://far:2375")
    with pytest.raises(UsageError, match="does not see this folder"):
        asked(FakeApi(DONE), binds=[str(tmp_path)])


def test_only_containers_of_commands_that_ended_are_removed(asked):
    api = FakeApi(DONE)
    api.left = [{"Id": "own", "Labels": {"deployer.process": str(os.getpid())}}, {"Id": "old", "Labels": {}}]
    asked(api)
    assert api.removed == ["old", "c1"]
    # The number of a process means nothing on another machine or in another pid namespace.
    labels = api.made[0]["labels"]
    assert labels.items() >= engine.labels().items()
    assert {f"{name}={value}" for name, value in labels.items() if name != "deployer.process"} == {*api.filters}
    assert len(api.filters) == 2
