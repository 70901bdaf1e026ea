"""The lab as a whole: up, down, status, and commands on its nodes. This is what tests import.

lab = Lab("mine")
lab.up()
lab.sh("login1", "alice", "module load intel-mpi && srun -N2 hostname").check("srun")
lab.fault("link-down", "laptop")
lab.down(purge=True)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.lab import config, faults, host, layout, network, services, software
from tests.lab.command import CLEAN_ENV, Result, run
from tests.lab.errors import LabError
from tests.lab.mounts import node_mounts
from tests.lab.node import NodeSpec, Starting, holder_of, in_network_of, inside
from tests.lab.proof import Attempt, prove_no_way_out
from tests.lab.site import LAPTOP, LOGIN, Site, node_memory_mb
from tests.lab.state import StateDir, cache_dir, default_state_dir, locked, write_atomically

_DEFAULT_NODES = 2
#: How often `up` tries, when nodes end under it.
_REPAIRS = 3
_DEFAULT_SCRATCH = "64m"
_SLURM_TIMEOUT_S = 45.0
#: Until a node that was told to resume, and is drained or down, is told again.
_RESUME_AGAIN_S = 3.0
#: Names the Debian suite of the nodes, where nothing else does: so a whole test run has its labs of that suite.
SUITE_VARIABLE = "DEPLOYER_LAB_SUITE"
_USABLE = ("idle", "mixed", "allocated", "completing")


@dataclass(frozen=True)
class Definition:
    """What a lab was started with, kept in lab.json."""

    site: Site
    opt: str
    intel_mpi: str
    python36: str

    def digest(self, state: StateDir) -> str:
        """Hash all that a running node cannot take over: its files, its mounts, and the code that sets it up."""
        parts: list[object] = [self, config.common_etc(self.site), config.sshd_config()]
        parts += [config.task_prolog(self.site.cpus_of(node)) for node in self.site.compute]
        parts += [Path(__file__).with_name(name).read_bytes() for name in ("holder.py", "mounts.py", "services.py")]
        parts += [
            node_mounts(node, str(state.path), self.site.root, self.opt, self.site.memory_mb, self.site.scratch)
            for node in self.site.slurm_nodes
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass(frozen=True)
class UpReport:
    """What ``up`` did. ``started`` names nodes and daemons that were not running; it is empty when all was well."""

    seconds: float
    started: tuple[str, ...]
    no_way_out: tuple[Attempt, ...]

    @property
    def text(self) -> str:
        """What a person wants to read of it, in lines."""
        lines = [f"{attempt.node} has no way out: {attempt.url}: {attempt.failure}" for attempt in self.no_way_out]
        lines.append("started " + ", ".join(self.started) if self.started else "all of it was running")
        lines.append(f"up in {self.seconds:.1f} s")
        return "\n".join(lines)


@dataclass(frozen=True)
class NodeStatus:
    """One node, as it is now. ``slurm`` is Slurm's own word for its state, empty where it has none."""

    name: str
    up: bool
    pid: int | None = None
    address: str = ""
    daemons: Mapping[str, bool] = field(default_factory=dict)
    slurm: str = ""


@dataclass(frozen=True)
class Status:
    """A lab, as it is now. ``up`` is true when every node and every daemon runs."""

    name: str
    dir: str
    up: bool
    ssh_config: str
    intel_mpi: str
    python36: str
    nodes: tuple[NodeStatus, ...]

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


