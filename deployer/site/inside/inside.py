"""inside: the processes of a job that starts inside-out besides the hub, which job.sh and launchers call."""

import os
import select
import signal
import sys
from contextlib import closing
from typing import List, NoReturn, Sequence, Tuple

from deployer.contract.base.errors import JobFailed, UsageError
from deployer.site.inside import folder, hub
from deployer.site.inside import node as nodes
from deployer.system import payload, process
from deployer.system.channel import ChannelError, connect


def parse(hub_word: str) -> List[Tuple[str, int]]:
    """Return the hub's addresses in the word that the hub passes to nodes: HOST,HOST:PORT. Raises ValueError."""
    hosts, _, port = hub_word.rpartition(":")
    return [(host, int(port)) for host in hosts.split(",") if host]


def node(hub_word: str, key: str, number: int, words: Sequence[str]) -> int:
    """Serve as a node of the job."""
    try:
        return nodes.serve(hub_word, parse(hub_word), folder.read_key(key), number, words)
    except ValueError as error:
        raise UsageError(f"inside --node: {error}", "it is what job.sh calls") from error
    except ChannelError as error:
        raise JobFailed(
            f"{os.uname().nodename}: {error}", "nodes must reach the one with job.sh by TCP; see its firewall"
        ) from error


def ask(hub_word: str, key: str, words: Sequence[str]) -> int:
    """Run a command in a node's container, in place of ssh, and return its exit code.

    Args:
        words: [OPTIONS] NODE WORDS..., from a launcher in a container.
    """
    # The ranks decide when the job ends; the launcher may have unblocked the signal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    words = list(words)
    while words and words[0].startswith("-"):
        del words[0]
    try:
        addresses, secret = parse(hub_word), folder.read_key(key)
    except (ChannelError, ValueError) as error:
        raise JobFailed(f"cannot start a daemon on another node: {error}") from error
    try:
        with closing(connect(addresses, secret)) as channel:
            channel.send({"ask": words[0] if words else "", "text": " ".join(words[1:])})
            while True:
                select.select([channel], [], [])  # a read has a time limit, but the daemon runs as long as the job
                for message in channel.receive():
                    return int(message["code"])
    except (ChannelError, ValueError) as error:
        sys.stderr.write(f"deployer: error: {error}\n")
        return hub.NOT_CONNECTED


def launch(hub_word: str, words: Sequence[str]) -> NoReturn:
    """Become the launcher, with SIGTERM blocked, because ranks that are asked to end still need it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    payload.restore_signals()
    process.replace(words, dict(os.environ, **{folder.HUB: hub_word}))
