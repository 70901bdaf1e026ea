"""`scripts/bench scale`: seconds, memory and printed lines of each step of a job of many nodes, with made-up evidence.

The records are written by the product's own writers. Each step is the command that job.sh or a user calls.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deployer.connected.bundle.pyz import make_pyz
from deployer.contract.site.plan import NodeShape
from tests import evidence
from tests.lab.software import find_python36

running: Any = importlib.import_module("tests.running")  # it has no types
ROOT = Path(__file__).resolve().parents[2]
#: In memory, so that the disk is not measured.
WORK = Path("/dev/shm/deployer-bench-scale")
#: What issue 38 allows: seconds of a processor, MiB.
LIMITS = (10.0, 512.0)
#: What a payload of 500 epochs writes, for `report` and the page.
_PAYLOAD = {"measured": {"workload": "gan", "unit": "s/epoch", "values": [1.0 + n % 7 / 100 for n in range(500)]}}
#: Runs a command and prints its processor's seconds, MiB, and the lines and bytes that it printed. A small process of
#: its own, because a child's memory is never less than its parent's.
_METER = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
out = child.stdout.read()
_, status, usage = os.wait4(child.pid, 0)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.count(b"\\n"), len(out), status >> 8)
sys.stderr.write(out.decode())
"""
Row = tuple[float, float, int, int, int]


def add_parser(verbs: Any) -> None:
    """Add the verb; 768 x 48 is the largest job that the issue of the published workloads names."""
    command = verbs.add_parser("scale")
    command.set_defaults(run=measure)
    command.add_argument("--nodes", default="64,768", help="(default: %(default)s)")
    command.add_argument("--ranks-per-node", type=int, default=48, help="(default: %(default)s)")
    command.add_argument("--show", action="store_true", help="print what the commands print, too")


def measure(args: argparse.Namespace) -> None:
    """Print a row for each step and number of nodes, the fastest of the rounds; fail if one is above the limits."""
    python = find_python36(os.environ)
    interpreter = str(python / "bin" / "python3.6") if python else sys.executable
    print(f"{interpreter}; the fastest of {args.rounds}; load {os.getloadavg()[0]:.1f}; limits {LIMITS}")
    print(f"{'nodes':>6} {'ranks':>7} {'evidence':<10} {'step':<22} {'s':>6} {'MiB':>5} {'lines':>6} {'bytes':>8} exit")
    above = []
    for nodes in map(int, args.nodes.split(",")):
        for kind in ("good", "appended", "differing"):
            for step, words in _steps(interpreter, nodes, args.ranks_per_node, kind):
                rows = [_metered(words, args.show) for _ in range(args.rounds)]
                seconds, mib, *rest = min(rows)
                shown = f"{seconds:6.2f} {mib:5.0f} {rest[0]:>6} {rest[1]:>8} {rest[2]}"
                print(f"{nodes:>6} {nodes * args.ranks_per_node:>7} {kind:<10} {step:<22} {shown}", flush=True)
                above += [f"{step} of {nodes} nodes"] if seconds > LIMITS[0] or mib > LIMITS[1] else []
        size = (WORK / "jobs/job/result.json").stat().st_size
        print(f"{nodes:>6} result.json: {size} bytes; page: {(WORK / 'page.html').stat().st_size} bytes")
    shutil.rmtree(WORK)
    if above:
        sys.exit("bench: error: above the limits: " + ", ".join(above))


def _steps(interpreter: str, nodes: int, ranks_per_node: int, kind: str) -> list[tuple[str, Sequence[str]]]:
    """Make a store with a job in the folder WORK, and return the name and the words of each step."""
    shutil.rmtree(WORK, ignore_errors=True)
    store = running.store(WORK, running.PLAN._replace(node=NodeShape(2, 48, 2, 96000)))
    Path(store.tool).write_bytes(make_pyz())
    job = WORK / "jobs" / "job"
    evidence.leave(str(job), nodes, ranks_per_node, collected=kind != "appended")
    if kind == "differing":
        evidence.differ(str(job))
    (job / "job_id").write_text("7")
    (job / "payload.json").write_text(json.dumps(_PAYLOAD))
    running.program(WORK, "squeue", "exit 0")  # as a scheduler that has forgotten the job
    site = ["env", f"PATH={WORK}:{os.environ['PATH']}", interpreter, store.tool]
    laptop = ["env", f"PYTHONPATH={ROOT}", str(Path(sys.executable).with_name("deployer"))]
    judge, at = ["result", str(job), "--id", "7", "--started", "1000"], ["--root", str(WORK)]
    width = ["--nodes", str(nodes), "--ranks-per-node", str(ranks_per_node)]
    return [
        ("run --dry-run", [*site, "run", "hello", *width, "--force", "--dry-run", *at]),
        ("judge hosts", [*site, *judge, "--step", "hosts"]),
        ("judge probe", [*site, *judge, "--step", "probe"]),
        ("judge payload", [*site, *judge, "--step", "payload"]),
        ("status", [*site, "status", "job", *at]),
        ("status --wait", [*site, "status", "--wait", "job", *at]),
        ("jobs", [*site, "jobs", *at]),
        ("report", [*site, "report", str(job)]),
        ("laptop: report", [*laptop, "report", str(job)]),
        ("laptop: report --html", [*laptop, "report", "--html", str(WORK / "page.html"), str(job)]),
    ]


def _metered(words: Sequence[str], show: bool) -> Row:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _METER, *words], check=True, capture_output=True, text=True, cwd="/"
    )
    if show:
        print(done.stderr[:5000], end="")
    seconds, mib, *rest = done.stdout.split()
    return (float(seconds), float(mib), int(rest[0]), int(rest[1]), int(rest[2]))
