import select
import socket
import struct
import threading

import pytest

from deployer.connected.rehearse.watch import name_server
from deployer.connected.rehearse.watch.name_server import NameServer


def question(name, kind=1):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!6H", 77, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def test_a_question_is_answered_that_there_is_no_such_name():
    found = name_server.read(question("Storage.Example.ORG", 28))
    assert found.name == "storage.example.org"
    assert struct.unpack_from("!6H", found.answer) == (77, 0x8183, 1, 0, 0, 0)
    assert found.answer[12:] == question("Storage.Example.ORG", 28)[12:]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"x" * 12,
        question("a.b")[:-3],
        question("a" * 63 + ".b")[:40],
        b"\0M\x81\x80" + question("a.b")[4:],  # an answer
        question("a.b")[:4] + b"\0\2" + question("a.b")[6:],
        question("a.b")[:12] + b"\xc0\x0c\0\1\0\1",  # a pointer to itself
        question(".".join(["a" * 60] * 5)),
    ],
)
def test_what_is_not_a_question_has_no_answer(message):
    assert name_server.read(message) is None


@pytest.fixture
def server():
    """Yield the port of a server and the list of what it was asked."""
    asked: list[tuple[str, int]] = []
    made = NameServer(lambda *about: asked.append(about), port=0)
    poll, ends = select.poll(), threading.Event()
    poll.register(made, select.POLLIN)

    def serve():
        while not ends.is_set():
            for _ in poll.poll(20):
                made.answer()

    thread = threading.Thread(target=serve)
    thread.start()
    yield made.port, asked
    ends.set()
    thread.join()
    made.close()


def test_names_are_noted_with_the_port_that_asked(server):
    port, asked = server
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(5)
        for name in ("example.org", "7.2.0.192.in-addr.arpa"):
            datagrams.sendto(question(name), ("127.0.0.1", port))
            assert datagrams.recv(512)[3] == 0x83
        mine = datagrams.getsockname()[1]
    assert asked == [("example.org", mine)]


def test_the_owner_of_a_socket_is_found_by_its_port(monkeypatch):
    monkeypatch.setattr(name_server.os, "getpid", lambda: 0)  # this process is the one to find
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        found = name_server.owner(datagrams.getsockname()[1])
    monkeypatch.undo()
    assert found == name_server.os.getpid()
    assert name_server.owner(1) is None


def test_all_outside_names_have_the_address_of_the_doors():
    answer = name_server.read(question("example.org"), "198.18.0.1").answer
    assert (answer[3] & 15, answer[6:8], answer[-4:]) == (0, b"\0\1", socket.inet_aton("198.18.0.1"))
    assert answer[-16:-12] == b"\xc0\x0c\0\1"
    six = question("example.org")[:-4] + struct.pack("!HH", 28, 1)  # AAAA: the name exists, without such an address
    answer = name_server.read(six, "198.18.0.1").answer
    assert (answer[3] & 15, answer[6:8]) == (0, b"\0\0")
    assert name_server.read(question("host.local"), "198.18.0.1").answer[3] & 15 == 3
