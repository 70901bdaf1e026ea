"""A test, before the ranks of a job without MPI start, of the network that they will use between nodes.

One process per node runs outside the container, which uses the host's network in every runtime. The first node listens
at the address and port that the ranks will use. Each other node connects, proves that it belongs to the job, and
measures latency and bandwidth. Another user's process that connects, or that occupies the port, lacks the job's secret.
It is rejected and learns nothing (``system.channel``). Then, the first two as messages, the rest as bytes:

    first node                                             other node
                                                 <-        its name
    number of bytes to send                      ->
    a byte for each of 5                         <->       5 times a byte, then the bytes
    a byte: all have arrived                     ->
    the same number of bytes                     ->
"""

import os
import socket
import time
from contextlib import closing, suppress
from typing import List, NamedTuple, Optional, Set

from deployer.contract.base import json_records
from deployer.contract.base.errors import UsageError
from deployer.contract.proof import evidence
from deployer.contract.proof.evidence import NETWORK_SUFFIX, NetworkRecord
from deployer.site.jobs import rendezvous
from deployer.site.rank import interfaces
from deployer.system import channel, files
from deployer.system.channel import Channel, ChannelError, Message

#: Seconds in which a reachable node answers.
_REACH = 8.0
#: Seconds between attempts, and for one exchange with a node that has been reached.
_AGAIN, _EXCHANGE = 0.2, 10.0
#: Further seconds per node of the job, because the first node answers the others in turn.
_TURN = 0.02
#: Seconds without a message after which the first node stops waiting for others: starting Python may take a while.
_SILENCE = 60.0
#: Seconds between the first node's checks whether others gave up.
_POLL = 1.0
_PINGS = 5
#: Bytes that all nodes send together, and the minimum and maximum per node.
_TOTAL, _LEAST, _MOST = 256 << 20, 256 << 10, 16 << 20
#: A file that shows that the first node listens. A refused connection before that means that it has not started yet.
_LISTENS = "listens"
#: A file that shows the first node that another node gave up.
_GAVE_UP = "gave-up"


class _Place(NamedTuple):
    """The first two lines of ``hosts/meet``."""

    nodes: int
    address: str
    port: int
    secret: bytes


def meet(out: str) -> NetworkRecord:
    """Connect with the job's other nodes, and write this node's record into ``out``, the job's folder for hosts."""
    place = _place(out)
    host = socket.gethostname()
    is_first = any(item.address == place.address for item in interfaces.addresses())
    record = NetworkRecord(host, peers=() if is_first else None)
    try:
        record = record._replace(peers=tuple(_receive(place, out))) if is_first else _visit(place, out, record)
    except (ChannelError, OSError) as error:
        cause = error.__cause__ if isinstance(error, ChannelError) else error
        stranger = "a program that does not belong to the job answers there"
        reason = (cause.strerror or str(cause) or "no answer") if isinstance(cause, OSError) else stranger
        record = record._replace(reason=reason)
    if record.reason is not None:
        files.write_text(os.path.join(out, _GAVE_UP), host)
    files.write_text(os.path.join(out, host + NETWORK_SUFFIX), json_records.pretty(evidence.record(record)))
    return record


def _place(out: str) -> _Place:
    path = os.path.join(out, rendezvous.FILE)
    line, secret = files.read_text(path).splitlines()[:2]
    nodes, _, address, port, _ = line.split(",")
    if not address:
        raise UsageError(f"no network in common, or the first node is unknown or has no free port: {line}")
    return _Place(int(nodes), address, int(port), bytes.fromhex(secret))


def _receive(place: _Place, out: str) -> List[str]:
    """Wait for the other nodes and return the names of those that connected.

    Nodes that have proven the secret measure one at a time.
    """
    hosts: Set[str] = set()
    size = min(max(_TOTAL // max(place.nodes - 1, 1), _LEAST), _MOST)
    with closing(channel.callers((place.address, place.port), place.secret, _POLL)) as callers:
        next(callers)
        files.write_text(os.path.join(out, _LISTENS), "")
        last = looked = time.monotonic()
        while len(hosts) < place.nodes - 1 and time.monotonic() < last + _SILENCE:
            caller = next(callers)
            if caller:
                with closing(caller), suppress(ChannelError, OSError):
                    caller.connection.settimeout(_EXCHANGE)
                    name = str(_message(caller)["name"])
                    caller.send({"size": size})
                    _measure(caller.connection, size)
                    hosts.add(name)
                    last = time.monotonic()
            elif time.monotonic() > looked + _POLL:
                if files.exists(os.path.join(out, _GAVE_UP)):
                    break
                looked = time.monotonic()
    return sorted(hosts)


def _measure(connection: socket.socket, size: int) -> None:
    """Let another node measure."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(_PINGS):
        _discard(connection, 1)
        connection.sendall(b"!")
    _discard(connection, size)
    connection.sendall(b"!")
    _send(connection, size)
    with suppress(socket.timeout, ConnectionError):
        connection.recv(1)  # the other side must close first: otherwise the kernel blocks this port for some programs


def _visit(place: _Place, out: str, record: NetworkRecord) -> NetworkRecord:
    """Connect to the first node from another one, and return this node's record."""
    with closing(_connect(place, out)) as connection:
        own = Channel(connection, place.secret, serves=False)
        connection.settimeout(_EXCHANGE + place.nodes * _TURN)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not own.proven:
            own.receive()
        own.send({"name": record.host})
        size = int(_message(own)["size"])
        times = []
        for _ in range(_PINGS):
            begun = time.perf_counter()
            connection.sendall(b"?")
            _discard(connection, 1)
            times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        _send(connection, size)
        _discard(connection, 1)
        arrived = time.perf_counter()
        _discard(connection, size)
        there, back = (max(seconds, 1e-9) for seconds in (arrived - begun, time.perf_counter() - arrived))
    return record._replace(
        nanoseconds=int(min(times) / 2 * 1e9),
        bytes_per_second=int(size / there),
        bytes_per_second_back=int(size / back),
    )


def _connect(place: _Place, out: str) -> socket.socket:
    """Return a connection to the first node. Raises OSError if it cannot be reached."""
    begun, reach = time.monotonic(), _REACH + place.nodes * _TURN
    listened: Optional[float] = None  # the time at which the first node was found to listen
    while True:
        try:
            return socket.create_connection((place.address, place.port), max(begun + reach - time.monotonic(), 0.1))
        except ConnectionRefusedError:
            # Refused because nothing listens yet, or by a firewall.
            if listened is None and files.exists(os.path.join(out, _LISTENS)):
                listened = time.monotonic()
            if time.monotonic() > (begun + _SILENCE if listened is None else listened + _REACH / 2):
                raise
        except OSError:
            if time.monotonic() > begun + reach:
                raise
        time.sleep(_AGAIN)


def _message(other: Channel) -> Message:
    """Wait for a message and return it."""
    messages: List[Message] = []
    while not messages:
        messages = other.receive()
    return messages[0]


def _send(connection: socket.socket, size: int) -> None:
    piece = bytes(1 << 20)
    for start in range(0, size, len(piece)):
        connection.sendall(piece[: size - start])


def _discard(connection: socket.socket, size: int) -> None:
    """Receive ``size`` bytes. Raises OSError."""
    while size:
        received = len(connection.recv(min(size, 1 << 20)))
        if not received:
            raise ConnectionResetError("the connection was closed")
        size -= received
