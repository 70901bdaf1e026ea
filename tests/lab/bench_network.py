"""`scripts/bench network`: which broken networks stop a job before its payload, and whether healthy ones do.

Four nodes, each on a wire of 1 Gbit/s. `doctor` measures that without a container; the jobs that follow are compared
with it. Each setting slows something down with tc or iptables, or sends the job's traffic another way. A setting is
right if the job stops (``network.slow``, or another finding for a network that no longer works); wrong if it computes.
The first column of figures is independent: MB/s of a plain TCP connection from the first slow node to the next one, and
back, for 2 seconds each. Healthy jobs have two nodes, because this machine has two cores and ranks poll: with four
nodes, each rank has half of a core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.lab import bench_journey, network
from tests.lab.cluster import Lab
from tests.lab.command import run
from tests.lab.engine import take_engine
from tests.lab.node import in_network_of
from tests.lab.site import SWITCH

_NODES = ("cn1", "cn2", "cn3", "cn4")
_FULL = "1gbit"
_OUT, _IN = ("near",), ("far",)
_BOTH = _OUT + _IN


class Setting(NamedTuple):
    """A network that is slower than it should be. ``ends``: ``near`` slows what leaves a node, ``far`` what reaches it.

    Other fields: the rate of these nodes; the part of their packets to lose; options of the job; a script on the nodes.
    """

    name: str
    nodes: tuple[str, ...]
    rate: str = ""
    ends: tuple[str, ...] = _BOTH
    loss: float = 0.0
    options: tuple[str, ...] = ()
    script: str = ""


_RECEIVE = """
import socket, time
server = socket.create_server(("", 5555))
connection, size, begun = server.accept()[0], 0, time.time()
while True:
    piece = len(connection.recv(1 << 20))
    size += piece
    if not piece:
        break
print(size / (time.time() - begun) / 1e6)
"""
_SEND = """
import socket, sys, time
for _ in range(50):
    try:
        connection = socket.create_connection((sys.argv[1], 5555))
        break
    except OSError:
        time.sleep(0.1)
begun = time.time()
while time.time() < begun + 2:
    connection.sendall(bytes(1 << 18))