class Lab:
    """One lab, known by its name (and folder). Making this object touches nothing.

    ``root`` is the root filesystem that its nodes are made of, this machine's own ("/") or a folder with another suite
    (``roots.node``); without it: as before, else ``$DEPLOYER_LAB_SUITE``'s, else this machine's. ``opt`` is the site's
    software, where it is not the usual one. With ``mixed``, Slurm has the kinds of nodes and partitions of
    ``tests.mixed``. Without ``namespaces``, no process on its nodes can make a user namespace.
    """

    def __init__(
        self,
        name: str = "default",
        directory: Path | None = None,
        *,
        root: Path | None = None,
        opt: Path | None = None,
        mixed: bool = False,
        namespaces: bool = True,
        say: Callable[[str], None] = lambda line: print(f"lab: {line}", file=sys.stderr),
    ) -> None:
        self.name = name
        checked = default_state_dir(name, os.environ)
        self.state = StateDir((directory or checked).absolute())
        self._root, self._opt, self._mixed, self._namespaces = root, opt, mixed, namespaces
        self._cache = cache_dir(os.environ)
        self._say = say

    @property
    def ssh_config(self) -> Path:
        """For ``ssh -F``; the host is called login1."""
        return self.state.ssh_config

    @property
    def home(self) -> Path:
        """The nodes' /home, as a folder of the host."""
        return self.state.home

    # ------------------------------------------------------------ up and down

    def up(self, nodes: int | None = None, scratch: str | None = None, cores: int | None = None) -> UpReport:
        """Bring the lab up, or repair what is missing of it, and undo every fault.

        With ``cores``, each node has so many, even if several of them are one core of this machine. Arguments that are
        not given are as they were the last time. A lab that is up with another definition (other
        arguments, or the code here has changed) is started anew.
        """
        begin = time.monotonic()
        host.check()
        with self._locked():
            before = self._load()
            definition = self._define(before[0] if before else None, nodes, scratch, cores)
            digest = definition.digest(self.state)
            if before and before[1] != digest and self._holders():
                self._say("its definition has changed: starting anew")
                self._end_nodes()
            fields = {"format": 1, **asdict(definition), "digest": digest}
            write_atomically(self.state.record, json.dumps(fields, indent=2) + "\n")
            if not self._holders():
                layout.forget_jobs(self.state, definition.site)
            layout.lay_out(self.state, definition.site)
            started = self._repair_all(definition)
            attempts = prove_no_way_out(definition.site, self._holders())
        return UpReport(time.monotonic() - begin, tuple(started), tuple(attempts))

    def down(self, purge: bool = False) -> None:
        """End every process of the lab; with ``purge`` remove its folder too. A lab that is down stays so."""
        if not self.state.path.exists():
            return
        if purge and not self.state.record.exists() and set(os.listdir(self.state.path)) - {"lock"}:
            raise LabError(f"{self.state.path} is not the folder of a lab: it holds no lab.json", "remove it yourself")
        with self._locked():
            self._end_nodes()
            if purge:
                shutil.rmtree(self.state.path)

    def start_node(self, node: str) -> None:
        """Bring one node back. The faults of others stay."""
        definition = self.definition()
        self._repair(definition, (definition.site.require(node),))

    def kill_node(self, node: str) -> None:
        """End one node with all that runs in it, as a power failure would."""
        self.definition().site.require(node)
        process = holder_of(self.state, node)
        if process is None:
            raise LabError(f"{node} is down already")
        process.kill()
        self.state.process_file(node).unlink(missing_ok=True)

    # ------------------------------------------------------------ what it is

    def definition(self) -> Definition:
        """Return what the lab was started with; raise when it never was."""
        loaded = self._load()
        if loaded is None:
            raise LabError(f"there is no lab {self.name!r}", f"{self._command()} up")
        return loaded[0]

    def holder(self, node: str) -> int:
        """Return the pid, as the host sees it, of PID 1 of ``node``; raise when the node is down."""
        self.definition().site.require(node)
        process = holder_of(self.state, node)
        if process is None:
            raise LabError(f"{node} is down", f"{self._command()} up")
        return process.pid

    def status(self) -> Status:
        """Return the state of every node. Nothing is changed, nothing is waited for."""
        loaded = self._load()
        if loaded is None:
            return Status(self.name, str(self.state.path), False, "", "", "", ())
        site = loaded[0].site
        slurm = self._slurm_states() if LOGIN in self._holders() else {}
        found = tuple(self._node_status(site, node, slurm.get(node, "")) for node in site.all_nodes)
        return Status(
            name=self.name,
            dir=str(self.state.path),
            up=all(node.up and all(node.daemons.values()) for node in found),
            ssh_config=str(self.ssh_config),
            intel_mpi=loaded[0].intel_mpi,
            python36=loaded[0].python36,
            nodes=found,
        )

    def _node_status(self, site: Site, node: str, slurm: str) -> NodeStatus:
        process = holder_of(self.state, node)
        if process is None:
            return NodeStatus(node, up=False, slurm=slurm)
        addresses = [end.address for wire in network.wires(site) for end in (wire.near, wire.far) if end.node == node]
        daemons = services.services_of(node) if node in site.slurm_nodes else ()
        running = {daemon.name: services.pid_in_node(process.pid, daemon) is not None for daemon in daemons}
        return NodeStatus(node, True, process.pid, " ".join(filter(None, addresses)), running, slurm)

    # ------------------------------------------------------------ commands on nodes

    def argv(self, node: str, user: str, command: str | Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return argv and environment that run ``command`` on ``node``.

        A string is a script for bash, a sequence an argv. For a user it runs as after a login: a login shell in the
        home folder. For root it runs with a clean environment in /.
        """
        words = ["bash", "-c", command] if isinstance(command, str) else list(command)
        prefix = inside(self.holder(node))
        if user == "root":
            return [*prefix, *words], dict(CLEAN_ENV)
        home = f"/home/{user}"
        env = {**CLEAN_ENV, "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash"}
        switch = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
        # The login shell itself runs the script: `module` is a function of it, not a program.
        script = "cd; " + (command if isinstance(command, str) else '"$@"')
        return [*prefix, *switch, "bash", "-l", "-c", script, "bash", *words], env

    def sh(
        self, node: str, user: str, command: str | Sequence[str], *, timeout: float = 60.0, stdin: str | None = None
    ) -> Result:
        """Run a script (string) or argv (sequence) on ``node`` as ``user`` and return how it ended."""
        argv, env = self.argv(node, user, command)
        return run(argv, timeout=timeout, env=env, stdin=stdin)

    def ssh(self, command: str, *, timeout: float = 60.0, stdin: str | None = None) -> Result:
        """Run ``command`` on login1 through ssh, as the laptop would."""
        return run(["ssh", "-F", str(self.ssh_config), LOGIN, command], timeout=timeout, stdin=stdin)

    def fault(self, name: str, *arguments: str) -> None:
        """Make something break, or mend it: see faults.FAULTS."""
        with self._locked():
            faults.apply(self, name, arguments)

    # ------------------------------------------------------------ inside

    def _command(self) -> str:
        return "scripts/lab" if self.name == "default" else f"scripts/lab --name {self.name}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        before = os.umask(0o022)  # alice reads what is written here, whatever the caller's umask
        try:
            with locked(self.state.lock_file):
                yield
        finally:
            os.umask(before)

    def _load(self) -> tuple[Definition, str] | None:
        try:
            fields: dict[str, Any] = json.loads(self.state.record.read_text())
            site = fields.pop("site")
            site["host_cpus"] = tuple(site["host_cpus"])
            digest = fields.pop("digest")
            fields.pop("format")
            return Definition(site=Site(**site), **fields), digest
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f"cannot read {self.state.record}: {error!r}", f"{self._command()} down --purge") from error

    def _define(
        self, before: Definition | None, nodes: int | None, scratch: str | None, cores: int | None
    ) -> Definition:
        cpus = host.usable_cpus()
        if cores is None and nodes is None and before and len(before.site.host_cpus) > len(cpus):
            cpus = before.site.host_cpus
        if nodes is None:
            nodes = before.site.compute_nodes if before else _DEFAULT_NODES
        if cores:
            cpus *= -(-nodes * cores // len(cpus))
        site = Site(
            compute_nodes=nodes,
            host_cpus=cpus,
            memory_mb=node_memory_mb(host.total_memory_mb(), nodes),
            scratch=scratch or (before.site.scratch if before else _DEFAULT_SCRATCH),
            root=self._find_root(before),
            mixed=self._mixed or (before is not None and before.site.mixed),
            namespaces=self._namespaces and (before is None or before.site.namespaces),
        )
        # Another suite brings the newer Python that the site is to have; pyenv's is this machine's.
        environ = os.environ if site.root == "/" else {**os.environ, "PYENV_ROOT": f"{site.root}/pyenv"}
        found = software.ensure(self._cache, environ)
        return Definition(site, str(self._opt or found.path), found.intel_mpi, found.python36)

    def _find_root(self, before: Definition | None) -> str:
        if self._root is not None:
            return str(self._root)
        if before:
            return before.site.root
        suite = os.environ.get(SUITE_VARIABLE)
        if not suite:
            return "/"
        from tests.lab import roots  # needs the connected side's packages, which a lab of this machine does not

        return str(roots.node(suite))

    def _holders(self) -> dict[str, int]:
        """Return the pids of the holders that run, also of nodes that a former definition had."""
        found = {}
        for file in sorted(self.state.path.glob("nodes/*/process.json")):
            process = holder_of(self.state, file.parent.name)
            if process is not None:
                found[file.parent.name] = process.pid
        return found

    def _end_nodes(self) -> None:
        processes = [holder_of(self.state, node) for node in self._holders()]
        for process in filter(None, processes):
            process.kill()
        for file in self.state.path.glob("nodes/*/process.json"):
            file.unlink()

    def _repair_all(self, definition: Definition) -> list[str]:
        """Repair all nodes; once more where a holder ended meanwhile, as one that a killed `up` left half done may."""
        for _ in range(_REPAIRS - 1):
            try:
                return self._repair(definition, definition.site.all_nodes)
            except LabError as error:
                if set(definition.site.all_nodes) <= set(self._holders()):
                    raise
                self._say(f"a node ended while it was mended, trying again: {error}")
        return self._repair(definition, definition.site.all_nodes)

    def _repair(self, definition: Definition, nodes: Iterable[str]) -> list[str]:
        """Start what does not run of ``nodes``, mend their wires and wait until Slurm can use them."""
        site, wanted = definition.site, set(nodes)
        started = self._start_holders(definition, [node for node in site.all_nodes if node in wanted])
        pids = self._holders()
        ended = wanted - set(pids)
        if ended:  # alive a moment ago: a holder that a killed `up` never told to go on
            raise LabError(f"{', '.join(sorted(ended))} ended while it was mended")
        network.repair(site, pids, wanted)
        if LOGIN in wanted:
            argv = [*in_network_of(pids[LOGIN]), "iptables-restore", "--wait", "5"]
            run(argv, stdin=config.login_firewall(), timeout=15).check(f"cannot set the firewall of {LOGIN}")
            self._mend_login(pids[LOGIN])
        if LAPTOP in pids:
            write_atomically(self.ssh_config, config.ssh_config(self.state.laptop, pids[LAPTOP]))
        machines = [node for node in site.slurm_nodes if node in wanted]
        with ThreadPoolExecutor() as pool:
            for names in pool.map(lambda node: self._start_services(site, node, pids[node]), machines):
                started += names
        self.wait_for_slurm(site.compute if LOGIN in wanted else machines)
        if LOGIN in started:
            self._end_orphaned_allocations()
        return started

    def _start_holders(self, definition: Definition, nodes: Sequence[str]) -> list[str]:
        site = definition.site
        missing = [node for node in nodes if holder_of(self.state, node) is None]
        rising = [
            Starting(
                NodeSpec(
                    lab=self.name,
                    name=node,
                    machine=node in site.slurm_nodes,
                    state=str(self.state.path),
                    root=site.root,
                    opt=definition.opt,
                    memory_mb=site.memory_mb,
                    scratch=site.scratch,
                    namespaces=site.namespaces,
                )
            )
            for node in missing
        ]
        try:
            for start in rising:
                start.finish()
        finally:
            for start in rising:
                start.close()
        return missing

    def _mend_login(self, holder: int) -> None:
        faults.free_disk(holder)
        if layout.use_host_key(self.state, layout.original_host_key(self.state)):
            services.kill(holder, services.SSHD)  # it reads the key when it starts

    def _start_services(self, site: Site, node: str, holder: int) -> list[str]:
        missing = [daemon for daemon in services.services_of(node) if services.pid_in_node(holder, daemon) is None]
        for daemon in missing:
            services.start(site, node, holder, daemon)
        return [f"{daemon.name} on {node}" for daemon in missing]

    def _end_orphaned_allocations(self) -> None:
        """Cancel what srun and salloc held when login1 was killed; their processes are gone.

        Slurm saves its jobs only now and then, so that it may also bring back one that had ended; it would find out
        by itself after InactiveLimit.
        """
        listed = self.sh(LOGIN, "root", ["squeue", "--noheader", "--Format=jobid,batchflag,allocnodes"], timeout=20)
        jobs = [line.split() for line in listed.stdout.splitlines()]
        orphans = [words[0] for words in jobs if words[1:] == ["0", LOGIN]]
        if orphans:
            self.sh(LOGIN, "root", ["scancel", *orphans], timeout=20)

    def _slurm_states(self) -> dict[str, str]:
        result = self.sh(LOGIN, "root", ["sinfo", "--noheader", "--Node", "--format=%N %T"], timeout=20)
        lines = [line.split() for line in result.stdout.splitlines()]
        return {words[0]: words[1] for words in lines if len(words) == 2}

    def wait_for_slurm(self, nodes: Sequence[str]) -> None:
        """Wait until Slurm can use those of ``nodes`` whose slurmd runs; without slurmctld there is nothing to do."""
        pids = self._holders()
        if LOGIN not in pids or services.pid_in_node(pids[LOGIN], services.SLURMCTLD) is None:
            return
        nodes = [node for node in nodes if node in pids and services.pid_in_node(pids[node], services.SLURMD)]
        until = time.monotonic() + _SLURM_TIMEOUT_S
        again: dict[str, float] = {}
        while True:
            states = self._slurm_states()
            waiting = [node for node in nodes if states.get(node) not in _USABLE]
            if not waiting:
                return
            if time.monotonic() > until:
                said = ", ".join(f"{node} is {states.get(node, 'unknown')}" for node in waiting)
                hint = f"the logs are {self.state.path}/nodes/*/log/slurm/*.log"
                raise LabError(f"Slurm does not get its nodes within {_SLURM_TIMEOUT_S:g} s: {said}", hint)
            for node in waiting:
                if states.get(node, "").startswith(("drain", "down")) and time.monotonic() > again.get(node, 0):
                    # A drained node stays so even when its daemon is back. And slurmd drains it anew if it can say
                    # only now that it failed to kill a job.
                    update = ["scontrol", "update", f"nodename={node}", "state=resume"]
                    self.sh(LOGIN, "root", update, timeout=20)
                    again[node] = time.monotonic() + _RESUME_AGAIN_S
            time.sleep(0.1)


__all__ = ["Lab", "LabError", "Result", "Status", "UpReport"]
