"""The nodes of a job without MPI meet at the place that the ranks will use, and nobody else takes part."""

import contextlib
import json
import socket
import threading
import time
from contextlib import closing

import pytest

from deployer.contract.proof import evidence
from deployer.contract.proof.evidence import NetworkRecord
from deployer.contract.site.network import NodeAddress
from deployer.site.rank import interfaces, meeting
from deployer.system import channel

SECRET = bytes(32)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    short = {"_REACH": 0.4, "_AGAIN": 0.02, "_POLL": 0.05, "_MOST": 1 << 20}
    for name, seconds in short.items():
        monkeypatch.setattr(meeting, name, seconds)
    monkeypatch.setattr(channel, "_STRANGER", 0.5)


def place(nodes=3, secret=SECRET, port=None):
    return meeting._Place(nodes, "127.0.0.1", port or interfaces.free_port(), secret)


@pytest.fixture
def first(tmp_path):
    """Start the first node of three; return its place, its thread, and what it finds."""
    found = []
    here = place()
    thread = threading.Thread(target=lambda: found.append(meeting._receive(here, str(tmp_path))))
    thread.start()
    yield here, thread, found
    (tmp_path / "gave-up").touch()
    thread.join(10)


def visit(here, tmp_path, name):
    return meeting._visit(here, str(tmp_path), NetworkRecord(name))


def test_nodes_meet_and_measure_the_path(tmp_path, first):
    here, thread, found = first
    records = [visit(here, tmp_path, name) for name in ("cn3", "cn2")]
    thread.join(10)
    assert found == [["cn2", "cn3"]]
    for record in records:
        assert record.reason is None
        assert record.nanoseconds > 0
        assert record.bytes_per_second > 1000000
        assert evidence.read(NetworkRecord, json.dumps(evidence.record(record)).encode(), "it") == record


def test_who_does_not_have_the_secret_is_no_node_and_does_not_hold_others_up(tmp_path, first):
    here, thread, found = first
    with pytest.raises(meeting.ChannelError):
        visit(here._replace(secret=b"x" * 32), tmp_path, "cn2")
    with closing(socket.create_connection((here.address, here.port))):  # one that says nothing
        visit(here, tmp_path, "cn2")
    visit(here, tmp_path, "cn3")
    thread.join(10)
    assert found == [["cn2", "cn3"]]


@pytest.mark.thorough
def test_a_node_of_many_waits_for_its_turn(tmp_path, first, monkeypatch):
    def answer(*given):
        time.sleep(0.6)
        return answer_at_once(*given)

    answer_at_once = meeting._measure
    monkeypatch.setattr(meeting, "_measure", answer)
    monkeypatch.setattr(meeting, "_EXCHANGE", 0.3)
    monkeypatch.setattr(meeting, "_TURN", 0.5, raising=False)
    here, thread, found = first
    for name in ("cn3", "cn2"):
        visit(here, tmp_path, name)
    thread.join(10)
    assert found == [["cn2", "cn3"]]


class SlowToClose(socket.socket):
    def close(self):
        time.sleep(0.1)
        super().close()


def test_the_port_is_free_for_programs_that_do_not_ask_to_use_it_again(tmp_path, first, monkeypatch):
    def connect(here, _out):
        connect_to(here, tmp_path).close()  # a stranger, when the first node listens
        connection = SlowToClose()
        connection.connect((here.address, here.port))
        return connection

    connect_to = meeting._connect
    monkeypatch.setattr(meeting, "_connect", connect)
    here, thread, found = first
    for name in ("cn3", "cn2"):
        visit(here, tmp_path, name)
    thread.join(10)
    with closing(socket.socket()) as server:
        server.bind((here.address, here.port))  # without SO_REUSEADDR
    assert found == [["cn2", "cn3"]]


def test_a_stranger_that_sends_slowly_does_not_hold_others_up(tmp_path, first, monkeypatch):
    monkeypatch.setattr(meeting, "_EXCHANGE", 2)
    here, thread, found = first
    ended = threading.Event()

    def drip(connection):
        with contextlib.suppress(OSError):
            while not ended.wait(0.1):
                connection.sendall(b"x")

    visit(here, tmp_path, "cn2")
    with closing(socket.create_connection((here.address, here.port))) as connection:
        slow = threading.Thread(target=drip, args=(connection,))
        slow.start()
        try:
            visit(here, tmp_path, "cn3")
        finally:
            ended.set()
            slow.join()
    thread.join(10)
    assert found == [["cn2", "cn3"]]


@pytest.mark.thorough
@pytest.mark.parametrize("text", [b"HTTP/1.0 400 Bad Request\r\n\r\n", bytes(200), b""])
def test_a_stranger_at_the_port_is_not_believed(tmp_path, text, monkeypatch):
    monkeypatch.setattr(meeting, "_EXCHANGE", 0.3)
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        here = place(port=server.getsockname()[1])

        def answer():
            with closing(server.accept()[0]) as connection:
                connection.sendall(text)
                connection.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        (tmp_path / "meet").write_text("2,1,127.0.0.1,%d,\n%s\n" % (here.port, SECRET.hex()))
        monkeypatch.setattr(interfaces, "addresses", lambda: [NodeAddress("eth0", "10.0.0.2", 24)])
        record = meeting.meet(str(tmp_path))
        thread.join(10)
    assert record.reason is not None
    assert record.bytes_per_second is None
    assert (tmp_path / "gave-up").exists()


def test_a_refusal_counts_only_when_the_first_node_listens(tmp_path):
    """Before that it may not have started."""
    here = place()
    (tmp_path / "listens").touch()
    with pytest.raises(ConnectionRefusedError):
        visit(here, tmp_path, "cn2")


def test_the_first_node_says_that_the_port_was_taken(tmp_path, monkeypatch):
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        (tmp_path / "meet").write_text("2,1,127.0.0.1,%d,\n%s\n" % (server.getsockname()[1], SECRET.hex()))
        record = meeting.meet(str(tmp_path))
    assert (record.peers, record.reason) == ((), "Address already in use")


def test_a_node_that_gives_up_ends_the_wait(tmp_path):
    (tmp_path / "gave-up").touch()
    assert meeting._receive(place(), str(tmp_path)) == []


def test_many_silent_strangers_do_not_delay_nodes_one_after_the_other(tmp_path, first, monkeypatch):
    monkeypatch.setattr(channel, "_STRANGER", 30)
    here, thread, found = first
    with contextlib.ExitStack() as stack:
        for number in range(9):
            stranger = stack.enter_context(closing(meeting._connect(here, str(tmp_path))))
            stranger.sendall(b"x" * number)
        for name in ("cn2", "cn3"):
            visit(here, tmp_path, name)
        thread.join(10)
    assert found == [["cn2", "cn3"]]
