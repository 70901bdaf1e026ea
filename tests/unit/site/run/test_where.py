"""The words of an image for other programs: exactly the binds and variables of the plan."""

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.base.shell import Variable, Word
from deployer.contract.site.plan import Bind
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container
from deployer.site.run import where
from deployer.site.run.exec import ExecRequest


def found(monkeypatch, runtime, environment, binds=()):
    settings = Container("/images/a b", binds, environment, [], "/")
    monkeypatch.setattr(where.execs, "prepare", lambda *_: (RUNTIMES[runtime], settings, False))
    return where.find(None, ExecRequest("a"))


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
