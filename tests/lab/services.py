"""The daemons of a node: how each is started, known to run, and stopped.

A daemon is looked up by its pid file inside its node and the name of that process. Both are read through
/proc/HOLDER/root, so no process has to be started to see whether another one runs.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from tests.lab import config
from tests.lab.command import run
from tests.lab.errors import LabError
from tests.lab.node import inside
from tests.lab.site import LOGIN, Site

_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Service:
    """A daemon that puts itself into the background and writes a pid file."""

    name: str
    pid_file: str
    argv: tuple[str, ...]
    log: str
    #: Folders that belong to the daemon's user, made when missing.
    folders: tuple[str, ...] = ()
    user: str = "root"


MUNGED = Service(
    name="munged",
    pid_file="/run/munge/munged.pid",
    argv=("munged", "--log-file=/var/log/munge/munged.log"),
    log="munge/munged.log",
    folders=("/run/munge", "/var/lib/munge", "/var/log/munge"),
    user="munge",
)
SLURMCTLD = Service(
    name="slurmctld",
    pid_file="/run/slurm/slurmctld.pid",
    argv=("slurmctld",),
    log="slurm/slurmctld.log",
    folders=("/run/slurm", "/var/spool/slurmctld", "/var/log/slurm"),
    user="slurm",
)
SLURMD = Service(
    name="slurmd",
    pid_file="/run/slurmd.pid",
    argv=("slurmd",),
    log="slurm/slurmd.log",
    folders=("/var/spool/slurmd", "/var/log/slurm"),
)
SSHD = Service(
    name="sshd", pid_file="/run/sshd.pid", argv=("/usr/sbin/sshd", "-E", "/var/log/sshd.log"), log="sshd.log"
)


def services_of(node: str) -> tuple[Service, ...]:
    """Return the daemons of ``node`` in the order in which they start."""
    return (MUNGED, SLURMCTLD, SSHD) if node == LOGIN else (MUNGED, SLURMD)


def pid_in_node(holder: int, service: Service) -> int | None:
    """Return the pid, as the node counts, of a running daemon; None when it does not run."""
    root = Path(f"/proc/{holder}/root")
    try:
        pid = int((root / service.pid_file.lstrip("/")).read_text())
        name = (root / f"proc/{pid}/comm").read_text().strip()
    except (OSError, ValueError):
        return None
    return pid if name == service.name else None


#: Debian's libfaketime.
_FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def start(site: Site, node: str, holder: int, service: Service, ahead: int = 0) -> None:
    """Start a daemon unless it runs. Its clock is ``ahead`` seconds ahead of the other nodes'."""
    if pid_in_node(holder, service) is not None:
        return
    prefix = inside(holder)
    commands = []
    if service.folders:
        commands.append(f"install -d -o {service.user} -g {service.user} {' '.join(service.folders)}")
    switch = ["setpriv", f"--reuid={service.user}", f"--regid={service.user}", "--init-groups"]
    clock = ["env", f"LD_PRELOAD={_FAKETIME}", f"FAKETIME=+{ahead}"] if ahead else []
    daemon = [*clock, *service.argv] if service.user == "root" else [*switch, *clock, *service.argv]
    if service is SLURMD:
        # MPI pins memory. A machine may not allow us more than its hard limit (a container without CAP_SYS_RESOURCE).
        commands.append('{ ulimit -l unlimited 2>/dev/null || ulimit -S -l "$(ulimit -H -l)"; }')
        # hwloc's settings: see config.slurmd_topology. What Slurm does not pin stays on the node's own cores too.
        cpus = ",".join(str(cpu) for cpu in site.cpus_of(node))
        topology = config.slurmd_topology(site.host_cpus)
        settings = [f"HWLOC_SYNTHETIC={topology}", "HWLOC_THISSYSTEM=1"]
        daemon = ["env", *settings, "taskset", "--cpu-list", cpus, *daemon]
    commands.append("exec " + shlex.join(daemon))
    hint = f"its log: nodes/{node}/log/{service.log} in the lab's folder"
    run([*prefix, "sh", "-c", " && ".join(commands)], timeout=_TIMEOUT_S).check(
        f"cannot start {service.name} on {node}", hint
    )
    until = time.monotonic() + _TIMEOUT_S
    while pid_in_node(holder, service) is None:
        if time.monotonic() > until:
            raise LabError(f"{service.name} on {node} does not stay: {_last_words(holder, service)}", hint)
        time.sleep(0.02)


def _last_words(holder: int, service: Service) -> str:
    try:
        lines = Path(f"/proc/{holder}/root/var/log/{service.log}").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "its log says nothing"


def kill(holder: int, service: Service, wait: float = 5.0) -> bool:
    """End a daemon with SIGKILL. False when it did not run."""
    pid = pid_in_node(holder, service)
    if pid is None:
        return False
    run([*inside(holder), "kill", "-KILL", str(pid)], timeout=_TIMEOUT_S)
    until = time.monotonic() + wait
    while pid_in_node(holder, service) == pid:
        if time.monotonic() > until:
            raise LabError(f"{service.name} does not end")
        time.sleep(0.01)
    with contextlib.suppress(OSError):  # a stale pid file must not be taken for another process with its number
        Path(f"/proc/{holder}/root{service.pid_file}").unlink()
    return True
