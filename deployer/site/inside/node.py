"""The process beside each node's container, which starts in the container the programs that the hub requests.

On the first node, the program is the image's launcher, which starts that node's ranks itself. On the others it is the
daemon for which the launcher calls its program instead of ssh. Each node registers with the hub and ends with it, and
leaves no process behind.
"""

import os
import re
import selectors
import shlex
import signal
import time
from typing import Dict, List, NamedTuple, Sequence, Tuple

from deployer.site.inside.wakeups import Wakeups
from deployer.site.rank.launched import inherited_environment
from deployer.site.rank.observed import mapped_mpi
from deployer.system import payload
from deployer.system.channel import Channel, ChannelError, Message, connect

#: The launcher's words that are known only when the job runs: the nodes, the first node, and the hub's addresses. The
#: number of ranks on a node may follow SLOTS.
NODES, SLOTS, FIRST, HUB = "deployer:nodes", "deployer:slots=", "deployer:first", "deployer:hub"
#: The word for a node's number in its command.
NUMBER = "deployer:number"
#: The words that separate the container, the launcher, and the ranks' command.
LAUNCHER, RANKS = "deployer:launcher", "deployer:ranks"
#: The end of the words that start the launcher or a daemon in the container.
END = "--"
#: The number of the launcher; daemons are numbered from 1.
_LAUNCHER = 0
#: Seconds for processes to end after SIGKILL.
_PATIENCE = 10.0
#: Signals that the batch system sends to all processes of a job; the ranks decide how to react.
_NOT_FOR_US = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


class NodeCommand(NamedTuple):
    """The words of a node.

    Attributes:
        container: the words before the command in the container.
        launcher: the image's launcher, with words that are not known yet.
        ranks: the command of each rank.
    """

    container: List[str]
    launcher: List[str]
    ranks: List[str]


def split(words: Sequence[str]) -> NodeCommand:
    """Return the parts of the words of a node. Raises ValueError."""
    first = list(words).index(LAUNCHER)
    second = list(words).index(RANKS, first)
    return NodeCommand(list(words[:first]), list(words[first + 1 : second]), list(words[second + 1 :]))


def launcher(command: NodeCommand, nodes: Sequence[str], hub: str) -> List[str]:
    """Return the words that start the launcher in the container of the first of ``nodes``."""
    known = {NODES: ",".join(nodes), FIRST: nodes[0], HUB: hub}
    own = []
    for word in command.launcher:
        if word.startswith(SLOTS):
            word = ",".join(f"{node}:{word[len(SLOTS) :]}" for node in nodes)
        own.append(known.get(word, word))
    return [*command.container, *own, *command.ranks]


def daemon(command: NodeCommand, text: str, hub: str) -> List[str]:
    """Return the words that run the launcher's request in the image's shell, with SIGTERM blocked as for the launcher.

    dash unblocks all signals when it starts a program. SIGTERM then ended the shell and, with podman, the container.
    Therefore the shell becomes the program. If there are several commands, the shell stays and handles the signal.
    """
    words = command.launcher
    start = words[: words.index(END) + 1] if END in words else []
    text = "exec " + text.lstrip() if _is_one_command(text) else "trap : TERM\n" + text
    return [*command.container, *(hub if word == HUB else word for word in start), "/bin/sh", "-c", text]


def _is_one_command(text: str) -> bool:
    """Return whether a shell text is one program with its arguments; False if in doubt."""
    try:
        parts = list(shlex.shlex(text, posix=True, punctuation_chars=True))
        program = shlex.split(text)[0]
    except (ValueError, IndexError):
        return False
    if "\n" in text or any(part and not part.strip("();<>|&") for part in parts):
        return False
    return re.match(r"[\w./+-]+\Z", program) is not None and program != "exec"


def serve(hub: str, addresses: Sequence[Tuple[str, int]], key: bytes, number: int, words: Sequence[str]) -> int:
    """Serve as a node of the job until the hub ends it; return 0, or 1 if the connection was lost.

    Args:
        hub: the hub's addresses as one word, for the launcher.
        addresses: the hub's addresses.
        number: the number of this node, from 0.
        words: the words of this node.

    Raises:
        ChannelError: the hub cannot be reached.
        ValueError: words are missing.
    """
    command = split(words)
    payload.adopt_orphans()
    # Signals that the agent ignores stay ignored, also in the launcher: Grid Engine sends SIGUSR2 to all processes
    # on the first node.
    handled = [number for number in _NOT_FOR_US if signal.getsignal(number) != signal.SIG_IGN]
    wakeups = Wakeups([signal.SIGCHLD, *handled])
    channel = connect(addresses, key)
    try:
        return _Node(channel, command, hub).serve(number, wakeups)
    finally:
        channel.close()
        end_all()
        wakeups.close()


class _Node:
    def __init__(self, channel: Channel, command: NodeCommand, hub: str) -> None:
        self._channel = channel
        self._command = command
        self._hub = hub
        self._environment = inherited_environment()
        self._started: Dict[int, int] = {}

    def serve(self, number: int, wakeups: Wakeups) -> int:
        self._channel.send({"node": number, "address": self._channel.address, "host": os.uname().nodename})
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(wakeups, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                try:
                    if self._channel in ready:
                        for message in self._channel.receive():
                            if "end" in message:
                                return 0
                            self._obey(message)
                    if wakeups in ready:
                        wakeups.take()
                        self._reap()
                except ChannelError:
                    return 1

    def _obey(self, message: Message) -> None:
        if "launch" in message:
            self._start(_LAUNCHER, launcher(self._command, message["launch"], self._hub))
        elif "start" in message:
            self._start(message["start"], daemon(self._command, message["text"], self._hub))
        elif "signal" in message:
            mapped_mpi.send(mapped_mpi.family(os.getpid())[1:], message["signal"])

    def _start(self, number: int, words: List[str]) -> None:
        self._started[payload.start(words, self._environment, set())] = number

    def _reap(self) -> None:
        """Report to the hub which started processes have ended; also reap orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            number = self._started.pop(pid, None)
            if number is not None:
                code = payload.exit_code(status)
                self._channel.send({"ended": number, "code": code})


def end_all() -> None:
    """Kill all descendants of this process, and wait for their end."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        mapped_mpi.send(mapped_mpi.family(os.getpid())[1:], signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)
