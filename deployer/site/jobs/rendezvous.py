"""The rendezvous of a job's ranks without MPI: the file ``hosts/meet`` in the job's folder.

``result`` writes it after the first step, from the nodes' records of themselves. Its first line is for ``rank``::

    NODES,RANKS_PER_NODE,ADDRESS,PORT,INTERFACE

The port was free on the first node when the job started. Address, port and interface are empty if the nodes share no
network. The second line is the job's secret, with which its processes recognize each other. Only the user can read the
file. If the nodes share a network and have free ports, a line for each follows, the first node first::

    HOST ADDRESS PORT
"""

import os
import socket
from typing import Optional, Sequence

from deployer.contract.proof.evidence import HostRecord, Launch
from deployer.contract.site.network import CommonNetwork, common
from deployer.system import files

FILE = "meet"


def write(folder: str, launch: Launch, hosts: Sequence[HostRecord], machines: str) -> Optional[CommonNetwork]:
    """Write the file and return the network; None without a common network or a free port on the first node.

    Args:
        folder: the folder with the records of the nodes.
        machines: the file with the nodes of a batch system with an agent, starting with the first node.
    """
    first = _first(hosts, machines)
    network, place, lines = None, ["", "", ""], ""
    if first and first.port:
        network = common(first.host, {item.host: item.addresses for item in hosts}, launch.interface or "")
        if network:
            place = [network.address, str(first.port), network.interface]
            if all(item.port for item in hosts) and len(network.addresses) == len(hosts):
                known = sorted(zip(hosts, network.addresses), key=lambda each: each[0] is not first)
                lines = "".join(f"{item.host} {address} {item.port}\n" for item, address in known)
    line = ",".join([str(launch.nodes), str(launch.ranks_per_node), *place])
    files.write_text(os.path.join(folder, FILE), f"{line}\n{os.urandom(32).hex()}\n{lines}", 0o600)
    return network


def _first(hosts: Sequence[HostRecord], machines: str) -> Optional[HostRecord]:
    """Return the record of the node with rank 0: the first of the list, or else this one, where job.sh runs.

    The list may contain addresses, or names other than the nodes' own.
    """
    if len(hosts) == 1:
        return hosts[0]
    here = socket.gethostname()
    name = (files.read_text(machines).split() or [here])[0] if files.is_file(machines) else here
    listed = _named(hosts, name)
    if listed:
        return listed
    address = _address(name)
    if address.startswith("127."):
        return _named(hosts, here)
    having = [item for item in hosts if any(each.address == address for each in item.addresses)]
    return having[0] if len(having) == 1 else None


def _named(hosts: Sequence[HostRecord], name: str) -> Optional[HostRecord]:
    """Return the record of a host, if possible with exactly this name, or else with the same short name."""
    short = name.partition(".")[0]
    same = [item for item in hosts if item.host == name]
    return next(iter(same or [item for item in hosts if item.host.partition(".")[0] == short]), None)


def _address(name: str) -> str:
    """Return the IPv4 address of a host name or address; empty if it is unknown."""
    try:
        return socket.gethostbyname(name)
    except (socket.gaierror, socket.herror, UnicodeError):
        return ""
