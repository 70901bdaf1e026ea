"""A file that passes from node to node of a job, each of which sends it on while it receives it.

The nodes in ``hosts/meet`` form chains. The first node of a chain reads the shared file, each other one receives it
from the node before it. Other users can connect as well: both ends prove the job's secret (``system.channel``), and the
node that read a piece has added a proof (HMAC), which each other node checks. If the node before is silent, slow or
gone, or a piece is wrong, a node reads the rest of the shared file itself and still sends it on, so that the nodes
behind it continue. The node's record has the reason.
"""

import errno
import hashlib
import hmac
import os
import socket
import threading
import time
from contextlib import closing, suppress
from typing import IO, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from deployer.contract.proof.evidence import ReceivedImage
from deployer.site.jobs import rendezvous
from deployer.system import channel, files
from deployer.system.channel import Channel, ChannelError

#: Nodes of a chain: one that slows down delays at most these.
_CHAIN = 32
_PIECE, _PROOF = 128 * 1024, 32
#: Seconds after which two nodes that are not connected do without each other: all begin together, and some sites close
#: the ports between their nodes.
_MEET = 2.0
#: Seconds without a byte after which the node before counts as gone, and further seconds for each node before that one:
#: so the first node behind a failure reads the file before the others stop waiting.
_SILENCE, _LATER = 8.0, 0.25
#: Bytes per second that the node before must send on average.
_LEAST = 1 << 20
_AGAIN = 0.1

#: Position and size of a piece.
FilePiece = Tuple[int, int]


class Links(NamedTuple):
    """This node's place in its chain.

    Attributes:
        secret: the job's secret.
        chain: name, address and a free port of each node.
        number: this node's number in it.
    """

    secret: bytes
    chain: Sequence[Tuple[str, str, int]]
    number: int


def links(hosts: str) -> Optional[Links]:
    """Return this node's place, from the job's folder ``hosts``; None if it cannot reach the others."""
    _, secret, *lines = files.read_text(os.path.join(hosts, rendezvous.FILE)).splitlines()
    nodes = [(name, address, int(port)) for name, address, port in map(str.split, lines)]
    for number, node in enumerate(nodes):
        if node[0] == socket.gethostname():
            first = number - number % _CHAIN
            return Links(bytes.fromhex(secret), nodes[first : first + _CHAIN], number - first)
    return None


def pieces(parts: Iterable[Tuple[int, int]]) -> List[FilePiece]:
    """Split parts of a file, given by start and end, into pieces in the order of the file."""
    return [(at, min(_PIECE, end - at)) for start, end in sorted(parts) for at in range(start, end, _PIECE)]


class Relay:
    """Writes pieces of the file ``source`` into ``target`` in order, and sends them on."""

    def __init__(self, links: Links, source: str, target: IO[bytes], parts: Sequence[FilePiece]) -> None:
        self._links = links
        self._source = source
        self._target = target
        self._parts = parts
        self._patience = _SILENCE + links.number * _LATER
        self._begun = time.monotonic()
        self._has_more = threading.Condition()
        self._proofs: List[bytes] = []
        self._ended = False

    def run(self) -> ReceivedImage:
        """Return when the next node has all pieces, or reads them itself. Raises OSError if this node lacks some."""
        sending = threading.Thread(target=self._send)
        sending.start()
        node, reason, number = None, None, self._links.number
        try:
            if number:
                node = self._links.chain[number - 1][0]
                try:
                    self._receive()
                except (ChannelError, OSError) as error:
                    reason = str(error)
            rest = self._parts[len(self._proofs) :]
            with open(self._source, "rb") as stream:
                for start, size in rest:
                    stream.seek(start)
                    data = stream.read(size)
                    if len(data) < size:
                        raise OSError(errno.EIO, f"{self._source} has become shorter")
                    self._keep(start, data, self._proof(data))
        finally:
            with self._has_more:
                self._ended = True
                self._has_more.notify()
            sending.join()
        sizes = [sum(size for _, size in parts) for parts in (self._parts, rest)]
        return ReceivedImage(node, sizes[0] - sizes[1], sizes[1], reason)

    def _proof(self, data: Union[bytes, memoryview]) -> bytes:
        """Return the proof of the next piece. It depends on its number, so that none can be repeated or omitted."""
        digest = hmac.new(self._links.secret, b"piece %d " % len(self._proofs), hashlib.sha256)
        digest.update(data)
        return digest.digest()

    def _keep(self, start: int, data: Union[bytes, memoryview], proof: bytes) -> None:
        self._target.seek(start)
        self._target.write(data)
        self._target.flush()
        with self._has_more:
            self._proofs.append(proof)
            self._has_more.notify()

    def _receive(self) -> None:
        """Receive the pieces from the node before. Raises ChannelError or OSError."""
        _, address, port = self._links.chain[self._links.number]
        with closing(channel.callers((address, port), self._links.secret, _AGAIN)) as callers:
            other = next(caller for caller in callers if caller or time.monotonic() > self._begun + _MEET)
        if other is None:
            raise ChannelError("it does not connect")
        piece, size = memoryview(bytearray(_PROOF + _PIECE)), 0
        with closing(other):
            other.connection.settimeout(self._patience)
            for start, length in self._parts:
                filled = 0
                while filled < _PROOF + length:
                    received = other.connection.recv_into(piece[filled : _PROOF + length])
                    filled, size = filled + received, size + received
                    # The node before may have waited in vain itself.
                    slow = size < (time.monotonic() - self._begun - 2 * self._patience) * _LEAST
                    if slow or not received:
                        raise ChannelError("it is too slow" if slow else "the connection was closed")
                proof, data = bytes(piece[:_PROOF]), piece[_PROOF:filled]
                if not hmac.compare_digest(proof, self._proof(data)):
                    raise ChannelError("a piece is wrong")
                self._keep(start, data, proof)

    def _send(self) -> None:
        """Send the pieces to the next node, if there is one. If that fails, it reads the file itself."""
        for _, address, port in self._links.chain[self._links.number + 1 :][:1]:
            with suppress(ChannelError, OSError), closing(self._connect(address, port)) as other:
                other.connection.settimeout(self._patience + _LATER)
                for number, (start, length) in enumerate(self._parts):
                    with self._has_more:
                        while number >= len(self._proofs) and not self._ended:
                            self._has_more.wait()
                    if number >= len(self._proofs):
                        break
                    other.connection.sendall(self._proofs[number] + os.pread(self._target.fileno(), length, start))

    def _connect(self, address: str, port: int) -> Channel:
        while True:
            try:
                return channel.connect([(address, port)], self._links.secret, _MEET)
            except ChannelError:  # perhaps it does not listen yet
                if time.monotonic() > self._begun + _MEET:
                    raise
            time.sleep(_AGAIN)
