"""Namespaces if this machine can make them, else Docker, else a clear refusal."""

import os
import sys
from types import SimpleNamespace

import pytest

from deployer.connected.ground import engine
from deployer.connected.rehearse.ask import container, in_container, ways
from deployer.connected.rehearse.ask.judged import DOCKER, Judged
from deployer.connected.rehearse.ask.request import RehearsalRequest, read
from deployer.connected.rehearse.world import namespaces
from deployer.contract.base.errors import MissingTool, Refused

REQUEST = RehearsalRequest("b.tar", "main", None, 2, 10, ["/a:/b"], ["--x"], ["c.tar"])


def missing():
    raise MissingTool("no Docker engine answers at nowhere")


def test_docker_is_used_where_namespaces_cannot_be_made(monkeypatch, tmp_path):
    lines = []
    monkeypatch.setattr(namespaces, "forbidden", lambda: "it is forbidden")
    monkeypatch.setattr(engine, "connect", lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(container, "rehearse", lambda *words: Judged("outcome", tmp_path, DOCKER))
    found = ways.rehearsed(REQUEST, (), None, lines.append)
    assert (found.outcome, found.way) == ("outcome", DOCKER)
    assert lines == ["the simulated site runs in a container of Docker, because it is forbidden"]
    monkeypatch.setattr(engine, "connect", missing)
    with pytest.raises(Refused, match="it is forbidden; no Docker engine answers at nowhere"):
        ways.rehearsed(REQUEST, (), None, print)
    monkeypatch.setattr(namespaces, "forbidden", lambda: "")
    assert ways._possible(print) == ways.NAMESPACES


def test_macos_and_a_machine_without_ip_cannot_make_namespaces(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "iproute2" in namespaces.forbidden()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux" in namespaces.forbidden()


def test_what_is_asked_for_is_tested_and_its_own_cause_remedied(monkeypatch):
    monkeypatch.setattr(namespaces, "forbidden", lambda: "it is forbidden")
    with pytest.raises(Refused, match="it is forbidden") as caught:
        ways.rehearsed(REQUEST, (), ways.NAMESPACES, print)
    assert "--engine docker" in caught.value.hint
    monkeypatch.setattr(engine, "connect", missing)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Refused) as caught:
        ways.rehearsed(REQUEST, (), None, print)
    assert "apt-get install iproute2" in caught.value.hint


def test_an_error_of_the_container_s_system_is_an_answer(monkeypatch, tmp_path):
    answers = []
    (tmp_path / "order").write_text("{}")
    monkeypatch.setattr(in_container.crossing, "ORDER", str(tmp_path / "order"))
    monkeypatch.setattr(in_container, "_end_with_the_laptop", lambda: None)
    monkeypatch.setattr(in_container, "_send", answers.append)

    def full(order):
        raise OSError(28, "No space left on device", "/rehearsal/x")

    monkeypatch.setattr(in_container, "_answer", full)
    assert in_container.main() == 0
    assert b"/rehearsal/x" in answers[0]["error.json"]
    assert b"cache prune rehearse" in answers[0]["error.json"]


def test_a_request_crosses_as_it_is():
    assert read(REQUEST.record()) == REQUEST


def test_old_copies_are_removed_but_not_those_in_use(tmp_path):
    for name in ("old.tar", "old.tar.whole", "used.tar", "used.tar.whole"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "new.tar").touch()
    in_container._remove_old(str(tmp_path), {str(tmp_path / "used.tar")})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.tar", "used.tar", "used.tar.whole"]
