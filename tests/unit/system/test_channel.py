"""Whoever lacks the key is refused, and no message can be altered, repeated or left out."""

import socket

import pytest

from deployer.system.channel import Channel, ChannelError

KEY, OTHER = b"k" * 64, b"o" * 64


def ends(server=KEY, client=KEY):
    one, other = socket.socketpair()
    return Channel(one, server, serves=True), Channel(other, client, serves=False)


def met(server, client):
    """Let both ends prove the key."""
    client.receive()
    server.receive()
    client.receive()
    assert server.proven
    assert client.proven


class Wire:
    """Two channels with a socket between them each, so that a test carries and changes what they send."""

    def __init__(self):
        (mine, self.to_server), (other, self.to_client) = socket.socketpair(), socket.socketpair()
        self.server, self.client = Channel(mine, KEY, serves=True), Channel(other, KEY, serves=False)
        for _ in range(2):
            self.to_client.sendall(self.to_server.recv(4096))
            self.client.receive()
            if not self.client.proven:
                self.to_server.sendall(self.to_client.recv(4096))
                self.server.receive()

    def close(self):
        for each in (self.to_server, self.to_client, self.server, self.client):
            each.close()


@pytest.fixture
def wire():
    made = Wire()
    yield made
    made.close()


def test_messages_go_both_ways_in_order():
    server, client = ends()
    met(server, client)
    client.send({"node": 0})
    client.send({"text": "a\nb \u00e9"})
    assert server.receive() == [{"node": 0}, {"text": "a\nb \u00e9"}]
    server.send({"end": True})
    assert client.receive() == [{"end": True}]
    server.close()
    with pytest.raises(ChannelError, match="was closed"):
        client.receive()
    client.close()


def test_a_client_without_the_key_is_refused():
    server, client = ends(client=OTHER)
    client.receive()
    with pytest.raises(ChannelError, match="does not have the job's key"):
        server.receive()
    assert not server.proven
    server.close()
    client.close()


def test_a_server_without_the_key_is_refused(monkeypatch):
    """One that takes each client for one of its own cannot prove the key either."""
    server, client = ends(server=OTHER)
    monkeypatch.setattr(server, "_compare", lambda given, expected: None)
    client.receive()
    server.receive()
    with pytest.raises(ChannelError, match="does not have the job's key"):
        client.receive()
    assert not client.proven
    server.close()
    client.close()


def test_what_a_client_sends_is_not_taken_back_as_the_servers_proof():
    one, other = socket.socketpair()
    client = Channel(other, KEY, serves=False)
    one.sendall(b"deployer-inside-1 " + b"0" * 64 + b"\n")
    client.receive()
    _, _, proof = one.recv(4096).partition(b" ")
    one.sendall(proof)
    with pytest.raises(ChannelError, match="does not have the job's key"):
        client.receive()
    one.close()
    client.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace(b'"start": 1', b'"start": 2'),
        lambda line: line + line,
        lambda line: line.split(b"\n")[1] + b"\n",
        lambda line: b"not a message\n",
        lambda line: b"\xff\xff \n",
    ],
)
def test_a_changed_repeated_or_missing_message_is_noticed(wire, change):
    wire.client.send({"start": 1})
    wire.client.send({"start": 1, "more": True})
    wire.to_server.sendall(change(wire.to_client.recv(4096)))
    with pytest.raises(ChannelError, match=r"key|not a message"):
        wire.server.receive()


def test_a_message_is_not_taken_back_by_its_sender(wire):
    wire.client.send({"start": 1})
    wire.to_client.sendall(wire.to_client.recv(4096))
    with pytest.raises(ChannelError, match="key"):
        wire.client.receive()


def test_a_stranger_cannot_send_much():
    one, other = socket.socketpair()
    server = Channel(one, KEY, serves=True)
    other.sendall(b"x" * 2000)
    with pytest.raises(ChannelError, match="too long"):
        server.receive()
    server.close()
    other.close()


def test_another_program_is_not_taken_for_a_hub():
    one, other = socket.socketpair()
    client = Channel(other, KEY, serves=False)
    one.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    with pytest.raises(ChannelError, match="not of this version"):
        client.receive()
    one.close()
    client.close()
