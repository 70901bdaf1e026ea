"""What each simulated machine has of its own: name, /proc, /tmp, shared memory, and the files that tell it the network.

The rest is this machine's: its programs, and the folders of the simulated site.
"""

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from deployer.connected.rehearse import kernel
from deployer.contract.errors import DeployerError
from deployer.system import files, process

#: Folders that are local to a node, and in its memory.
OWN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
#: The most that each of them holds; a job that fills it gets "no space", as on a full disk.
_SIZE = "25%"
#: The first address is that of the machine on which job.sh runs.
NETWORK, PREFIX = "10.77.0.", 24
LOGIN, _FIRST = "login", 11
INTERFACE = "eth0"
_IP_TIMEOUT = 20.0


class SimulatedMachine(NamedTuple):
    """What a simulated machine is told.

    Attributes:
        name: its host name.
        address: its address.
        hosts: the file that becomes /etc/hosts.
        resolver: the file that becomes /etc/resolv.conf.
        shared: paths that stay visible although they may be below /tmp.
        fixed: files and folders that run outside of the containers: no program of a node can change them.
    """

    name: str
    address: str
    hosts: str
    resolver: str
    shared: Sequence[str]
    fixed: Sequence[str]


def names(nodes: int) -> list[str]:
    """Return the host names of the nodes."""
    return [f"node{number}" for number in range(1, nodes + 1)]


def addresses(nodes: int) -> dict[str, str]:
    """Return the addresses of all machines by name, that of job.sh first."""
    return {LOGIN: f"{NETWORK}1", **{name: f"{NETWORK}{_FIRST + place}" for place, name in enumerate(names(nodes))}}


def hosts_file(found: dict[str, str]) -> str:
    """Return the text of /etc/hosts."""
    return "127.0.0.1 localhost\n::1 localhost ip6-localhost\n" + "".join(
        f"{address} {name}\n" for name, address in found.items()
    )


def become(machine: SimulatedMachine) -> None:
    """Make this process, which has new namespaces, the first one of a machine. Raises OSError."""
    socket.sethostname(machine.name)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)  # our mounts must not reach other processes
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    with contextlib.suppress(OSError):  # then /sys shows the interfaces of this machine, which little reads
        kernel.mount("sysfs", "/sys", "sysfs", kernel.MS_NOSUID | kernel.MS_NODEV)
    for source, target in ((machine.hosts, "/etc/hosts"), (machine.resolver, "/etc/resolv.conf")):
        if files.exists(target):
            kernel.mount(source, os.path.realpath(target), flags=kernel.MS_BIND)
    for folder in OWN_FOLDERS:
        if files.is_folder(folder) and not files.is_link(folder):
            _own(folder, machine.shared)
    for path in machine.fixed:
        kernel.make_read_only(path)


def _own(folder: str, shared: Sequence[str]) -> None:
    """Mount an empty folder in memory; what is shared below it is visible again on the same path."""
    kept = [path for path in shared if path.startswith(folder + "/")]
    opened = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in kept]
    mode = "755" if not os.stat(folder).st_mode & 0o002 else "1777"
    kernel.mount("tmpfs", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode={mode},size={_SIZE}")
    for path, descriptor in zip(kept, opened, strict=True):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if files.is_folder(f"/proc/self/fd/{descriptor}"):
            os.makedirs(path, exist_ok=True)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        kernel.mount(f"/proc/self/fd/{descriptor}", path, flags=kernel.MS_BIND)
        os.close(descriptor)


def ip(lines: Sequence[str]) -> None:
    """Change interfaces with iproute2. Raises MissingTool, JobFailed."""
    try:
        process.run(["ip", "-batch", "-"], _IP_TIMEOUT, stdin="".join(line + "\n" for line in lines), hint=_HINT)
    except DeployerError as error:
        raise type(error)(f"cannot join the nodes of the rehearsal: {error.message}", _HINT) from error


_HINT = "a rehearsal needs the program ip (package iproute2), and the kernel's veth and bridge"


def own_interfaces(machine: SimulatedMachine) -> list[str]:
    """Return what `ip` does on a node."""
    return [
        "link set dev lo up",
        f"address add {machine.address}/{PREFIX} dev {INTERFACE}",
        f"link set dev {INTERFACE} up",
    ]


def switch(machine: SimulatedMachine, nodes: Sequence[int]) -> list[str]:
    """Return what `ip` does on the machine of job.sh: its own interface is the bridge that joins all.

    Args:
        nodes: the first processes of the nodes.
    """
    lines = ["link set dev lo up", f"link add name {INTERFACE} type bridge"]
    lines += [f"address add {machine.address}/{PREFIX} dev {INTERFACE}", f"link set dev {INTERFACE} up"]
    for number, pid in enumerate(nodes, 1):
        lines.append(f"link add name port{number} type veth peer name {INTERFACE} netns {pid}")
        lines.append(f"link set dev port{number} master {INTERFACE} up")
    return lines
