"""`scripts/bench imb`: Intel's PingPong between two ranks, natively and in each container runtime of a lab.

The program and its MPI are the site's: IMB-MPI1 of Intel MPI, which a plan binds. So only the runtime differs. A round
starts every runtime in turn. Printed are microseconds (8 bytes) and MB/s, the median of the rounds and the lowest one.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from tests.lab import apptainer, bench_journey, enroot
from tests.lab.cluster import Lab
from tests.lab.engine import take_engine

_IMB = "/opt/intel/mpi/2021.15/bin/IMB-MPI1"
_SIZES = (8, 64 << 10, 1 << 20, 4 << 20)
_RUNTIMES = ("native", "charliecloud", "apptainer", "podman", "enroot", "udocker")
_LINE = re.compile(r"^\s+(\d+)\s+\d+\s+([\d.]+)\s+([\d.]+)\s*$", re.MULTILINE)


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("imb")
    command.set_defaults(run=measure)
    command.add_argument("--rounds", type=int, default=3, help="starts of each runtime (default: %(default)s)")
    command.add_argument("--runtimes", default=",".join(_RUNTIMES))


def measure(args: argparse.Namespace) -> None:
    """Print a table for one node, and one for two nodes."""
    names = args.runtimes.split(",")
    for nodes in (1, 2):
        lab = Lab("bench-imb")
        found: dict[tuple[str, int], list[float]] = defaultdict(list)
        try:
            lab.up(nodes=nodes)
            apptainer.install(lab)
            enroot.install(lab)
            _send(lab, nodes)
            for number in range(args.rounds):
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    for size, value in _round(lab, name, nodes).items():
                        found[name, size].append(value)
        finally:
            lab.down(purge=True)
        columns = ("8 B, us", "64 KiB, MB/s", "1 MiB, MB/s", "4 MiB, MB/s")
        print(f"\n{nodes} node(s)    " + "".join(f"{column:>20}" for column in columns))
        for name in names:
            cells = []
            for size in _SIZES:
                values = found[name, size] or [float("nan")]
                worst = max(values) if size == _SIZES[0] else min(values)
                cells.append(f"{statistics.median(values):.1f} ({worst:.1f})")
            print(f"{name:<14}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def _send(lab: Lab, nodes: int) -> None:
    """Pack hello-mpi with IMB as its job, with all runtimes, and send it."""
    with take_engine() as engine, tempfile.TemporaryDirectory() as folder:
        os.environ["DOCKER_HOST"] = engine.docker_host
        definition, profile, bundle = Path(folder) / "imb", Path(folder) / "imb.yaml", Path(folder) / "imb.tar"
        definition.mkdir()
        own = yaml.safe_load(Path("bundles/hello-mpi/bundle.yaml").read_text())
        own["name"], own["context"] = "imb", str(Path("bundles/hello-mpi").resolve())
        command = [_IMB, "PingPong", "-msglog", "3:22", "-time", "2"]
        own["jobs"] = {"imb": {"command": command, "time": "00:05:00"}}
        (definition / "bundle.yaml").write_text(yaml.safe_dump(own))
        record = {
            "format": 1, "name": "imb", "extends": "lab", "source": {"kind": "document", "where": "this benchmark"},
            "policy": {"runtimes": [name for name in _RUNTIMES if name != "native"] + ["native"]},
            "partitions": {"batch": {"nodes": nodes, "node": {"cores": 2 // nodes}}},
            "runtimes": {name: {"version": "9", "starts": True} for name in ("apptainer", "podman", "enroot")},
        }  # fmt: skip
        profile.write_text(yaml.safe_dump(record))
        run, deployer = bench_journey.run, bench_journey.DEPLOYER
        run([deployer, "build", definition, "--quiet"])
        run([deployer, "pack", definition, "--site", profile, "-o", bundle, "--accept", "command.missing"])
        run([deployer, "push", bundle, "--site", profile, "--ssh-config", lab.ssh_config, "--force"])


def _round(lab: Lab, runtime: str, nodes: int) -> dict[int, float]:
    """Return microseconds for 8 bytes and MB/s for the other sizes. Print why, if the job failed."""
    words = f"run imb --runtime {runtime} --nodes {nodes} --ranks-per-node {2 // nodes}"
    words += " --accept network.slow --force --wait"
    done = lab.sh("login1", "alice", f"bash -lc 'python3 ~/deployer/deployer.pyz {words}'", timeout=300)
    log = lab.sh("login1", "alice", "cat $(ls -td ~/deployer/jobs/* | head -1)/output.log").stdout
    lines = {int(size): (float(time), float(speed)) for size, time, speed in _LINE.findall(log)}
    if not lines:
        print(f"{runtime} failed: {(done.stdout + done.stderr)[-600:]}\n{log[-600:]}", flush=True)
    lab.sh("login1", "alice", "rm -rf ~/deployer/jobs/*")
    return {size: lines[size][size != _SIZES[0]] for size in _SIZES if size in lines}
