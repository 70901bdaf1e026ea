"""The machines of a simulated site: names, addresses, interfaces, and the files that describe the network."""

import grp
import os
import pwd
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deployer.connected.rehearse.world import file_system, kernel
from deployer.connected.rehearse.world.file_system import MachineFiles
from deployer.contract.base.errors import DeployerError
from deployer.system import process

#: The first address belongs to the machine on which job.sh runs.
NETWORK, PREFIX = "10.77.0.", 24
LOGIN, _FIRST = "login", 11
INTERFACE = "eth0"
_IP_TIMEOUT = 20.0


class SimulatedMachine(NamedTuple):
    """The configuration of a simulated machine.

    Attributes:
        name: its host name.
        address: its address.
        files: its file system.
        place: an empty folder of this machine, on which its file system is made.
        sockets: the folder of the sockets of all machines.
    """

    name: str
    address: str
    files: MachineFiles
    place: str
    sockets: str


def names(nodes: int) -> list[str]:
    """Return the host names of the nodes."""
    return [f"node{number}" for number in range(1, nodes + 1)]


def addresses(nodes: int) -> dict[str, str]:
    """Return the addresses of all machines by name, starting with the machine of job.sh."""
    return {LOGIN: f"{NETWORK}1", **{name: f"{NETWORK}{_FIRST + place}" for place, name in enumerate(names(nodes))}}


def settings(found: Mapping[str, str], home: str) -> dict[str, str]:
    """Return the files of /etc: machines by name, and a single user, whose home is ``home``."""
    user, group = os.getuid(), os.getgid()
    people = {0: "root:x:0:0::/root:/bin/bash", user: f"{user_name()}:x:{user}:{group}::{home}:/bin/bash"}
    groups = {0: "root:x:0:", group: f"{_group_name(group)}:x:{group}:"}
    hosts = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    return {
        "/etc/hosts": _lines([*hosts, *(f"{address} {name}" for name, address in found.items())]),
        "/etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "/etc/passwd": _lines([*people.values(), "nobody:x:65534:65534::/:/bin/false"]),
        "/etc/group": _lines([*groups.values(), "nogroup:x:65534:"]),
    }


def _lines(found: Sequence[str]) -> str:
    return "".join(line + "\n" for line in found)


def user_name() -> str:
    """Return this user's name, or the user's number if there is no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _group_name(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)


def become(machine: SimulatedMachine) -> None:
    """Make this process, which has new namespaces, the first process of a machine. Raises OSError."""
    socket.sethostname(machine.name)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)  # later mounts must not reach other processes
    file_system.enter(machine.files, machine.place, machine.sockets)


def ip(lines: Sequence[str]) -> None:
    """Change interfaces with iproute2. Raises MissingTool, JobFailed."""
    try:
        process.run(["ip", "-batch", "-"], _IP_TIMEOUT, stdin="".join(line + "\n" for line in lines), hint=_HINT)
    except DeployerError as error:
        raise type(error)(f"cannot join the nodes of the rehearsal: {error.message}", _HINT) from error


_HINT = "a rehearsal needs the program ip (Debian: apt-get install iproute2), and the kernel's veth and bridge"


def own_interfaces(machine: SimulatedMachine, lines: Sequence[str] = ()) -> list[str]:
    """Return the commands for `ip` on a machine; ``lines`` come before those for its address."""
    address = f"address add {machine.address}/{PREFIX} dev {INTERFACE}"
    return ["link set dev lo up", *lines, address, f"link set dev {INTERFACE} up"]


def switch(machine: SimulatedMachine, nodes: Sequence[int]) -> list[str]:
    """Return the commands for `ip` on the machine of job.sh. Its own interface is the bridge that joins all machines.

    Args:
        nodes: the pid of each node's first process.
    """
    lines = own_interfaces(machine, [f"link add name {INTERFACE} type bridge"])
    for number, pid in enumerate(nodes, 1):
        lines.append(f"link add name port{number} type veth peer name {INTERFACE} netns {pid}")
        lines.append(f"link set dev port{number} master {INTERFACE} up")
    return lines
