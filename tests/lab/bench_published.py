"""`scripts/bench published`: the networks of publications, in a container and without one, on 1 and on 2 ranks.

The images of ``bundles/cnn-benchmark`` train at batch sizes that fit here. Each network has rounds of one training per
way, in turn; native runs the very files of the installed image on the host's C library, started by the image's own
mpiexec. Figures are kept, so that ``--only alexnet`` measures one network anew and shows all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from deployer.cli.site import common
from deployer.contract import plan as plans
from deployer.contract import report
from deployer.contract.json_records import Fields
from deployer.contract.report import Run
from deployer.site.container import container as containers
from deployer.site.storage.store import InstalledImage, Store
from tests.lab import bench_overhead

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".deployer" / "bench-published"
FIGURES = WORK / "figures.json"
DEFINITION = "bundles/cnn-benchmark"
#: Networks and the images of a batch.
BATCHES = {"AlexNet": 16, "VGG16": 2, "GoogLeNet": 8, "InceptionV3": 4, "ResNet50": 4, "ResNet101": 2}
RANKS = (1, 2)
_SECONDS = 1800


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("published")
    command.set_defaults(run=measure)
    command.add_argument("--only", default="", help="networks to measure, as: alexnet,resnet50 (default: all)")
    command.add_argument("--bundle", help="a bundle of the definition that is there")
    command.add_argument("--warm-up", type=int, default=2)
    command.add_argument("--iterations", type=int, default=10, help="per round (default: %(default)s)")


def measure(args: argparse.Namespace) -> None:
    """Measure the chosen networks, and print the table of all that were measured."""
    wanted = [name for name in args.only.lower().split(",") if name]
    networks = [name for name in BATCHES if not wanted or name.lower() in wanted]
    if unknown := set(wanted) - {name.lower() for name in BATCHES}:
        sys.exit(f"bench: error: unknown network: {', '.join(unknown)}; known: {', '.join(BATCHES)}")
    WORK.mkdir(parents=True, exist_ok=True)
    image = _image(args)
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for network in networks:
        figures[network] = _measured(args, image, network)
        FIGURES.write_text(json.dumps(figures))
        _show({network: figures[network]})
    print("\nall networks")
    _show(figures)


def _image(args: argparse.Namespace) -> InstalledImage:
    """Return the installed image: that of the last call, unless a bundle is given."""
    store = Store(str(WORK / "root"))
    if args.bundle or not Path(store.images).is_dir() or not os.listdir(store.images):
        shutil.rmtree(WORK / "root", ignore_errors=True)
        return bench_overhead.installed(args.bundle, store, WORK, DEFINITION)
    return store.find("cnn-benchmark")


def _measured(args: argparse.Namespace, image: InstalledImage, network: str) -> list[dict[str, Any]]:
    """Return a record per way and number of ranks: its rates of all rounds, and the memory of a rank."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for number in range(args.rounds):
        for ranks in RANKS:
            ways = ["native", "charliecloud"]
            for way in ways if number % 2 == 0 else reversed(ways):
                payload = _trained(args, image, network, way, ranks)
                record = found.setdefault((way, ranks), {"way": way, "ranks": ranks, "values": [], "memory": 0})
                record["measured"] = payload["measured"]
                record["values"] += payload["measured"]["values"]
                record["memory"] = max(record["memory"], payload["memory_mib"])
                print(f"{network} {way} x {ranks}: {payload['measured']['values']}", file=sys.stderr, flush=True)
    return list(found.values())


def _trained(args: argparse.Namespace, image: InstalledImage, network: str, way: str, ranks: int) -> dict[str, Any]:
    """Run one training and return what it wrote."""
    cores = max(1, len(os.sched_getaffinity(0)) // ranks)
    whole = bench_overhead.container(Store(str(WORK / "root")), image, WORK / "job", cores)
    whole = whole._replace(passed=[*whole.passed, "PMI_*", "HYDI_*", "MPI_LOCAL*"])
    native = bench_overhead.natively(whole)
    said = WORK / "job" / "payload.json"
    said.unlink(missing_ok=True)
    place = str(said) if way == "native" else f"{plans.JOB}/payload.json"
    container = native if way == "native" else whole
    container = container._replace(environment={**container.environment, "DEPLOYER_RESULT": place})
    options = ["--network", network, "--batch-size", str(BATCHES[network]), "--batches", "1"]
    options += ["--warm-up", str(args.warm_up), "--iterations", str(args.iterations)]
    command = bench_overhead.argv(way, container, ["python3", f"{plans.APP}/benchmark.py", *options])
    command[0] = shutil.which(command[0]) or command[0]  # hydra's PATH is its own
    launch = [f"{image.rootfs}/usr/local/bin/mpiexec", "-n", str(ranks), "-bind-to", "none"]
    done = subprocess.run(
        [*launch, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        env=containers.user_environment(),
        check=False,
    )
    if done.returncode or not said.exists():
        sys.exit(f"bench: error: {network}, {way}, {ranks} ranks: exit {done.returncode}\n{done.stderr[-2000:]}")
    record = json.loads(said.read_text())
    if record["world_size"] != ranks:
        sys.exit(f"bench: error: {network}, {way}: a world of {record['world_size']}, not {ranks}")
    return dict(record)


def _show(figures: dict[str, list[dict[str, Any]]]) -> None:
    runs = [_run(record) for records in figures.values() for record in records]
    print("\n".join(report.lines(report.rows(runs, all_layouts=True), common.table)))
    for network, records in figures.items():
        memory = ", ".join(f"{each['way']} x {each['ranks']}: {each['memory']:.0f} MiB" for each in records)
        print(f"{network}, largest rank: {memory}")


def _run(record: dict[str, Any]) -> Run:
    measured = Fields(record["measured"], "figures")
    return Run(
        job="bench",
        workload=measured.text("workload"),
        settings=measured.text("settings"),
        unit=measured.text("unit"),
        site="here",
        runtime=record["way"],
        nodes=1,
        ranks=record["ranks"],
        threads=max(1, len(os.sched_getaffinity(0)) // record["ranks"]),
        values=record["values"],
    )
