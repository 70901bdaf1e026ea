"""`scripts/bench login`: what each command costs on a login node: memory, processes, open files, processor seconds.

Each command is called from the laptop, through ssh, as a user does. A command's processes are those below its own ssh
connections, as the kernel counts them: ended children included. Long commands run side by side while one job sleeps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.lab import Lab
from tests.lab.services import SSHD, pid_in_node

ROOT = Path(__file__).resolve().parents[2]
#: What issue 38 proposes: MiB, seconds of a processor per hour, processes.
LIMITS = (100.0, 10.0, 5)
#: The kernel's accounting of processor time (control groups, version 1).
_ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")
#: Between two looks, and until a long command has begun.
_SAMPLE_S, _START_S = 0.1, 15.0
#: Jobs in the folder when they are listed.
_JOBS = 20


class Usage(NamedTuple):
    """The most MiB (PSS), processes and open files at once, without sshd's own; and seconds of a processor."""

    mib: float
    processes: int
    files: int
    seconds: float


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("login")
    command.set_defaults(run=measure)
    command.add_argument("--lab", default="bench-login", help="the lab to make, and to remove at the end")
    command.add_argument("--rootfs", required=True, help="a folder with a root file system that has python3")
    command.add_argument("--minutes", type=float, default=4.0, help="how long to look at long commands")


