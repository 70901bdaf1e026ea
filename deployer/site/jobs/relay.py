"""A file that passes from node to node of a job, each of which sends it on while it receives it.

The nodes in ``hosts/meet`` form chains. The first node of a chain reads the shared file, each other one receives it
from the node before it. Other users can connect as well: both ends prove the job's secret, and each piece has a proof
(``system.channel``). If the node before is silent, slow or gone, or a piece is wrong, a node reads the rest of the
shared file itself and still sends it on, so that the nodes behind it continue.
"""

import errno
import hmac
import os
import socket
import threading
import time
from contextlib import closing, suppress
from typing import IO, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from deployer.site.jobs import rendezvous
from deployer.system import channel, files, terminal
from deployer.system.channel import Channel, ChannelError

#: Nodes of a chain: one that slows down delays at most these.
_CHAIN = 32
_PIECE, _PROOF = 128 * 1024, 32
#: Seconds without a byte after which the node before counts as gone, and further seconds for each node before that one:
#: so the first node behind a failure reads the file before the others stop waiting.
_SILENCE, _LATER = 8.0, 0.25
#: Bytes per second that the node before must send on average.
_LEAST = 1 << 20
_AGAIN, _POLL = 0.1, 0.5

#: Position and size of a piece.
Piece = Tuple[int, int]


class Node(NamedTuple):
    """A node of a chain.

    Attributes:
        name: its name.
        address: its address, and a free port.
    """

    name: str
    address: Tuple[str, int]


class Links(NamedTuple):
    """This node's place in its chain.

    Attributes:
        secret: the job's secret.
        own: this node.
        before: the number of nodes before it.
        sender: the node before it; None: this is the first of its chain.
        receiver: the node behind it; None: this is the last.
    """

    secret: bytes
    own: Node
    before: int
    sender: Optional[Node]
    receiver: Optional[Node]

    @property
    def patience(self) -> float:
        """Return the seconds that the node before may be silent."""
        return _SILENCE + self.before * _LATER


def links(hosts: str) -> Optional[Links]:
    """Return this node's place, from the job's folder ``hosts``; None if it cannot reach the others."""
    _, secret, *lines = files.read_text(os.path.join(hosts, rendezvous.FILE)).splitlines()
    nodes = [Node(name, (address, int(port))) for name, address, port in map(str.split, lines)]
    number = next((number for number, node in enumerate(nodes) if node.name == socket.gethostname()), None)
    if number is None:
        return None
    chain, before = nodes[number - number % _CHAIN :][:_CHAIN], number % _CHAIN
    around: List[Optional[Node]] = [None, *chain, None]
    return Links(bytes.fromhex(secret), nodes[number], before, around[before], around[before + 2])


def pieces(extents: Iterable[Tuple[int, int]]) -> List[Piece]:
    """Split parts of a file, given by start and end, into pieces in the order of the file. Small gaps are sent too."""
    spans: List[List[int]] = []
    for start, end in sorted(extents):
        if spans and start - spans[-1][1] <= _PIECE:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([start, end])
    return [(at, min(_PIECE, end - at)) for start, end in spans for at in range(start, end, _PIECE)]


class Relay:
    """Writes pieces of the file ``source`` into ``target`` in order, and sends them on."""

    def __init__(self, links: Links, source: str, target: IO[bytes], parts: Sequence[Piece]) -> None:
        self._links = links
        self._source = source
        self._target = target
        self._parts = parts
        self._begun = time.monotonic()
        self._has_more = threading.Condition()
        self._count = 0
        self._failed = False

    def run(self) -> None:
        """Return when the next node has all pieces, or reads them itself. Raises OSError if this node lacks some."""
        sender, receiver = self._links.sender, self._links.receiver
        sending = threading.Thread(target=self._send, args=(receiver,)) if receiver else None
        if sending:
            sending.start()
        try:
            if sender:
                try:
                    self._receive()
                except (ChannelError, OSError) as error:
                    terminal.warn(f"{self._links.own.name} reads the image itself, without {sender.name}: {error}")
            with open(self._source, "rb") as stream:
                for start, size in self._parts[self._count :]:
                    stream.seek(start)
                    data = stream.read(size)
                    if len(data) < size:
                        raise OSError(errno.EIO, f"{self._source} has become shorter")
                    self._keep(start, data)
        except BaseException:
            self._failed = True
            raise
        finally:
            if sending:
                with self._has_more:
                    self._has_more.notify()
                sending.join()

    def _keep(self, start: int, data: bytes) -> None:
        self._target.seek(start)
        self._target.write(data)
        self._target.flush()
        with self._has_more:
            self._count += 1
            self._has_more.notify()

    def _receive(self) -> None:
        """Receive the pieces from the node before. Raises ChannelError or OSError."""
        patience, size = self._links.patience, 0
        with closing(socket.socket()) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(self._links.own.address)
            server.listen(64)
            with closing(channel.callers(server, self._links.secret, _POLL)) as callers:
                other = next(caller for caller in callers if caller or time.monotonic() > self._begun + patience)
        if other is None:
            raise ChannelError("it does not connect")
        with closing(other):
            other.connection.settimeout(patience)
            for number, (start, length) in enumerate(self._parts):
                data = bytearray()
                while len(data) < _PROOF + length:
                    received = other.connection.recv(_PROOF + length - len(data))
                    if not received:
                        raise ChannelError("the connection was closed")
                    data += received
                    size += len(received)
                    self._check_speed(size, patience)
                if not hmac.compare_digest(data[:_PROOF], other.proof(number, bytes(data[_PROOF:]))):
                    raise ChannelError("a piece is wrong")
                self._keep(start, bytes(data[_PROOF:]))

    def _send(self, receiver: Node) -> None:
        """Send the pieces to the next node. If that fails, it reads the file itself."""
        patience, sent = self._links.patience + _LATER, 0
        with suppress(ChannelError, OSError), closing(self._connect(receiver)) as other:
            other.connection.settimeout(patience)
            for number, (start, length) in enumerate(self._parts):
                with self._has_more:
                    while number >= self._count and not self._failed:
                        self._has_more.wait()
                if self._failed:
                    return
                data = os.pread(self._target.fileno(), length, start)
                other.connection.sendall(other.proof(number, data) + data)
                sent += length
                self._check_speed(sent, patience)

    def _connect(self, receiver: Node) -> Channel:
        while True:
            try:
                return channel.connect([receiver.address], self._links.secret, _SILENCE)
            except ChannelError:  # perhaps it does not listen yet
                if self._failed or time.monotonic() > self._begun + self._links.patience:
                    raise
            time.sleep(_AGAIN)

    def _check_speed(self, size: int, patience: float) -> None:
        if size < (time.monotonic() - self._begun - patience) * _LEAST:
            raise ChannelError("it is too slow")
