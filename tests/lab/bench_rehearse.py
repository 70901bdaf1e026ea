"""`scripts/bench rehearse`: a training in a container without and with the audit hook of a rehearsal, in turn.

The same training and the same pairs as `scripts/bench overhead`; at most 2 % may be lost.
"""

from __future__ import annotations

import argparse
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from deployer.contract.site import plan as plans
from deployer.site.storage.store import Store
from deployer.system.observe import observations
from tests.lab import bench_overhead

WORK = bench_overhead.ROOT / ".deployer" / "bench-rehearse"
_DEFINITION = "bundles/horovod-tensorflow-cpu"


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("rehearse")
    command.set_defaults(run=measure)
    command.add_argument("--bundle", help="a bundle of the definition that is there")
    command.add_argument("--pairs", type=int, default=20)
    command.add_argument("--starts-anew", type=int, default=4, help="after how many pairs both are started anew")
    for option, number in (("--batch-size", 4), ("--warm-up", 2), ("--batches", 3)):
        command.add_argument(option, type=int, default=number, help="as of benchmark.py (default: %(default)s)")


def measure(args: argparse.Namespace) -> None:
    """Print the rates of both, and how many observations were made."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    bench_overhead.MEMORY.mkdir(parents=True, exist_ok=True)
    try:
        store = Store(str(WORK / "root"))
        image = bench_overhead.installed(args.bundle, store, WORK, _DEFINITION)
        plain = bench_overhead.container(store, image, WORK / "job", bench_overhead.cores())
        observations.prepare(str(WORK / "job"))
        before = plain.environment.get("PYTHONPATH")
        hook = f"{plans.JOB}/{observations.HOOK}"
        environment = {
            **plain.environment,
            "PYTHONPATH": f"{hook}:{before}" if before else hook,
            observations.VARIABLE: f"{plans.JOB}/{observations.SEEN}",
        }
        observed = plain._replace(environment=environment)
        ways = {
            "without": partial(bench_overhead.argv, "charliecloud", plain),
            "with the hook": partial(bench_overhead.argv, "charliecloud", observed),
        }
        words = {name: bench_overhead.trained(way, args) for name, way in ways.items()}
        bench_overhead.show_rates(bench_overhead.rates(words, args.pairs, args.starts_anew))
        written = sum(Path(path).read_bytes().count(b"\n") for path in (WORK / "job" / observations.SEEN).iterdir())
        print(f"observations: {written}")
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
        shutil.rmtree(bench_overhead.MEMORY, ignore_errors=True)
