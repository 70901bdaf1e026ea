"""The name server of a node without a network: it records each name and answers that the name does not exist.

Programs then continue at once, with the same error as on a site whose name server knows no outside hosts. Names of the
rehearsal's own nodes are in ``/etc/hosts``, so they are not looked up here. For `fetch`, all names have the address of
the node's doors instead.
"""

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

PORT = 53
_HEADER = struct.Struct("!6H")
_NXDOMAIN = 3
_ANSWER, _RECURSION = 0x8000, 0x0180  # answers; recursion desired and available
_OPCODE = 0x7800
_TYPE_A, _CLASS_IN = 1, 1
#: A pointer to the name in the question, the type and class, the seconds to keep it, and the size of an address.
_ADDRESS = struct.pack("!HHHIH", 0xC000 | _HEADER.size, _TYPE_A, _CLASS_IN, 60, 4)
_MAX_NAME = 253
#: The maximum number of open connections. Questions over TCP are rare.
_MAX_CONNECTIONS = 32
#: Names that are not outside hosts: reverse look-ups, and names that some libraries try.
_OWN = (".in-addr.arpa", ".ip6.arpa", ".local", ".localhost")

#: Receives a name, the port from which it was asked, and whether it was asked over TCP.
NameAsked = Callable[[str, int, bool], None]


class Question(NamedTuple):
    """A question and its answer.

    Attributes:
        name: the host name, in lower case, without the final dot.
        answer: the bytes of the answer.
    """

    name: str
    answer: bytes


def read(message: bytes, address: str = "") -> Question | None:
    """Return the question in a message (RFC 1035), or None if it is not one.

    Args:
        address: the address of all outside names; empty: they do not exist.
    """
    if len(message) < _HEADER.size:
        return None
    number, flags, count, *_ = _HEADER.unpack_from(message)
    if flags & _ANSWER or flags & _OPCODE or count != 1:
        return None
    labels, at = [], _HEADER.size
    while at < len(message) and message[at]:
        size = message[at]
        if size > 63 or at + 1 + size >= len(message):
            return None
        labels.append(message[at + 1 : at + 1 + size].decode("ascii", "backslashreplace"))
        at += 1 + size
    name = ".".join(labels).lower()
    if at + 5 > len(message) or not 0 < len(name) <= _MAX_NAME:
        return None
    asked = message[_HEADER.size : at + 5]
    if not address or is_own(name):
        return Question(name, _HEADER.pack(number, _ANSWER | _RECURSION | _NXDOMAIN, 1, 0, 0, 0) + asked)
    has_address = asked.endswith(struct.pack("!HH", _TYPE_A, _CLASS_IN))
    header = _HEADER.pack(number, _ANSWER | _RECURSION, 1, int(has_address), 0, 0)
    return Question(name, header + asked + (_ADDRESS + socket.inet_aton(address) if has_address else b""))


def is_own(name: str) -> bool:
    """Return whether a name is not that of an outside host."""
    return ("." + name).endswith(_OWN)


class NameServer:
    """Answers questions on port 53 of one address."""

    def __init__(self, asked: NameAsked, address: str = "127.0.0.1", port: int = PORT, answer: str = "") -> None:
        """Start to listen; ``answer`` is the address of all outside names, empty: they do not exist.

        Raises:
            OSError: the port is in use or may not be used.
        """
        self._asked, self._answer = asked, answer
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._open: dict[int, tuple[socket.socket, int, bytearray]] = {}
        try:
            self._datagrams.bind((address, port))
            self.port: int = self._datagrams.getsockname()[1]
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((address, self.port))
            self._listener.listen(_MAX_CONNECTIONS)
        except OSError:
            self.close()
            raise

    def register(self, poll: "select.poll") -> dict[int, Callable[[], None]]:
        """Register the sockets. Return the function to call when each of them is ready."""
        poll.register(self._datagrams, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        return {self._datagrams.fileno(): self._datagram, self._listener.fileno(): lambda: self._accept(poll)}

    def ready(self, descriptor: int, poll: "select.poll") -> None:
        """Read from a connection, if it belongs to this server."""
        if descriptor not in self._open:
            return
        connection, port, data = self._open[descriptor]
        chunk = b""
        with contextlib.suppress(OSError):
            chunk = connection.recv(4096)
        data += chunk
        size = int.from_bytes(data[:2], "big") if len(data) >= 2 else 65536
        if chunk and len(data) < 2 + size:
            return
        question = read(bytes(data[2 : 2 + size]), self._answer)
        if question is not None:
            self._note(question.name, port, True)
            with contextlib.suppress(OSError):
                connection.send(len(question.answer).to_bytes(2, "big") + question.answer)
        self._end(descriptor, poll)

    def _end(self, descriptor: int, poll: "select.poll") -> None:
        poll.unregister(descriptor)
        self._open.pop(descriptor)[0].close()

    def _datagram(self) -> None:
        with contextlib.suppress(OSError):
            message, sender = self._datagrams.recvfrom(4096)
            question = read(message, self._answer)
            if question is not None:
                self._note(question.name, sender[1], False)
                self._datagrams.sendto(question.answer, sender)

    def _accept(self, poll: "select.poll") -> None:
        with contextlib.suppress(OSError):
            connection, sender = self._listener.accept()
            if len(self._open) >= _MAX_CONNECTIONS:  # the first one has waited longest, perhaps forever
                self._end(next(iter(self._open)), poll)
            connection.setblocking(False)
            self._open[connection.fileno()] = (connection, sender[1], bytearray())
            poll.register(connection, select.POLLIN)

    def _note(self, name: str, port: int, stream: bool) -> None:
        if not is_own(name):
            self._asked(name, port, stream)

    def close(self) -> None:
        """Close the sockets."""
        for sock in (self._datagrams, self._listener, *(connection for connection, _, _ in self._open.values())):
            sock.close()


def owner(port: int, stream: bool) -> int | None:
    """Return the process that has the socket with this local port of 127.0.0.1, or None if it is unknown.

    A process that waits for its answer still exists.
    """
    inode = None
    with open("/proc/net/tcp" if stream else "/proc/net/udp") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
                inode = fields[9]
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if any(os.readlink(f"/proc/{name}/fd/{fd}") == wanted for fd in os.listdir(f"/proc/{name}/fd")):
                    return int(name)
    return None
