"""Choose the network for the rendezvous of ranks without MPI: one in which every node has an address.

Pure: ``site.rank.interfaces`` reads a node's addresses; ``site.jobs.rendezvous`` uses the choice.
"""

import itertools
import re
from operator import attrgetter
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

#: ARPHRD_INFINIBAND (linux/if_arp.h): IP over InfiniBand or Omni-Path.
_INFINIBAND = 32
#: Slingshot's interfaces, which have Ethernet's type.
_SLINGSHOT = re.compile(r"^hsn\d")
#: Interfaces that lead to no other node: loopback, containers, virtual machines, tunnels.
_LOCAL = re.compile(r"^(lo|docker|virbr|veth|br-|cni|podman|flannel|tun|tap|dummy|ip6?tnl|sit|gre|erspan|teql)")
#: 169.254.0.0/16: addresses that were assigned neither by a router nor by an administrator.
_LINK_LOCAL = 0xA9FE0000, 0xFFFF0000
LOOPBACK, LOOPBACK_ADDRESS = "lo", "127.0.0.1"


class NodeAddress(NamedTuple):
    """An IPv4 address of a node.

    Attributes:
        interface: the network interface.
        address: for instance 10.1.2.3.
        prefix: the bits of the network, for instance 24.
        kind: the interface's type, as the kernel numbers it (ARPHRD_*).
        speed: Mbit/s; 0 if unknown.
    """

    interface: str
    address: str
    prefix: int
    kind: int = 1
    speed: int = 0

    @property
    def network(self) -> Tuple[int, int]:
        """Return the number and the prefix length of its network."""
        return _number(self.address) >> (32 - self.prefix), self.prefix


class CommonNetwork(NamedTuple):
    """A network that connects all nodes.

    Attributes:
        address: the first node's address in the network.
        interface: the interface, if it has the same name on all nodes; else empty.
        addresses: the address of each node.
    """

    address: str
    interface: str
    addresses: Tuple[str, ...] = ()


def common(first: str, nodes: Dict[str, Sequence[NodeAddress]], wanted: str = "") -> Optional[CommonNetwork]:
    """Return the best network that all nodes share; None if there is none.

    A fast fabric precedes Ethernet, and a faster interface precedes a slower one. A single node needs no network. If
    each node or rack has its own network, connected by routers, an interface name common to all nodes is used.

    Args:
        first: the first node.
        nodes: the addresses of each node, by its name.
        wanted: the interfaces to choose from, separated by commas; empty: all.
    """
    names = [name.strip("=^ ") for name in wanted.split(",") if name.strip("=^ ")] if wanted[:1] != "^" else []
    own = [each for each in nodes.get(first, ()) if _is_usable(each, names)]
    if len(nodes) == 1 and not names:
        return CommonNetwork(LOOPBACK_ADDRESS, LOOPBACK)
    usable = [[each for each in others if _is_usable(each, names)] for others in nodes.values()]
    ordered = sorted(own, key=lambda item: _order(item, names))
    for key, each in itertools.product((attrgetter("network"), attrgetter("interface")), ordered):
        same = _one_of_each([[other for other in others if key(other) == key(each)] for others in usable])
        if same:
            interfaces = {other.interface for other in same}
            name = each.interface if interfaces == {each.interface} else ""
            return CommonNetwork(each.address, name, tuple(other.address for other in same))
    return CommonNetwork(LOOPBACK_ADDRESS, LOOPBACK) if len(nodes) == 1 else None


def _one_of_each(nodes: Sequence[Sequence[NodeAddress]]) -> List[NodeAddress]:
    """Return the first address of each node; empty if one has none, or if two nodes have the same address.

    An address that several nodes share is local to each node, such as a container bridge or a management controller.
    """
    first = [others[0] for others in nodes if others]
    return first if len({each.address for each in first}) == len(nodes) else []


def _is_usable(item: NodeAddress, names: Sequence[str]) -> bool:
    if names:
        return item.interface in names
    number, mask = _LINK_LOCAL
    return not _LOCAL.match(item.interface) and _number(item.address) & mask != number


def _order(item: NodeAddress, names: Sequence[str]) -> Tuple[int, bool, int]:
    """Return the sort key of an address: by the order of ``names``, then fast fabrics first, then by speed."""
    place = names.index(item.interface) if names else 0
    return place, not (item.kind == _INFINIBAND or bool(_SLINGSHOT.match(item.interface))), -item.speed


def _number(address: str) -> int:
    return int.from_bytes(map(int, address.split(".")), "big")
