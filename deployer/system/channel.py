"""Messages between a job's processes on different nodes: JSON lines, each with a proof of the sender's key.

Everyone on the cluster can use the network, so both ends of a connection must first prove that they have the job's key.
The key itself is never sent. Each message also has a proof for its direction and number, so no message can be altered,
repeated or omitted.
"""

import hashlib
import hmac
import json
import os
import select
import socket
import time
from contextlib import ExitStack, suppress
from typing import Any, Dict, Generator, List, Optional, Sequence, Tuple, Union

_HELLO = "deployer-inside-1"
_NONCE = 32
#: Maximum length of a line before and after the other end has proven the key; the command of a daemon may be long.
_MAX_STRANGER, _MAX_LINE = 512, 4 * 1024 * 1024
#: Seconds in which the other end must accept a message, and prove the key.
PATIENCE = 30.0
#: Idle seconds before the kernel probes the other end, seconds between probes, and the number of probes that may fail.
_IDLE, _BETWEEN, _QUESTIONS = 60, 15, 4

#: Seconds in which a stranger must prove, after connecting, that it belongs to the job; and the maximum number of
#: strangers at a time.
_STRANGER, _STRANGERS = 5.0, 256

Message = Dict[str, Any]


class ChannelError(Exception):
    """Error: the connection has ended, or a message is not from a process of this job."""


class Channel:
    """One end of a connection. Call ``receive`` when there is data to read."""

    def __init__(self, connection: socket.socket, key: bytes, serves: bool) -> None:
        connection.settimeout(PATIENCE)
        _keep_alive(connection)
        #: For data that follows a message, while no other is on its way.
        self.connection = connection
        self._key = key
        self._serves = serves
        self._own = os.urandom(_NONCE).hex()
        self._read = b""
        self._sent = self._taken = 0
        self._session = b""
        self._other = ""
        #: Whether the other end has proven that it has the key.
        self.proven = False
        if serves:
            self._write(f"{_HELLO} {self._own}")

    def fileno(self) -> int:
        """Return the connection's descriptor, for a selector."""
        return self.connection.fileno()

    @property
    def address(self) -> str:
        """Return this end's address."""
        return str(self.connection.getsockname()[0])

    def send(self, message: Message) -> None:
        """Send a message. Raises ChannelError."""
        body = json.dumps(message)
        self._write("{} {}".format(self._seal("server" if self._serves else "client", self._sent, body), body))
        self._sent += 1

    def receive(self) -> List[Message]:
        """Read at least once, and return the messages that have arrived. Raises ChannelError."""
        try:
            piece = self.connection.recv(64 * 1024)
        except OSError as error:
            raise ChannelError(f"the connection broke: {error}") from error
        if not piece:
            raise ChannelError("the connection was closed")
        *lines, self._read = (self._read + piece).split(b"\n")
        messages = [message for line in lines for message in self._take(line)]
        if len(self._read) > (_MAX_LINE if self.proven else _MAX_STRANGER):
            raise ChannelError("a line is too long")
        return messages

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _take(self, line: bytes) -> List[Message]:
        try:
            if not self.proven:
                self._meet(line.decode("ascii"))
                return []
            proof, _, body = line.decode("utf-8").partition(" ")
            self._compare(proof, self._seal("client" if self._serves else "server", self._taken, body))
            self._taken += 1
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"not a message: {error}") from error
        if not isinstance(message, dict):
            raise ChannelError("not a message")
        return [message]

    def _meet(self, line: str) -> None:
        """Handle a line of the handshake: ``HELLO NONCE``, ``NONCE PROOF``, ``PROOF``."""
        if self._serves:
            self._other, _, proof = line.partition(" ")
            self._compare(proof, self._proof("client"))
            self._write(self._proof("server"))
        elif not self._other:
            hello, _, self._other = line.partition(" ")
            if hello != _HELLO:
                raise ChannelError("the other end is not of this version of deployer")
            self._write("{} {}".format(self._own, self._proof("client")))
            return
        else:
            self._compare(line, self._proof("server"))
        self._session = self._digest(self._key, "session", *self._nonces()).digest()
        self.proven = True

    def _nonces(self) -> Tuple[str, str]:
        return (self._own, self._other) if self._serves else (self._other, self._own)

    def _proof(self, who: str) -> str:
        return self._digest(self._key, who, *self._nonces()).hexdigest()

    def _seal(self, sender: str, number: int, body: str) -> str:
        return self._digest(self._session, sender, str(number), body).hexdigest()

    def _digest(self, key: bytes, *words: str) -> "hmac.HMAC":
        return hmac.new(key, " ".join(words).encode(), hashlib.sha256)

    def _compare(self, given: str, expected: str) -> None:
        if not hmac.compare_digest(given.encode(), expected.encode()):
            raise ChannelError("the other end does not have the job's key")

    def _write(self, line: str) -> None:
        try:
            self.connection.sendall(line.encode() + b"\n")
        except OSError as error:
            raise ChannelError(f"the connection broke: {error}") from error


def _keep_alive(connection: socket.socket) -> None:
    """Let the kernel detect that the other node is gone, and prevent firewalls from dropping the connection."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("KEEPIDLE", _IDLE), ("KEEPINTVL", _BETWEEN), ("KEEPCNT", _QUESTIONS)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_" + option), value)


def callers(address: Tuple[str, int], key: bytes, poll: float) -> Generator[Optional[Channel], None, None]:
    """Listen; yield None, and then the callers that have proven the key, and None at least every ``poll`` seconds.

    Strangers are authenticated concurrently, so that silent ones keep no process of the job waiting.
    """
    strangers: Dict[Channel, float] = {}  # with the time until which each must prove the key
    server = socket.socket()
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen(1024)  # strangers queue there too
        server.setblocking(False)
        while True:
            yield None
            waiting: List[Union[Channel, socket.socket]] = [*strangers]
            for ready in select.select(waiting + [server] * (len(strangers) < _STRANGERS), [], [], poll)[0]:
                if not isinstance(ready, Channel):
                    with suppress(ChannelError, OSError):  # it has disconnected
                        caller = Channel(server.accept()[0], key, serves=True)
                        strangers[caller] = time.monotonic() + _STRANGER
                    continue
                try:
                    ready.receive()
                except ChannelError:
                    strangers[ready] = 0.0
                if ready.proven:
                    del strangers[ready]
                    yield ready
            for late in [stranger for stranger, until in strangers.items() if time.monotonic() > until]:
                del strangers[late]
                late.close()
    finally:
        server.close()
        for stranger in strangers:
            stranger.close()


def connect(addresses: Sequence[Tuple[str, int]], key: bytes, patience: float = PATIENCE) -> Channel:
    """Connect to the first of ``addresses`` whose process has the key. Raises ChannelError with the reasons."""
    reasons = []
    for host, port in addresses:
        try:
            with ExitStack() as opened:
                connection = opened.enter_context(socket.create_connection((host, port), patience))
                channel = Channel(connection, key, serves=False)
                connection.settimeout(patience)
                until = time.monotonic() + patience
                while not channel.proven:
                    if time.monotonic() > until:
                        raise ChannelError("it did not prove the key in time")
                    channel.receive()
                opened.pop_all()
                return channel
        except (ChannelError, OSError) as error:
            reasons.append(f"{host}: {error}")
    raise ChannelError("cannot reach the first node of the job: %s" % ("; ".join(reasons) or "it has no address"))
