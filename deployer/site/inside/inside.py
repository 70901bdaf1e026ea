"""inside: the four processes of a job that starts inside-out, which job.sh and launchers call."""

import os
from typing import NoReturn, Optional, Sequence

from deployer.contract.base.errors import JobFailed, UsageError
from deployer.site.inside import addresses, folder, hub
from deployer.site.inside import ask as asking
from deployer.site.inside import node as nodes
from deployer.site.inside.channel import ChannelError
from deployer.system import files, payload, process


def serve(
    path: str,
    count: int,
    python: str,
    passes_on: bool,
    agent: Optional[str],
    machines: Optional[str],
    words: Sequence[str],
) -> int:
    """Connect the nodes of a job's step, and return the launcher's exit code.

    Args:
        path: the private folder to make for this in the job's folder.
        count: the number of nodes.
        python: the image's Python.
        passes_on, agent, words: as in ``hub``.
        machines: the file with the nodes, one per line; None: ``words`` start all nodes.
    """
    try:
        key = folder.make(path, python)
    except ChannelError as error:
        raise JobFailed(str(error), f"the folder of the job must be private: remove {path}") from error
    if agent is None or machines is None:
        return hub.serve(key, count, words, passes_on)
    names = [line.split()[0] for line in files.read_text(machines).splitlines() if line.strip()]
    return hub.serve(key, count, words, passes_on, agent, names)


def node(hub_word: str, key: str, number: int, words: Sequence[str]) -> int:
    """Serve as a node of the job."""
    try:
        return nodes.serve(hub_word, addresses.parse(hub_word), folder.read_key(key), number, words)
    except ValueError as error:
        raise UsageError(f"inside --node: {error}", "it is what job.sh calls") from error
    except ChannelError as error:
        raise JobFailed(
            f"{os.uname().nodename}: {error}", "nodes must reach the one with job.sh by TCP; see its firewall"
        ) from error


def ask(hub_word: str, key: str, words: Sequence[str]) -> int:
    """Run a command in a node's container, like ssh."""
    try:
        return asking.ask(addresses.parse(hub_word), folder.read_key(key), words)
    except (ChannelError, ValueError) as error:
        raise JobFailed(f"cannot start a daemon on another node: {error}") from error


def launch(hub_word: str, words: Sequence[str]) -> NoReturn:
    """Become the launcher, with SIGTERM blocked, because ranks that are asked to end still need it."""
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    payload.restore_signals()
    process.replace(words, dict(os.environ, **{folder.HUB: hub_word}))
