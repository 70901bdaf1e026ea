"""The facts that a rendezvous needs: this node's network interfaces with an IPv4 address, and a free port.

Interfaces are read with ioctl, because /sys may show another network namespace. Source: netdevice(7).
"""

import errno
import fcntl
import os
import socket
import struct
from contextlib import closing
from typing import List, Optional, Tuple

from deployer.contract.site.network import NodeAddress
from deployer.site.rank.observed.mapped_mpi import kernel_text

_FLAGS, _ADDRESS, _MASK, _HARDWARE = 0x8913, 0x8915, 0x891B, 0x8927
_RUNS = 0x41  # IFF_UP and IFF_RUNNING: enabled, with a link
_NAME, _REQUEST = 16, 40  # IFNAMSIZ; the size of struct ifreq
#: Attempts to find a free port.
_ATTEMPTS = 200
_LOWEST, _HIGHEST = 10000, 65535
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def addresses() -> List[NodeAddress]:
    """Return the first IPv4 address of each interface that is up and has a link."""
    known = []
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asked:
        for _, name in socket.if_nameindex():
            address, mask, flags = (_ask(asked, number, name) for number in (_ADDRESS, _MASK, _FLAGS))
            hardware = _ask(asked, _HARDWARE, name)
            if not (address and mask and flags and hardware) or struct.unpack("H", flags[:2])[0] & _RUNS != _RUNS:
                continue
            prefix = bin(struct.unpack("!I", mask[4:8])[0]).count("1")
            kind = struct.unpack("H", hardware[:2])[0]
            speed = kernel_text(f"/sys/class/net/{name}/speed").strip()  # some interfaces have no speed, or -1
            megabits = int(speed) if speed.isdigit() else 0
            known.append(NodeAddress(name, socket.inet_ntoa(address[4:8]), prefix, kind, megabits))
    return known


def _ask(asked: socket.socket, number: int, name: str) -> Optional[bytes]:
    """Return the answer of an ioctl about an interface, without the interface's name; None if there is no answer."""
    request = struct.pack("%ds%dx" % (_NAME, _REQUEST - _NAME), os.fsencode(name)[: _NAME - 1])
    try:
        return fcntl.ioctl(asked.fileno(), number, request)[_NAME:]
    except OSError:
        return None


def free_port() -> Optional[int]:
    """Return a TCP port that is free on all addresses of this node; None if none was found.

    The port is random, so that other users cannot predict it. It is outside the kernel's range for outgoing
    connections, so that none of these takes it before the ranks start.
    """
    lowest, highest = _span()
    for _ in range(_ATTEMPTS):
        port = lowest + int.from_bytes(os.urandom(4), "big") % (highest - lowest + 1)
        if _is_free(port):
            return port
    return None


def _span() -> Tuple[int, int]:
    words = kernel_text(_RANGE).split()
    first, last = map(int, words) if len(words) == 2 else (32768, 60999)
    if first - _LOWEST > 1000:
        return _LOWEST, first - 1
    return (last + 1, _HIGHEST) if _HIGHEST - last > 1000 else (_LOWEST, _HIGHEST)


def _is_free(port: int) -> bool:
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            trial = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # the node has no IPv6
        with closing(trial):
            try:
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind(("", port))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:  # EADDRNOTAVAIL: IPv6 is disabled
                    return False
    return True
