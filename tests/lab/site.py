"""The pretended site as data: its nodes, addresses, cores and memory. Pure: no I/O.

laptop --10.98.0.0/30-- login1 --10.99.0.0/24 (a bridge in the namespace "switch")-- cn1, cn2, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.lab.errors import LabError

LAPTOP = "laptop"
LOGIN = "login1"
SWITCH = "switch"

LAPTOP_ADDRESS = "10.98.0.1"
LOGIN_OUTER_ADDRESS = "10.98.0.2"
LOGIN_INNER_ADDRESS = "10.99.0.1"

USER = "alice"
USER_ID = 2001
SCRATCH = f"/home/{USER}/scratch"

MAX_COMPUTE_NODES = 64


@dataclass(frozen=True)
class Site:
    """What a lab is to look like. Two labs with equal sites differ in nothing but their folder."""

    compute_nodes: int
    #: The host's cores that the compute nodes share out among themselves.
    host_cpus: tuple[int, ...]
    memory_mb: int
    #: Size of the login node's scratch, as mount's ``size=`` takes it.
    scratch: str = "64m"
    #: The root that the nodes are made of. "/" is this machine's own. The seam for a site of another suite: a
    #: folder made by mmdebstrap fits here (its /usr and /etc are used, its users' ids, its daemons).
    root: str = "/"
    #: Slurm is told of the nodes and partitions of ``tests.mixed``, whatever the machine below has.
    mixed: bool = False
    #: Whether users may make user namespaces.
    namespaces: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.compute_nodes <= MAX_COMPUTE_NODES:
            raise LabError(f"{self.compute_nodes} compute nodes?", f"take 1 to {MAX_COMPUTE_NODES}")
        if not self.host_cpus:
            raise LabError("no processor to give to the nodes")

    @property
    def compute(self) -> tuple[str, ...]:
        return tuple(f"cn{number}" for number in range(1, self.compute_nodes + 1))

    @property
    def slurm_nodes(self) -> tuple[str, ...]:
        """The nodes that are machines, with their own daemons, in the order in which they start."""
        return (LOGIN, *self.compute)

    @property
    def all_nodes(self) -> tuple[str, ...]:
        return (SWITCH, LAPTOP, *self.slurm_nodes)

    def inner_address(self, node: str) -> str:
        """Return the address of ``node`` on the cluster's own network."""
        if node == LOGIN:
            return LOGIN_INNER_ADDRESS
        return f"10.99.0.{10 + self.compute.index(node) + 1}"

    def cpus_of(self, node: str) -> tuple[int, ...]:
        """Return the host's cores that compute node ``node`` stands on."""
        return share_out(self.host_cpus, self.compute_nodes)[self.compute.index(node)]

    def require(self, node: str) -> str:
        """Return ``node``, or raise when there is no such node."""
        if node not in self.all_nodes:
            raise LabError(f"no node {node!r}", "there are " + ", ".join(self.all_nodes))
        return node


def share_out(cpus: Sequence[int], nodes: int) -> list[tuple[int, ...]]:
    """Deal ``cpus`` out to ``nodes``: equal shares of neighbours, disjoint where there are enough.

    With fewer cores than nodes each node has one, and some share it.
    """
    each = len(cpus) // nodes
    if each == 0:
        return [(cpus[index % len(cpus)],) for index in range(nodes)]
    return [tuple(cpus[index * each : (index + 1) * each]) for index in range(nodes)]


def node_memory_mb(total_mb: int, nodes: int) -> int:
    """Return the memory that a node declares: its share of three quarters of the machine, between 500 and 8000 MB.

    Nothing enforces it (no cgroups in the nodes); it is what Slurm refuses larger jobs by.
    """
    share = total_mb * 3 // 4 // nodes
    return max(500, min(8000, share // 500 * 500))
