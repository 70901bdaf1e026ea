"""The hub of a job that starts inside-out: it runs beside job.sh, starts a process on each node, and connects them.

The batch system starts the nodes (``node``), in one step or with its own command like ssh. When all nodes have
registered, the first one starts the image's launcher in its container. For each daemon, the launcher calls a program
(``inside.ask``) that sends a request to the hub. The hub then lets the daemon's node start it. So no container needs
ssh or the batch system's programs.
"""

import os
import resource
import selectors
import signal
import socket
import sys
import time
from typing import Dict, List, Optional, Sequence, Set

from deployer.contract.base import shell
from deployer.contract.base.errors import JobFailed
from deployer.site.inside import folder
from deployer.site.inside.node import HUB, NUMBER, end_all
from deployer.site.inside.wakeups import Wakeups
from deployer.site.rank import interfaces
from deployer.site.rank.launched import inherited_environment
from deployer.system import files, payload
from deployer.system.channel import PATIENCE, Channel, ChannelError, Message

#: The exit code of ssh if it cannot connect.
NOT_CONNECTED = 255
#: Connections that have not yet proven the key. If there are more, the oldest is closed: nodes prove it at once.
_MOST_STRANGERS = 256
#: Seconds for all nodes to register after the first one has, and for daemons to end after the launcher.
_REGISTER, _END = 300.0, 10.0


def serve(
    path: str, nodes: int, python: str, passes_on: bool, agent: Optional[str], machines: Optional[str], words: List[str]
) -> int:
    """Start a job's step on ``nodes`` nodes, connect them, and return the launcher's exit code.

    Args:
        path: the private folder to make for this in the job's folder.
        python: the image's Python.
        passes_on: whether to forward SIGTERM to all processes on the nodes; otherwise the batch system signals them.
        agent: a program like ssh that starts a command on a node; None: ``words`` start all nodes.
        machines: the file with the nodes, one per line, for ``agent``.
        words: the command that starts all nodes or, with ``agent``, one node.
    """
    try:
        key = folder.make(path, python)
    except ChannelError as error:
        raise JobFailed(str(error), f"the folder of the job must be private: remove {path}") from error
    lines = files.read_text(machines).splitlines() if machines is not None else []
    names = [line.split()[0] for line in lines if line.strip()]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("", 0))
        listener.listen(128)
        listener.settimeout(0)
        hub = "%s:%d" % (",".join(own_addresses()), listener.getsockname()[1])
        if agent is None:
            commands = [_known(words, hub, 0)]
        else:
            commands = [[agent, name, shell.quoted(_known(words, hub, at))] for at, name in enumerate(names)]
        return _Hub(listener, key, nodes, passes_on).serve(commands)


def own_addresses() -> List[str]:
    """Return this machine's IPv4 addresses, without loopback, and its name: the job's nodes try one after another."""
    known = [item.address for item in interfaces.addresses() if not item.address.startswith("127.")]
    return [*dict.fromkeys(known), socket.gethostname()]


def _known(words: Sequence[str], hub: str, number: int) -> List[str]:
    """Fill in the hub's addresses and the number in a node's words; the node fills in the launcher's words."""
    end = list(words).index("--")
    known = {HUB: hub, NUMBER: str(number)}
    return [*(known.get(word, word) for word in words[:end]), *words[end:]]


