"""Things that go wrong on real sites, made to happen on purpose, and their mending. ``up`` mends all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import layout, network, services
from tests.lab.command import run
from tests.lab.errors import LabError
from tests.lab.node import inside
from tests.lab.services import MUNGED, SLURMD, SSHD, Service
from tests.lab.site import LOGIN, SCRATCH

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

_FILLER = f"{SCRATCH}/.lab-disk-full"


@dataclass(frozen=True)
class Fault:
    """A fault as the command line knows it. ``arguments`` names them; those in brackets may be left out."""

    arguments: str
    text: str
    act: Callable[..., None]

    @property
    def least(self) -> int:
        return len([word for word in self.arguments.split() if not word.startswith("[")])

    @property
    def most(self) -> int:
        return len(self.arguments.split())


def apply(lab: Lab, name: str, arguments: Sequence[str]) -> None:
    """Do what the fault ``name`` says."""
    fault = FAULTS.get(name)
    if fault is None:
        raise LabError(f"no fault {name!r}", "there are " + ", ".join(FAULTS))
    if not fault.least <= len(arguments) <= fault.most:
        raise LabError(f"wrong arguments for {name}", f"scripts/lab fault {name} {fault.arguments}".rstrip())
    fault.act(lab, *arguments)


# ---------------------------------------------------------------- links


def _link(lab: Lab, name: str, up: bool) -> None:
    end = network.wire_of(lab.definition().site, name).far
    network.set_up(lab.holder(end.node), end.interface, up)


def _link_down(lab: Lab, name: str) -> None:
    _link(lab, name, up=False)


def _link_up(lab: Lab, name: str) -> None:
    _link(lab, name, up=True)
    _link_fast(lab, name)


def _link_slow(lab: Lab, name: str, rate: str) -> None:
    wire = network.wire_of(lab.definition().site, name)
    for end in (wire.near, wire.far):  # tc limits what leaves an end: both, for both directions
        network.set_rate(lab.holder(end.node), end.interface, rate)


def _link_fast(lab: Lab, name: str) -> None:
    wire = network.wire_of(lab.definition().site, name)
    for end in (wire.near, wire.far):
        network.set_rate(lab.holder(end.node), end.interface, None)


# ---------------------------------------------------------------- nodes and daemons


def _kill_node(lab: Lab, node: str) -> None:
    lab.kill_node(node)


def _start_node(lab: Lab, node: str) -> None:
    lab.start_node(node)


def _kill_service(lab: Lab, node: str, service: Service) -> None:
    if service not in services.services_of(node):
        raise LabError(f"{node} has no {service.name}")
    if not services.kill(lab.holder(node), service):
        raise LabError(f"{service.name} does not run on {node}")


def _start_service(lab: Lab, node: str, service: Service) -> None:
    if service not in services.services_of(node):
        raise LabError(f"{node} has no {service.name}")
    services.start(lab.definition().site, node, lab.holder(node), service)


def _kill_slurmd(lab: Lab, node: str) -> None:
    _kill_service(lab, node, SLURMD)


def _start_slurmd(lab: Lab, node: str) -> None:
    _start_service(lab, node, SLURMD)
    lab.wait_for_slurm([node])


def _stop_munge(lab: Lab, node: str) -> None:
    _kill_service(lab, node, MUNGED)


def _start_munge(lab: Lab, node: str) -> None:
    _start_service(lab, node, MUNGED)


def _clock_ahead(lab: Lab, node: str, seconds: str) -> None:
    """Restart a node's daemons with another clock, as on a node whose time is wrong; 0 seconds: the right one."""
    for service in (SLURMD, MUNGED):
        services.kill(lab.holder(node), service)  # with the wrong clock, slurmd may have ended by itself
    for service in (MUNGED, SLURMD):
        services.start(lab.definition().site, node, lab.holder(node), service, int(seconds))


def _stop_sshd(lab: Lab) -> None:
    _kill_service(lab, LOGIN, SSHD)


def _start_sshd(lab: Lab) -> None:
    _start_service(lab, LOGIN, SSHD)


# ---------------------------------------------------------------- host key


def _new_host_key(lab: Lab) -> None:
    key = lab.state.path / "hostkey.new"
    key.unlink(missing_ok=True)
    layout.make_key(key, LOGIN)
    layout.use_host_key(lab.state, key)
    services.kill(lab.holder(LOGIN), SSHD)
    _start_sshd(lab)


def _old_host_key(lab: Lab) -> None:
    if layout.use_host_key(lab.state, layout.original_host_key(lab.state)):
        services.kill(lab.holder(LOGIN), SSHD)
    _start_sshd(lab)


# ---------------------------------------------------------------- disk


def _disk_full(lab: Lab, free: str = "0") -> None:
    """Fill the scratch. ``free`` is what is to be left over, in truncate's words: 0, 500k, 3m."""
    if not re.fullmatch(r"\d+[kKmM]?", free):
        raise LabError(f"not a size: {free}", "for instance 500k or 3m")
    fill = f"dd if=/dev/zero of={_FILLER} bs=1M 2>/dev/null; truncate --size=-{free.upper()} {_FILLER}"
    if int(free.rstrip("kKmM")) == 0:
        fill = fill.partition(";")[0] + "; true"
    run([*inside(lab.holder(LOGIN)), "sh", "-c", fill], timeout=60).check("cannot fill the scratch")


def _disk_free(lab: Lab) -> None:
    free_disk(lab.holder(LOGIN))


def free_disk(holder: int) -> None:
    """Remove what disk-full wrote, if it did."""
    if Path(f"/proc/{holder}/root{_FILLER}").exists():
        run([*inside(holder), "rm", "-f", _FILLER], timeout=60).check("cannot free the scratch")


FAULTS: dict[str, Fault] = {
    "link-down": Fault("LINK", "cut a line: laptop, login1, cn1, ...", _link_down),
    "link-up": Fault("LINK", "mend a line that was cut or slowed down", _link_up),
    "link-slow": Fault("LINK RATE", "slow down a line, both ways: laptop 1mbit", _link_slow),
    "kill-node": Fault("NODE", "end a node with all that runs on it, like a power failure", _kill_node),
    "start-node": Fault("NODE", "start a node that was killed", _start_node),
    "kill-slurmd": Fault("NODE", "end slurmd with SIGKILL; Slurm sees it within 30 s", _kill_slurmd),
    "start-slurmd": Fault("NODE", "start slurmd", _start_slurmd),
    "stop-munge": Fault("NODE", "end munged: Slurm's commands there know nobody any more", _stop_munge),
    "start-munge": Fault("NODE", "start munged", _start_munge),
    "clock-ahead": Fault("NODE SECONDS", "restart a node's slurmd and munged with a clock ahead", _clock_ahead),
    "stop-sshd": Fault("", "end login1's sshd: connections are refused, those that stand go on", _stop_sshd),
    "start-sshd": Fault("", "start login1's sshd", _start_sshd),
    "new-hostkey": Fault("", "give login1 another host key: ssh warns of an attack", _new_host_key),
    "old-hostkey": Fault("", "give login1 the host key back that the laptop knows", _old_host_key),
    "disk-full": Fault("[FREE]", f"fill login1's {SCRATCH} but for FREE bytes (0)", _disk_full),
    "disk-free": Fault("", "remove what disk-full wrote", _disk_free),
}
