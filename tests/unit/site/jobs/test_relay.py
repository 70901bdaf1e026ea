"""A file passes through a chain of nodes, and whatever happens to one of them, each has the right bytes."""

import hmac
import os
import socket
import threading
import time
from contextlib import ExitStack, closing

import pytest

from deployer.contract.proof.evidence import ReceivedImage
from deployer.site.jobs import relay
from deployer.site.jobs.relay import Links, Relay, pieces
from deployer.site.rank import interfaces
from deployer.system import channel

SECRET = b"s" * 32
DATA = os.urandom(300_000)
PARTS = pieces([(0, len(DATA))])


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, value in {"_MEET": 0.6, "_SILENCE": 0.6, "_LATER": 0.3, "_AGAIN": 0.01}.items():
        monkeypatch.setattr(relay, name, value)


class Chain:
    """The nodes of a chain, in threads of this process."""

    def __init__(self, folder, count):
        self.folder = folder
        self.source = folder / "source"
        self.source.write_bytes(DATA)
        self.nodes = [("cn%d" % number, "127.0.0.1", interfaces.free_port()) for number in range(count)]
        self.threads, self.files, self.came = [], [], {}

    def start(self, number, secret=SECRET, source=None, parts=PARTS):
        """Start a node, which reads ``source`` if it must."""
        links = Links(secret, self.nodes, number)
        target = (self.folder / str(number)).open("x+b")
        self.files.append(target)
        node = Relay(links, str(source or self.source), target, parts)
        self.threads.append(threading.Thread(target=lambda: self.came.update({number: node.run()})))
        self.threads[-1].start()
        return node

    def end(self):
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()
        for file in self.files:
            file.close()

    def received(self, number):
        return (self.folder / str(number)).read_bytes()


@pytest.fixture
def gone(tmp_path):
    """Return a path to pass for the shared file to those that must not read it."""
    path = tmp_path / "gone"
    path.write_bytes(b"")
    return path


def test_only_the_first_node_reads_the_file(tmp_path, gone):
    chain = Chain(tmp_path, 4)
    for number in (3, 1, 2, 0):
        chain.start(number, source=None if number == 0 else gone)
    chain.end()
    assert [chain.received(number) for number in range(4)] == [DATA] * 4
    assert chain.came[0] == ReceivedImage(None, 0, len(DATA))
    assert [chain.came[number] for number in (1, 2, 3)] == [
        ReceivedImage("cn%d" % (number - 1), len(DATA), 0) for number in (1, 2, 3)
    ]


def test_a_node_sends_on_what_it_has_while_it_waits_for_more(tmp_path, gone):
    chain = Chain(tmp_path, 3)
    last = chain.start(2, source=gone)
    chain.start(1, source=gone)
    with closing(connected(chain.nodes[1])) as first:
        send(first, PARTS[:1])
        until = time.monotonic() + 0.5
        while not last._proofs and time.monotonic() < until:
            time.sleep(0.01)
        assert len(last._proofs) == 1
        send(first, PARTS[1:], 1)
        chain.end()
    assert chain.received(2) == DATA


def connected(node, secret=SECRET):
    until = time.monotonic() + 5
    while True:
        try:
            return channel.connect([node[1:]], secret)
        except channel.ChannelError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def proof(number, data):
    return hmac.new(SECRET, b"piece %d " % number + data, "sha256").digest()


def send(other, parts, begin=0):
    for number, (start, size) in enumerate(parts, begin):
        data = DATA[start : start + size]
        other.connection.sendall(proof(number, data) + data)


def broken(other):
    """Send half of a piece."""
    send(other, PARTS[:1])
    other.connection.sendall(b"x" * 1000)
    other.close()


def wrong(other):
    send(other, PARTS[:1])
    other.connection.sendall(proof(1, b"true") + b"x" * PARTS[1][1])


def repeated(other):
    send(other, PARTS[:1])
    send(other, PARTS[:1])


def silent(other):
    send(other, PARTS[:1])


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [broken, wrong, repeated, silent])
def test_the_node_behind_a_fault_reads_the_rest_and_those_behind_it_do_not_notice(tmp_path, gone, fault):
    chain = Chain(tmp_path, 4)
    for number in (1, 2, 3):
        chain.start(number, source=None if number == 1 else gone)
    with closing(connected(chain.nodes[1])) as first:
        fault(first)
        chain.end()
    assert [chain.received(number) for number in (1, 2, 3)] == [DATA] * 3
    assert chain.came[1]._replace(reason="") == ReceivedImage("cn0", PARTS[0][1], len(DATA) - PARTS[0][1], "")
    assert [(chain.came[number].from_file, chain.came[number].reason) for number in (2, 3)] == [(0, None)] * 2


@pytest.mark.thorough
def test_a_node_that_trickles_is_not_waited_for(tmp_path, monkeypatch):
    chain = Chain(tmp_path, 2)
    begun = time.monotonic()
    chain.start(1)
    with closing(connected(chain.nodes[1])) as first:
        send(first, PARTS[:1])
        while chain.threads[0].is_alive() and time.monotonic() < begun + 10:
            try:
                first.connection.sendall(b"x")
            except OSError:
                break
            time.sleep(0.1)
        chain.end()
    assert time.monotonic() - begun < 5
    assert chain.received(1) == DATA