def measure(args: argparse.Namespace) -> None:
    """Print a row for each command; seconds of long ones for an hour, without their start."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(args.lab)
        lab.up(nodes=1)
        try:
            Path(lab.home, "alice/.bashrc").touch()
            _measure(lab, Path(folder), args)
        finally:
            lab.down(purge=True)


def _measure(lab: Lab, folder: Path, args: argparse.Namespace) -> None:
    record = yaml.safe_load((ROOT / "site_profiles/lab.yaml").read_text())
    record["partitions"]["batch"]["mpi"] = None
    profile, bundle = folder / "lab.yaml", folder / "bundle.tar"
    profile.write_text(yaml.safe_dump(record))
    deployer = [str(Path(sys.executable).with_name("deployer"))]
    site = ["--site", str(profile), "--ssh-config", str(lab.ssh_config)]
    named = ["--name", "bench", "--version", "1", "--site", str(profile), "-o", str(bundle)]
    subprocess.run([*deployer, "pack", "--rootfs", args.rootfs, *named], check=True, capture_output=True)
    print(f"load {os.getloadavg()[0]:.1f}; limits {LIMITS}")
    print(f"{'command':<22} {'MiB':>6} {'processes':>9} {'files':>6} {'s':>7}")
    watch = _Watch(lab)
    try:
        push = [*deployer, "push", str(bundle), str(profile), "--ssh-config", str(lab.ssh_config)]
        _row("push, with install", watch.whole(push))
        _row("push, nothing new", watch.whole(push))
        run = [*deployer, "run", *site, "bench", "--nodes", "1", "--"]
        _row("run", watch.whole([*run, "sleep", "7200"]))
        job = lab.sh("login1", "alice", "sleep 10; ls deployer/jobs").stdout.strip()  # its first steps are over
        for _ in range(_JOBS):
            lab.sh("login1", "alice", f"cp -a deployer/jobs/{job} deployer/jobs/copy-$RANDOM$RANDOM").check("cp")
        for verb in ("list", "status", "logs", "result"):
            _row(verb, watch.whole([*deployer, verb, *site, *([] if verb == "list" else [job])]))
        _row(f"jobs, {_JOBS} there", watch.whole([*deployer, "jobs", *site]))
        follow = [*deployer, "result", "--follow", *site, job, "-o", str(folder / "copy")]
        long = {
            "status --wait": [*deployer, "status", "--wait", *site, job],
            "logs -f": [*deployer, "logs", "-f", *site, job],
            "result --follow": follow,
            "run --wait": [*run[:-1], "--wait", "--", "sleep", "7200"],
        }
        for name, usage in watch.long(long, args.minutes * 60).items():
            _row(name + ", 1 h", usage)
    finally:
        watch.release()


def _row(name: str, usage: Usage) -> None:
    mark = "".join(
        f"  above the limit of {what}"
        for what, own, most in zip(
            ("MiB", "seconds", "processes"), usage[:1] + usage[3:] + usage[1:2], LIMITS, strict=True
        )
        if own > most
    )
    print(f"{name:<22} {usage.mib:6.1f} {usage.processes:>9} {usage.files:>6} {usage.seconds:7.2f}{mark}", flush=True)


class _Watch:
    """Looks at the sessions of the lab's sshd, from outside the lab."""

    def __init__(self, lab: Lab) -> None:
        self._holder = lab.holder("login1")
        inside = pid_in_node(self._holder, SSHD)
        self._sshd = next(pid for pid, each in _processes().items() if each.inside == inside and self._is_here(pid))

    def _is_here(self, pid: int) -> bool:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{self._holder}/ns/pid_for_children")

    def _group(self) -> Path:
        """Return a new group of the kernel's accounting, to which all later sessions belong."""
        group = _ACCOUNTS / f"deployer-bench-{os.getpid()}-{time.monotonic_ns()}"
        group.mkdir()
        (group / "cgroup.procs").write_text(str(self._sshd))
        return group

    def release(self) -> None:
        """Give the lab's sshd back to the group of all processes."""
        (_ACCOUNTS / "cgroup.procs").write_text(str(self._sshd))

    def whole(self, argv: list[str]) -> Usage:
        """Return what a command uses until its end."""
        group, most = self._group(), Usage(0, 0, 0, 0)
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            while child.poll() is None:
                most = _most(most, _usage(_below(self._sshd)))
                time.sleep(_SAMPLE_S)
            errors = child.stderr.read().decode() if child.stderr else ""
        if child.returncode:
            sys.exit(f"bench: error: {argv}: exit {child.returncode}\n{errors}")
        return most._replace(seconds=_used(group))

    def long(self, commands: dict[str, list[str]], seconds: float) -> dict[str, Usage]:
        """Return what commands use in an hour, from what they use in ``seconds`` after their start."""
        groups, children, most = {}, [], {}
        for name, argv in commands.items():
            groups[name] = self._group()
            with open(os.devnull, "wb") as null:
                children.append(subprocess.Popen(argv, stdout=null, stderr=null))
            time.sleep(_START_S)
            most[name] = Usage(0, 0, 0, 0)
        begun = {name: _used(group) for name, group in groups.items()}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name, group in groups.items():
                pids = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
                most[name] = _most(most[name], _usage([pid for pid in pids if pid in _below(self._sshd)]))
            time.sleep(_SAMPLE_S)
        ended = {name: (_used(group) - begun[name]) * 3600 / seconds for name, group in groups.items()}
        for child in children:
            if child.poll() is not None:
                sys.exit(f"bench: error: {child.args!r} ended early, with exit code {child.returncode}")
            child.terminate()
            child.wait()
        return {name: usage._replace(seconds=ended[name]) for name, usage in most.items()}


def _used(group: Path) -> float:
    """Return the seconds of a processor that a group has used, ended processes included."""
    return int((group / "cpuacct.usage").read_text()) / 1e9


class _Process(NamedTuple):
    parent: int
    inside: int
    name: str


def _processes() -> dict[int, _Process]:
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            comm, _, rest = Path(f"/proc/{name}/stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            inside = next(
                line.split()[-1] for line in Path(f"/proc/{name}/status").read_text().splitlines() if "NSpid" in line
            )
            found[int(name)] = _Process(int(fields[1]), int(inside), comm)
    return found


def _below(top: int) -> list[int]:
    """Return the processes below one, without sshd's own."""
    found, pids = _processes(), [top]
    for pid in pids:
        pids += [each for each, process in found.items() if process.parent == pid]
    return [pid for pid in pids[1:] if not found[pid].name.startswith("sshd")]


def _usage(pids: list[int]) -> Usage:
    kib = opened = 0
    for pid in pids:
        with suppress(OSError, StopIteration):
            opened += len(os.listdir(f"/proc/{pid}/fd"))
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return Usage(kib / 1024, len(pids), opened, 0)


def _most(one: Usage, other: Usage) -> Usage:
    return Usage(max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2]), 0)