class _Peer:
    """A connection to a node, or to a program that requests a daemon."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.since = time.monotonic()
        self.number: Optional[int] = None
        self.address = self.host = ""


def _name_as_others_do(nodes: Sequence[_Peer]) -> None:
    """Give the nodes on the hub's machine the address at which another machine reached the hub.

    Their own address may belong to a bridge that each machine has, such as docker0: others would reach themselves.
    """
    reached = next((node.channel.address for node in nodes if node.address != node.channel.address), None)
    for node in nodes:
        if reached is not None and node.address == node.channel.address:
            node.address = reached


class _Hub:
    def __init__(self, listener: socket.socket, key: bytes, nodes: int, passes_on: bool) -> None:
        self._listener = listener
        self._key = key
        self._expected = nodes
        self._passes_on = passes_on
        self._selector = selectors.DefaultSelector()
        self._peers: List[_Peer] = []
        self._nodes: Dict[int, _Peer] = {}
        self._asked: Dict[int, Optional[_Peer]] = {}
        self._daemons = 0
        self._code: Optional[int] = None
        #: The time at which the step ends even if daemons still run.
        self._until: Optional[float] = None
        self._register_until: Optional[float] = None

    def serve(self, commands: Sequence[List[str]]) -> int:
        wakeups = Wakeups([signal.SIGCHLD, signal.SIGTERM])
        environment = inherited_environment()
        starters = {payload.start(command, environment, set()) for command in commands}
        # Each node has two connections. What was started before keeps its own limit.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(wakeups, selectors.EVENT_READ)
        try:
            while starters and not self._over():
                for key, _ in self._selector.select(1.0):
                    if isinstance(key.data, _Peer):
                        self._hear(key.data)
                    elif key.data:
                        key.data()
                    elif signal.SIGTERM in wakeups.take():
                        self._ask_to_end(starters)
                self._drop_strangers()
                self._reap(starters)
            self._tell_all({"end": True})
            until = time.monotonic() + _END
            while starters and time.monotonic() < until:  # those that still run are killed
                self._reap(starters)
                time.sleep(0.02)
        finally:
            self._selector.close()
            for peer in self._peers:
                peer.channel.close()
            end_all()
            wakeups.close()
        if self._code is None:
            self._fail("%d of %d nodes registered" % (len(self._nodes), self._expected))
        return self._code or 0

    def _ask_to_end(self, starters: Set[int]) -> None:
        """Let the ranks end the step. Without a launcher there are no ranks, so the step ends immediately."""
        if len(self._nodes) < self._expected:
            self._fail("asked to end before all nodes registered", 128 + signal.SIGTERM)
            for pid in starters:
                os.kill(pid, signal.SIGTERM)
        elif self._passes_on:
            self._tell_all({"signal": int(signal.SIGTERM)})

    def _over(self) -> bool:
        now = time.monotonic()
        if self._code is None and self._register_until is not None and now > self._register_until:
            self._fail("%d of %d nodes registered in %d s" % (len(self._nodes), self._expected, _REGISTER))
        return self._code is not None and (not self._asked or now > (self._until or 0))

    def _fail(self, reason: str, code: int = 1) -> None:
        if self._code is None:
            sys.stderr.write(f"deployer: error: {reason}\n")
            self._code = code
            self._until = time.monotonic()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has disconnected
            return
        strangers = [peer for peer in self._peers if not peer.channel.proven]
        if len(strangers) >= _MOST_STRANGERS:
            self._drop(strangers[0], "it did not prove the key")
        try:
            peer = _Peer(Channel(connection, self._key, serves=True))
        except ChannelError:
            connection.close()
            return
        self._peers.append(peer)
        self._selector.register(peer.channel, selectors.EVENT_READ, peer)

    def _hear(self, peer: _Peer) -> None:
        try:
            for message in peer.channel.receive():
                try:
                    if "node" in message:
                        self._register(peer, message)
                    elif "ask" in message:
                        self._start(peer, str(message["ask"]), str(message["text"]))
                    elif "ended" in message:
                        self._note(peer, int(message["ended"]), int(message["code"]))
                except (KeyError, TypeError, ValueError, OverflowError) as error:  # a field is missing, or not a number
                    raise ChannelError(f"an invalid message: {error!r}") from error
        except ChannelError as error:
            self._drop(peer, str(error))

    def _register(self, peer: _Peer, message: Message) -> None:
        number = int(message["node"])
        if number in self._nodes or not 0 <= number < self._expected:
            self._fail("two nodes have the number %d" % number)
            return
        peer.number, peer.address, peer.host = number, str(message["address"]), str(message["host"])
        self._nodes[number] = peer
        if self._register_until is None:
            self._register_until = time.monotonic() + _REGISTER
        if len(self._nodes) == self._expected:
            self._register_until = None
            peers = [self._nodes[node] for node in range(self._expected)]
            _name_as_others_do(peers)
            self._tell(peers[0], {"launch": [peer.address for peer in peers]})

    def _start(self, peer: _Peer, address: str, text: str) -> None:
        """Let a node start a daemon for the waiting ``peer``."""
        node = next((other for other in self._nodes.values() if address in (other.address, other.host)), None)
        if node is None or self._code is not None:
            self._tell(peer, {"code": NOT_CONNECTED})
            return
        self._daemons += 1
        self._asked[self._daemons] = peer
        self._tell(node, {"start": self._daemons, "text": text})

    def _note(self, peer: _Peer, number: int, code: int) -> None:
        """Record the end of a daemon, or of the launcher, which has number 0."""
        if number == 0:
            if self._code is None and peer is self._nodes.get(0):
                self._code = code
                self._until = time.monotonic() + _END
            return
        asked = self._asked.pop(number, None)
        if asked is not None:
            self._tell(asked, {"code": code})

    def _drop(self, peer: _Peer, reason: str) -> None:
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        self._selector.unregister(peer.channel)
        peer.channel.close()
        for number, asker in self._asked.items():
            if asker is peer:
                self._asked[number] = None
        if peer.number is not None and self._code is None:
            self._fail(f"lost {peer.host}, a node of the job: {reason}")

    def _drop_strangers(self) -> None:
        late = time.monotonic() - PATIENCE
        for peer in [stranger for stranger in self._peers if not stranger.channel.proven and stranger.since < late]:
            self._drop(peer, "it did not prove the key")

    def _tell(self, peer: _Peer, message: Message) -> None:
        try:
            peer.channel.send(message)
        except ChannelError as error:
            self._drop(peer, str(error))

    def _tell_all(self, message: Message) -> None:
        for peer in list(self._nodes.values()):
            if peer in self._peers:
                self._tell(peer, message)

    def _reap(self, starters: Set[int]) -> None:
        """Remove those of ``starters`` that have ended, and end the step if one failed."""
        for pid in list(starters):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                starters.remove(pid)
                code = payload.exit_code(status)
                if code and self._code is None:
                    self._fail("a node could not be started, or ended: exit code %d" % code, code)
