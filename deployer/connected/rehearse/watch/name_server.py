"""The name server of a node without a network: it records each name and answers that the name does not exist.

Programs then continue at once, with the same error as on a site whose name server knows no outside hosts. Names of the
rehearsal's own nodes are in ``/etc/hosts``, so they are not looked up here. For `fetch`, all names have the address of
the node's doors instead.
"""

import contextlib
import os
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
#: Names that are not outside hosts: reverse look-ups, and names that some libraries try.
_OWN = (".in-addr.arpa", ".ip6.arpa", ".local", ".localhost")

#: Receives a name, and the port from which it was asked.
NameAsked = Callable[[str, int], None]


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
    """Answers questions on port 53 of one address. Questions over TCP, which are rare, have no answer."""

    def __init__(self, asked: NameAsked, address: str = "127.0.0.1", port: int = PORT, answer: str = "") -> None:
        """Start to listen; ``answer`` is the address of all outside names, empty: they do not exist.

        Raises:
            OSError: the port is in use or may not be used.
        """
        self._asked, self._answer = asked, answer
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._datagrams.bind((address, port))
            self.port: int = self._datagrams.getsockname()[1]
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._datagrams.fileno()

    def answer(self) -> None:
        """Answer the question that has arrived."""
        with contextlib.suppress(OSError):
            message, sender = self._datagrams.recvfrom(4096)
            question = read(message, self._answer)
            if question is not None:
                if not is_own(question.name):
                    self._asked(question.name, sender[1])
                self._datagrams.sendto(question.answer, sender)

    def close(self) -> None:
        """Close the socket."""
        self._datagrams.close()


def owner(port: int) -> int | None:
    """Return the process that has the UDP socket with this local port of 127.0.0.1, or None if it is unknown.

    A process that waits for its answer still exists.
    """
    inode = None
    with open("/proc/net/udp") as table:
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
