"""The addresses at which a job's nodes reach this one, and their format as one word."""

import socket
from typing import List, Sequence, Tuple

from deployer.site.rank import interfaces

_LOOPBACK = "127."


def own() -> List[str]:
    """Return this machine's IPv4 addresses, without loopback, and its name."""
    known = [address.address for address in interfaces.addresses() if not address.address.startswith(_LOOPBACK)]
    return [*dict.fromkeys(known), socket.gethostname()]


def render(hosts: Sequence[str], port: int) -> str:
    """Return addresses as one word."""
    return "%s:%d" % (",".join(hosts), port)


def parse(word: str) -> List[Tuple[str, int]]:
    """Return the addresses in a word from ``render``. Raises ValueError."""
    hosts, _, port = word.rpartition(":")
    return [(host, int(port)) for host in hosts.split(",") if host]
