"""Wires between the nodes: veth pairs, made straight into the two network namespaces.

No interface ever exists in the host's own namespace, so labs side by side cannot clash and a killed command leaves
nothing there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tests.lab.command import run
from tests.lab.errors import LabError
from tests.lab.node import in_network_of
from tests.lab.site import LAPTOP, LAPTOP_ADDRESS, LOGIN, LOGIN_OUTER_ADDRESS, SWITCH, Site

_BRIDGE = "br0"
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class End:
    """One end of a wire: an interface of a node, with its address, or a port of the switch without one."""

    node: str
    interface: str
    address: str = ""


@dataclass(frozen=True)
class Wire:
    """``far`` is the end that a fault is applied to, so that the node itself sees no more than a dead line."""

    near: End
    far: End


def wires(site: Site) -> list[Wire]:
    """Return all wires of the site."""
    table = [
        Wire(
            End(LOGIN, "ext0", f"{LOGIN_OUTER_ADDRESS}/30"),
            End(LAPTOP, "out0", f"{LAPTOP_ADDRESS}/30"),
        )
    ]
    for node in site.slurm_nodes:
        near = End(node, "eth0", f"{site.inner_address(node)}/24")
        table.append(Wire(near, End(SWITCH, f"p-{node}")))
    return table


def wire_of(site: Site, name: str) -> Wire:
    """Return the wire that ``name`` means: "laptop" is the one outside, a node's name its line to the switch."""
    for wire in wires(site):
        if name == (LAPTOP if wire.far.node == LAPTOP else wire.near.node):
            return wire
    raise LabError(f"no link {name!r}", f"there are {LAPTOP}, " + ", ".join(site.slurm_nodes))


# ---------------------------------------------------------------- what is there


@dataclass(frozen=True)
class Interface:
    """The state of an interface as ``ip -json link`` shows it."""

    up: bool
    shaped: bool
    in_bridge: bool


def parse_links(text: str) -> dict[str, Interface]:
    """Parse the output of ``ip -json link show``."""
    return {
        link["ifname"]: Interface(
            up="UP" in link["flags"], shaped=link.get("qdisc") == "tbf", in_bridge="master" in link
        )
        for link in json.loads(text or "[]")
    }


def links(pid: int) -> dict[str, Interface]:
    argv = [*in_network_of(pid), "ip", "-json", "link", "show"]
    return parse_links(run(argv, timeout=_TIMEOUT_S).check("cannot list network interfaces").stdout)


# ---------------------------------------------------------------- repair


def repair(site: Site, pids: Mapping[str, int], nodes: Collection[str]) -> None:
    """Make what is missing of the wires that end at ``nodes``, and undo their faults.

    ``pids`` are the holders that run: a wire to a node that is down waits until that node starts.
    """
    table = [
        wire
        for wire in wires(site)
        if {wire.near.node, wire.far.node} & set(nodes) and {wire.near.node, wire.far.node} <= set(pids)
    ]
    present = {node: links(pid) for node, pid in pids.items()}
    for wire in table:
        _repair_wire(wire, pids, present)
    touched = {end.interface for wire in table for end in (wire.near, wire.far)}
    for node, pid in pids.items():
        batch = setup_lines(node, present[node], table)
        if batch:
            argv = [*in_network_of(pid), "ip", "-batch", "-"]
            run(argv, stdin="\n".join(batch) + "\n", timeout=_TIMEOUT_S).check(f"cannot set up the network of {node}")
        for name, interface in present[node].items():
            if interface.shaped and name in touched:
                set_rate(pid, name, None)


def _repair_wire(wire: Wire, pids: Mapping[str, int], present: Mapping[str, dict[str, Interface]]) -> None:
    ends = (wire.near, wire.far)
    if all(end.interface in present[end.node] for end in ends):
        return
    # When a node was killed the kernel removes its interfaces some time later: be sure that the other end is gone.
    for end in ends:
        run([*in_network_of(pids[end.node]), "ip", "link", "delete", end.interface], timeout=_TIMEOUT_S)
        present[end.node].pop(end.interface, None)
    near, far = wire.near, wire.far
    argv = ["ip", "link", "add", "name", near.interface, "netns", str(pids[near.node]), "type", "veth"]
    argv += ["peer", "name", far.interface, "netns", str(pids[far.node])]
    run(argv, timeout=_TIMEOUT_S).check(f"cannot connect {near.node} and {far.node}")


def setup_lines(node: str, present: Mapping[str, Interface], table: Sequence[Wire]) -> list[str]:
    """Return the commands, for ``ip -batch``, that bring the interfaces of ``node`` from ``present`` into order."""
    lines = []
    if not _up("lo", present):
        lines.append("link set dev lo up")
    if node == SWITCH and not _up(_BRIDGE, present):
        if _BRIDGE not in present:
            lines.append(f"link add name {_BRIDGE} type bridge")
        lines.append(f"link set dev {_BRIDGE} up")
    for end in (end for wire in table for end in (wire.near, wire.far) if end.node == node):
        state = present.get(end.interface)
        if node == SWITCH and (state is None or not state.in_bridge):
            lines.append(f"link set dev {end.interface} master {_BRIDGE}")
        if state is None or not state.up:
            # The address comes first: an interface that is up is complete, even if we were killed half-way.
            if end.address:
                lines.append(f"address replace {end.address} dev {end.interface}")
            lines.append(f"link set dev {end.interface} up")
    return lines


def _up(interface: str, present: Mapping[str, Interface]) -> bool:
    return interface in present and present[interface].up


# ---------------------------------------------------------------- faults


def set_up(pid: int, interface: str, up: bool) -> None:
    """Plug or pull one end of a wire."""
    argv = [*in_network_of(pid), "ip", "link", "set", "dev", interface, "up" if up else "down"]
    run(argv, timeout=_TIMEOUT_S).check(f"cannot set {interface}")


def set_rate(pid: int, interface: str, rate: str | None) -> None:
    """Slow down what leaves ``interface`` to ``rate`` (tc's words, for instance 1mbit); None takes the limit away."""
    tc = [*in_network_of(pid), "tc", "qdisc"]
    if rate is None:
        run([*tc, "delete", "dev", interface, "root"], timeout=_TIMEOUT_S)
        return
    argv = [*tc, "replace", "dev", interface, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms"]
    run(argv, timeout=_TIMEOUT_S).check(f"cannot slow down {interface}", "RATE is tc's: 512kbit, 1mbit, 10mbit")