@pytest.mark.thorough
def test_a_node_without_the_secret_gives_and_gets_nothing(tmp_path):
    chain = Chain(tmp_path, 3)
    chain.start(0)
    chain.start(1, secret=b"x" * 32)
    chain.start(2)
    chain.end()
    assert [chain.received(number) for number in range(3)] == [DATA] * 3  # each read it


@pytest.mark.thorough
def test_silent_strangers_keep_nobody_waiting(tmp_path, gone):
    chain = Chain(tmp_path, 2)
    chain.start(1, source=gone)
    with ExitStack() as stack:
        for _ in range(9):
            until = time.monotonic() + 5
            while time.monotonic() < until:
                try:
                    stack.enter_context(closing(socket.create_connection(chain.nodes[1][1:])))
                    break
                except OSError:
                    time.sleep(0.01)
        chain.start(0)
        chain.end()
    assert chain.received(1) == DATA


@pytest.mark.thorough
def test_a_node_whose_port_is_taken_reads_the_file_and_sends_it_on(tmp_path, gone):
    chain = Chain(tmp_path, 3)
    with closing(socket.socket()) as server:
        server.bind(chain.nodes[1][1:])
        server.listen(1)
        chain.start(2, source=gone)
        chain.start(1)
        chain.start(0)
        chain.end()
    assert [chain.received(number) for number in range(3)] == [DATA] * 3


class Firewall:
    """Stands in for the ports between nodes that a site closes: connections are refused, or nothing answers them."""

    def __init__(self, monkeypatch, drops):
        self.full = socket.socket()
        self.full.bind(("127.0.0.1", 0))
        self.full.listen(0)
        self.waiting = []
        connect = socket.create_connection

        def blocked(address, timeout):
            if not drops:
                raise ConnectionRefusedError(111, "Connection refused")
            # The kernel answers no more than the first connections to a queue that nobody empties.
            while len(self.waiting) < 2:
                self.waiting.append(socket.socket())
                self.waiting[-1].setblocking(False)
                self.waiting[-1].connect_ex(self.full.getsockname())
            return connect(self.full.getsockname(), timeout)

        monkeypatch.setattr(socket, "create_connection", blocked)

    def close(self):
        for each in (self.full, *self.waiting):
            each.close()


@pytest.mark.parametrize("drops", [True, False])
def test_closed_ports_cost_little(tmp_path, monkeypatch, drops):
    """Each node knows it at the same time, and does not wait as long as for a node that has become silent."""
    monkeypatch.setattr(relay, "_SILENCE", 30.0)
    chain = Chain(tmp_path, 4)
    with closing(Firewall(monkeypatch, drops)):
        begun = time.monotonic()
        for number in range(4):
            chain.start(number)
        chain.end()
    assert time.monotonic() - begun < 5
    assert [chain.received(number) for number in range(4)] == [DATA] * 4
    assert {chain.came[number].reason for number in (1, 2, 3)} == {"it does not connect"}
    assert {chain.came[number].from_file for number in range(4)} == {len(DATA)}


@pytest.mark.thorough
def test_nodes_behind_one_that_is_gone_get_the_file_from_the_next(tmp_path, gone):
    chain = Chain(tmp_path, 4)
    chain.start(0)
    chain.start(2)
    chain.start(3, source=gone)
    chain.end()
    assert [chain.received(number) for number in (0, 2, 3)] == [DATA] * 3


def test_a_node_that_cannot_read_the_file_says_so(tmp_path, gone):
    with (tmp_path / "0").open("x+b") as target, pytest.raises(OSError, match="has become shorter"):
        Relay(Links(SECRET, [("cn0", "127.0.0.1", 1)], 0), str(gone), target, PARTS).run()


def test_only_the_parts_that_are_needed_are_sent_in_the_order_of_the_file():
    size = relay._PIECE
    assert pieces([(9 * size, 9 * size + 5), (0, size + 1)]) == [(0, size), (size, 1), (9 * size, 5)]


def test_chains_are_short_and_a_node_finds_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(relay, "_CHAIN", 3)
    (tmp_path / "meet").write_text(
        "5,1,10.0.0.0,1000,\n%s\n" % SECRET.hex() + "".join("n%d 10.0.0.%d 100%d\n" % (i, i, i) for i in range(5))
    )
    found = []
    for name in ("n0", "n1", "n2", "n3", "n4", "other"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        links = relay.links(str(tmp_path))
        found.append(links and (links.number, [node[0] for node in links.chain]))
    first, second = ["n0", "n1", "n2"], ["n3", "n4"]
    assert found == [(0, first), (1, first), (2, first), (0, second), (1, second), None]
    (tmp_path / "meet").write_text("5,1,,,\n%s\n" % SECRET.hex())
    assert relay.links(str(tmp_path)) is None
