"""The words of an image for other programs: exactly the binds and variables of the plan."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.base.shell import Variable, Word
from deployer.contract.bundle import sif
from deployer.contract.site.plan import Bind
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container
from deployer.site.run import where
from deployer.site.run.exec import ExecRequest


class FakeStore:
    """A store with one image, with or without its SquashFS file."""

    def __init__(self, folder="/nowhere"):
        self.folder, self.receipt = str(folder), SimpleNamespace(label="a:1")

    def find(self, _):
        return self

    def manifest(self):
        return SimpleNamespace(image=SimpleNamespace(architecture="amd64"))


def found(monkeypatch, runtime, environment, binds=(), form=None, made=None, store=None, **more):
    settings = Container("/images/a b", binds, environment, [], "/work", **more)
    monkeypatch.setattr(where.execs, "prepare", lambda *_: (RUNTIMES[runtime], settings, False))
    return where.find(store or FakeStore(), ExecRequest("a"), form, made)


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("charliecloud", ["--bind=/a,b:/c", "--set-env=A=''x''", "--set-env=B=1=2,3", "--set-env=C=x,\"y\"z"]),
        ("podman", ["--volume=/a,b:/c", "--env=A='x'", "--env=B=1=2,3", "--env=C=x,\"y\"z"]),
        ("apptainer", ["--mount=type=bind,\"source=/a,b\",\"destination=/c\"", "--env=A='x'", '--env="B=1=2,3"',
                       "--env=C=x,\"y\"z"]),
    ],
)  # fmt: skip
def test_the_words_are_those_that_each_runtime_reads(monkeypatch, runtime, words):
    environment = {"C": 'x,"y"z', "B": "1=2,3", "A": "'x'", "HOME": Word(Variable("home"))}
    place = found(monkeypatch, runtime, environment, [Bind("/a,b", "/c", "")])
    assert place.image == "/images/a b"
    assert place.options == words
    assert place.binds == {"/c": "/a,b"}
    assert sorted(place.environment) == ["A", "B", "C"]


def test_a_value_that_no_option_can_have_and_a_runtime_without_words_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="A has a value that no option can have"):
        found(monkeypatch, "podman", {"A": "1\n2"})
    with pytest.raises(UsageError, match="A has a value that no option can have"):
        found(monkeypatch, "apptainer", {"A": 'x"'})
    with pytest.raises(UsageError, match="no words for udocker"):
        found(monkeypatch, "udocker", {})


@pytest.fixture
def store(tmp_path):
    """Return a store whose image has a SquashFS file."""
    (tmp_path / "image.sqfs").write_bytes(b"hsqs" + b"x" * 5000)
    return FakeStore(tmp_path)


def test_a_sif_file_has_the_image_and_the_same_words(monkeypatch, store, tmp_path):
    made = str(tmp_path / "a.sif")
    place = found(monkeypatch, "apptainer", {"A": "1"}, [Bind("/a", "/c", "")], made=made, store=store)
    assert (place.image, place.options) == (made, ["--bind=/a:/c", "--env=A=1"])
    data = Path(made).read_bytes()
    contents = sif.find(lambda start, length: data[start : start + length], len(data))
    assert data[contents.offset :] == (tmp_path / "image.sqfs").read_bytes()
    assert contents.architecture == "amd64"


def test_no_sif_file_is_left_if_it_cannot_be_used(monkeypatch, store, tmp_path):
    made = str(tmp_path / "a.sif")
    with pytest.raises(UsageError, match="charliecloud starts no SIF file"):
        found(monkeypatch, "charliecloud", {}, made=made, store=store)
    with pytest.raises(UsageError, match="A has a value that no option can have"):
        found(monkeypatch, "apptainer", {"A": "1\n2"}, made=made, store=store)
    monkeypatch.setattr(where.squash, "absent", lambda *_: SimpleNamespace(reason="it has none", remedy="squash a"))
    with pytest.raises(Refused, match="a:1: it has none"):
        found(monkeypatch, "apptainer", {}, made=made)
    assert os.listdir(str(tmp_path)) == ["image.sqfs"]


def test_an_edf_has_image_mounts_and_variables_literally(monkeypatch, store, tmp_path):
    environment = {"B": "x 'y' \U0001f600", "HOME": Word(Variable("home"))}
    binds = [Bind("/opt/mpi", "/deployer/host/a", ""), Bind("/scratch", "/scratch", "")]
    place = found(monkeypatch, "charliecloud", environment, binds, where.EDF, store=store, devices=["a.org/b=c"])
    assert place.options == [
        f'image = "{tmp_path}/image.sqfs"',
        'workdir = "/work"',
        "entrypoint = false",
        "writable = false",
        'devices = ["a.org/b=c"]',
        'mounts = ["/opt/mpi:/deployer/host/a", "/scratch:/scratch"]',
        "[env]",
        "B = \"x 'y' \U0001f600\"",
        "[annotations]",
        'com.hooks.cxi.enabled = "false"',
    ]
    assert json.loads(json.dumps(place._asdict()))["binds"] == {"/deployer/host/a": "/opt/mpi", "/scratch": "/scratch"}


def test_pyxis_has_the_words_of_srun_and_sets_variables_in_the_container(monkeypatch, store, tmp_path):
    binds = [Bind("/opt/mpi", "/mpi", ""), Bind("/scratch", "/scratch", "")]
    place = found(monkeypatch, "apptainer", {"A": "x,y"}, binds, where.PYXIS, store=store)
    assert place.options == [
        f"--container-image={tmp_path}/image.sqfs",
        "--container-mounts=/opt/mpi:/mpi,/scratch:/scratch",
        "--container-workdir=/work",
        "--no-container-mount-home",
        "--no-container-entrypoint",
        "--container-readonly",
        "env",
        "A=x,y",
    ]
    assert "mounts" not in str(found(monkeypatch, "apptainer", {}, [], where.PYXIS, store=store).options)


@pytest.mark.parametrize(
    ("form", "environment", "source", "devices", "reason"),
    [
        ("edf", {"A": ""}, "/a", [], "the variable A is empty, which an EDF cannot express"),
        *(("edf", {"A": f"1{mark}"}, "/a", [], "an EDF cannot express '1") for mark in '$";`\\\n\x7f'),
        ("edf", {}, "/a:b", [], "'/a:b' cannot be mounted"),
        ("edf", {}, "/a b", [], "'/a b' cannot be mounted"),
        ("pyxis", {}, "/a,b", [], "'/a,b' cannot be mounted"),
        ("pyxis", {}, "/a", ["nvidia.com/gpu=all"], "pyxis has no word for the device nvidia.com/gpu=all"),
    ],
)
def test_what_a_format_cannot_express_is_refused(monkeypatch, store, form, environment, source, devices, reason):
    with pytest.raises(UsageError) as caught:
        found(monkeypatch, "podman", environment, [Bind(source, "/c", "")], form, store=store, devices=devices)
    assert reason in str(caught.value)
