"""The addresses by which nodes of a job reach this one, and how they are written as one word."""

import fcntl
import socket
import struct
from typing import List, Sequence, Tuple

#: Returns the address of an interface (netdevice(7)); its name has at most 15 bytes.
_SIOCGIFADDR, _NAME = 0x8915, 15
_LOOPBACK = "127."


def own() -> List[str]:
    """Return this machine's IPv4 addresses, without loopback, and its name."""
    found: List[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:_NAME]))
            except OSError:  # an interface without an address
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith(_LOOPBACK) and address not in found:
                found.append(address)
    return [*found, socket.gethostname()]


def render(hosts: Sequence[str], port: int) -> str:
    """Return addresses as one word."""
    return "%s:%d" % (",".join(hosts), port)


def parse(word: str) -> List[Tuple[str, int]]:
    """Return the addresses in a word of ``render``. Raises ValueError."""
    hosts, _, port = word.rpartition(":")
    return [(host, int(port)) for host in hosts.split(",") if host]
