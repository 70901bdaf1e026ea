"""`scripts/bench scale`: the judge's time and files for jobs of many nodes, whose evidence is made up."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import evidence
from tests.lab.software import find_python36

ROOT = Path(__file__).resolve().parents[2]
#: In memory, so that the disk is not measured.
WORK = Path("/dev/shm/deployer-bench-scale")
_JUDGE = """
import resource, sys
from deployer.site.proof.result import StepOutcome
from deployer.site.jobs import result
done = result.write_result(sys.argv[1], StepOutcome(sys.argv[2], 0, None, "7", 1000, 1010))
assert not done["exit_code"], done["findings"]
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""


def add_parser(verbs: Any) -> None:
    """Add the verb; 768 x 48 is the largest job that the issue of the published workloads names."""
    command = verbs.add_parser("scale")
    command.set_defaults(run=measure)
    command.add_argument("--nodes", default="2,16,64,768", help="(default: %(default)s)")
    command.add_argument("--ranks-per-node", type=int, default=48, help="(default: %(default)s)")


def measure(args: argparse.Namespace) -> None:
    """Print a row for each number of nodes: seconds of a processor for all calls of `result` in a job."""
    python = find_python36(os.environ)
    interpreter = str(python / "bin" / "python3.6") if python else sys.executable
    print(f"{interpreter}; the fastest of {args.rounds}")
    print(f"{'nodes':>6} {'ranks':>7} {'evidence':<10} {'files':>7} {'probe, s':>9} {'payload, s':>11} {'MiB':>6}")
    for nodes in map(int, args.nodes.split(",")):
        for collected in (True, False):
            shutil.rmtree(WORK, ignore_errors=True)
            job = WORK / "job"
            evidence.leave(str(job), nodes, args.ranks_per_node, collected)
            count = sum(len(names) for _, _, names in os.walk(job))
            found = {
                step: [_judge(interpreter, job, step) for _ in range(args.rounds)] for step in ("probe", "payload")
            }
            probe, payload = (min(each[0] for each in times) for times in found.values())
            kind = "collected" if collected else "appended"
            memory = max(each[1] for each in found["payload"])
            ranks = nodes * args.ranks_per_node
            print(f"{nodes:>6} {ranks:>7} {kind:<10} {count:>7} {probe:9.2f} {payload:11.2f} {memory:6.0f}", flush=True)
    shutil.rmtree(WORK)


def _judge(interpreter: str, job: Path, step: str) -> tuple[float, float]:
    """Return the processor's seconds and the MiB of a call of `result`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [interpreter, "-c", _JUDGE, str(job), step]
    said = subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout.split()
    return float(said[0]), float(said[1])