"""
_WINDOW = "sysctl -qw net.ipv4.tcp_rmem='4096 {size} {size}' net.ipv4.tcp_wmem='4096 {size} {size}'"
SETTINGS = [
    *(Setting(f"one node, {rate}", ("cn3",), rate) for rate in ("10mbit", "50mbit", "100mbit", "200mbit", "400mbit")),
    *(Setting(f"what leaves one node, {rate}", ("cn2",), rate, _OUT) for rate in ("10mbit", "100mbit", "400mbit")),
    *(Setting(f"what reaches one node, {rate}", ("cn4",), rate, _IN) for rate in ("10mbit", "100mbit", "400mbit")),
    *(Setting(f"all nodes, {rate}", _NODES, rate) for rate in ("10mbit", "50mbit", "100mbit", "200mbit", "400mbit")),
    *(Setting(f"two nodes, {rate}", ("cn1", "cn2"), rate) for rate in ("100mbit", "400mbit")),
    Setting("what leaves two nodes, 200mbit", ("cn1", "cn3"), "200mbit", _OUT),
    Setting("what reaches two nodes, 50mbit", ("cn2", "cn3"), "50mbit", _IN),
    Setting("three nodes, 300mbit", ("cn2", "cn3", "cn4"), "300mbit"),
    Setting("the first node, 100mbit", ("cn1",), "100mbit"),
    *(Setting(f"one node loses {loss:.0%}", ("cn3",), loss=loss) for loss in (0.2, 0.3, 0.5)),
    *(Setting(f"all nodes lose {loss:.0%}", _NODES, loss=loss) for loss in (0.1, 0.2)),
    Setting("small TCP windows, one node", ("cn2",), script=_WINDOW.format(size=4096)),
    Setting("small TCP windows, all nodes", _NODES, script=_WINDOW.format(size=4096)),
    *(
        Setting(f"the ranks use the management network, {rate}", (), options=("--env", "FI_TCP_IFACE=mgt0"), rate=rate)
        for rate in ("10mbit", "100mbit")
    ),
    Setting("what leaves one node, 50mbit, and it loses 5%", ("cn4",), "50mbit", _OUT, 0.05),
]  # fmt: skip


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("network")
    command.set_defaults(run=measure)
    command.add_argument("--healthy", type=int, default=200, help="jobs on the healthy network (default: %(default)s)")
    command.add_argument("--only", default="", help="only settings with these words in their name")


def measure(args: argparse.Namespace) -> None:
    """Print how each job ended."""
    lab = Lab("bench-network")
    try:
        lab.up(nodes=len(_NODES))
        bench = _Bench(lab)
        print(bench.doctor(), flush=True)
        outcomes = Counter(bench.row(setting) for setting in SETTINGS if args.only in setting.name)
        print("broken:", dict(outcomes), flush=True)
        healthy: Counter[str] = Counter()
        for number in range(args.healthy):
            said, figures = bench.job("--nodes", "2")
            healthy[said] += 1
            if said != "computed":
                print(f"healthy job {number}: {said} {figures}", flush=True)
        print("healthy:", dict(healthy))
    finally:
        lab.down(purge=True)


class _Bench:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        with take_engine() as engine, tempfile.TemporaryDirectory() as folder:
            os.environ["DOCKER_HOST"] = engine.docker_host
            profile, bundle = Path(folder) / "lab4.yaml", Path(folder) / "b.tar"
            partition = {"nodes": len(_NODES)}
            source = {"kind": "document", "where": "this benchmark"}
            record = {
                "format": 1,
                "name": "lab4",
                "extends": "lab",
                "source": source,
                "partitions": {"batch": partition},
            }
            profile.write_text(yaml.safe_dump(record))
            bench_journey.run([bench_journey.DEPLOYER, "build", "bundles/hello-mpi", "--quiet"])
            bench_journey.run([bench_journey.DEPLOYER, "pack", "bundles/hello-mpi", "--site", profile, "-o", bundle])
            bench_journey.run(
                [bench_journey.DEPLOYER, "push", bundle, "--site", profile, "--ssh-config", lab.ssh_config]
            )
        self._heal()

    def _second_network(self, rate: str) -> None:
        """Connect the nodes a second time, as a management network does."""
        switch = self._lab.holder(SWITCH)
        _in(switch, "ip link add br1 type bridge", "ip link set br1 up")
        for at, node in enumerate(_NODES, 1):
            pid, port = self._lab.holder(node), f"m-{node}"
            _in(switch, f"ip link add {port} type veth peer name mgt0 netns {pid}", f"ip link set {port} master br1 up")
            _in(pid, f"ip address add 10.97.0.{at}/24 dev mgt0", "ip link set mgt0 up")
            network.set_rate(pid, "mgt0", rate)

    def _tool(self, *words: str, timeout: float = 600) -> Any:
        command = f"python3 ~/deployer/deployer.pyz {' '.join(words)}"
        return self._lab.sh("login1", "alice", command, timeout=timeout)

    def doctor(self) -> str:
        said: str = self._tool("doctor", "hello-mpi").stdout
        return said

    def _heal(self) -> None:
        for node in _NODES:
            self._rate(node, _BOTH, _FULL)
            heal = "iptables -F 2>/dev/null; ip tcp_metrics flush all; "
            heal += _WINDOW.replace("4096 {size} {size}", "4096 131072 6291456")
            self._lab.sh(node, "root", heal)

    def _rate(self, node: str, ends: tuple[str, ...], rate: str) -> None:
        wire = network.wire_of(self._lab.definition().site, node)
        for name in ends:
            end = getattr(wire, name)
            network.set_rate(self._lab.holder(end.node), end.interface, rate)

    @contextlib.contextmanager
    def _broken(self, setting: Setting) -> Iterator[None]:
        for node in setting.nodes:
            if setting.rate:
                self._rate(node, setting.ends, setting.rate)
            if setting.loss:
                lose = "iptables -A OUTPUT -p tcp -m length --length 1000: -m statistic --mode random --probability"
                lose += f" {setting.loss} -j DROP"
                self._lab.sh(node, "root", lose).check("lose packets")
            if setting.script:
                self._lab.sh(node, "root", setting.script).check("set the window")
        if setting.options:
            self._second_network(setting.rate)
        try:
            yield
        finally:
            if setting.options:
                _in(self._lab.holder(SWITCH), "ip link delete br1", *(f"ip link delete m-{node}" for node in _NODES))
            self._heal()

    def row(self, setting: Setting) -> str:
        """Run a job in a setting, print and return how it ended."""
        with self._broken(setting):
            start = (setting.nodes or _NODES)[0]
            end = _NODES[(_NODES.index(start) + 1) % len(_NODES)]
            plain = "" if setting.options else f"{self._plain(start, end):.1f}, {self._plain(end, start):.1f} MB/s"
            said, figures = self.job(*setting.options)
        print(f"{setting.name:<46} {plain:<18} {said:<14} {figures}", flush=True)
        return said

    def _plain(self, start: str, end: str) -> float:
        """Return the MB/s of a TCP connection."""
        address = self._lab.definition().site.inner_address(end)
        with ThreadPoolExecutor(1) as pool:
            received = pool.submit(self._lab.sh, end, "alice", ["python3", "-c", _RECEIVE])
            self._lab.sh(start, "alice", ["python3", "-c", _SEND, address])
            return float(received.result().stdout)

    def job(self, *options: str) -> tuple[str, str]:
        """Return how a job ended, in a word, and its figures."""
        begun = time.monotonic()
        self._tool("run", "hello-mpi", "--nodes", "4", "--ranks-per-node", "1", *options, "--wait")
        text = self._lab.sh("login1", "alice", "cat $(ls -td ~/deployer/jobs/* | head -1)/result.json").stdout
        self._lab.sh("login1", "alice", "rm -rf ~/deployer/jobs/*")
        result = json.loads(text) if text else {"findings": [], "steps": []}
        errors = [item for item in result["findings"] if item["severity"] == "error"]
        steps = {step["name"]: step["seconds"] for step in result["steps"]}
        took = steps.get("probe", 0) - steps.get("hosts", 0)
        seen = result.get("network") or {}
        figures = f"probe {took:.1f} s of {time.monotonic() - begun:.1f}"
        figures += "; {bandwidth_mb_s:g} MB/s, {latency_us:g} us".format(**seen) if seen else ""
        if not errors:
            return ("computed" if result.get("exit_code") == 0 else "failed"), figures
        return errors[0]["code"], f"{figures}; {errors[0]['message'].rpartition('; ')[2]}"


def _in(pid: int, *commands: str) -> None:
    for command in commands:
        run([*in_network_of(pid), *command.split()], timeout=10).check(command)


if __name__ == "__main__":
    sys.exit("run scripts/bench network")
