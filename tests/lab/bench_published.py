"""`scripts/bench published`: the networks of publications, in a container and without one, on 1 and on 2 ranks.

The networks of ``bundles/cnn-benchmark`` train at batch sizes that fit here. A training of each way is started, and
they do an iteration in turn, as in `scripts/bench overhead`; each round starts them anew. Native runs the very files of
the installed image on the host's C library, started by the image's own mpiexec. Figures are kept, so that
``--only alexnet`` measures one network anew and shows all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from deployer.contract.site import plan as plans
from deployer.site.storage.store import InstalledImage, Store
from tests.lab import bench_overhead

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".deployer" / "bench-published"
FIGURES = WORK / "figures.json"
DEFINITION = "bundles/cnn-benchmark"
#: Networks and the images of a batch.
BATCHES = {"AlexNet": 16, "VGG16": 2, "GoogLeNet": 8, "InceptionV3": 4, "ResNet50": 4, "ResNet101": 2}
RANKS = (1, 2)
WAYS = ("native", "charliecloud")

#: For each number of ranks: "rates" (images per second of all ranks, per way) and "memory" (MiB, per way).
Figures = dict[str, dict[str, Any]]


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("published")
    command.set_defaults(run=measure)
    command.add_argument("--only", default="", help="networks to measure, as: alexnet,resnet50 (default: all)")
    command.add_argument("--bundle", help="a bundle of the definition that is there")
    command.add_argument("--warm-up", type=int, default=2)
    command.add_argument("--iterations", type=int, default=10, help="pairs of a round (default: %(default)s)")
    command.add_argument("--batches", type=int, default=2, help="batches of an iteration (default: %(default)s)")


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


def _measured(args: argparse.Namespace, image: InstalledImage, network: str) -> Figures:
    """Return the figures of a network for each number of ranks."""
    found: Figures = {}
    for ranks in RANKS:
        words = {way: _training(args, image, network, way, ranks) for way in WAYS}
        rates = bench_overhead.rates(words, args.rounds * args.iterations, args.iterations)
        memory = {}
        for way in WAYS:
            record = json.loads(_result(way).read_text())
            if record["world_size"] != ranks:
                sys.exit(f"bench: error: {network}, {way}: a world of {record['world_size']}, not {ranks}")
            memory[way] = record["memory_mib"]
        found[str(ranks)] = {"rates": rates, "memory": memory}
    return found


def _result(way: str) -> Path:
    return WORK / "job" / f"{way}.json"


def _training(args: argparse.Namespace, image: InstalledImage, network: str, way: str, ranks: int) -> list[str]:
    """Return the words that start a paced training on so many ranks, which share the cores."""
    cores = max(1, bench_overhead.cores() // ranks)
    container = bench_overhead.container(Store(str(WORK / "root")), image, WORK / "job", cores)
    container = container._replace(passed=[*container.passed, "PMI_*", "HYDI_*", "MPI_LOCAL*"])
    result = _result(way)
    result.unlink(missing_ok=True)
    place = f"{plans.JOB}/{result.name}"
    if way == "native":
        container, place = bench_overhead.natively(container), str(result)
    container = container._replace(environment={**container.environment, "DEPLOYER_RESULT": place})
    options = ["--paced", "--network", network, "--batch-size", str(BATCHES[network]), "--batches", str(args.batches)]
    command = ["python3", f"{plans.APP}/benchmark.py", *options, "--warm-up", str(args.warm_up)]
    words = bench_overhead.argv(way, container, command)
    words[0] = shutil.which(words[0]) or words[0]  # hydra's PATH is its own
    return [f"{image.rootfs}/usr/local/bin/mpiexec", "-n", str(ranks), "-bind-to", "none", *words]


def _show(figures: dict[str, Figures]) -> None:
    for network, counts in figures.items():
        for ranks, found in counts.items():
            print(f"\n{network}, {ranks} rank{'s' if int(ranks) > 1 else ''}, batch {BATCHES[network]} per rank")
            bench_overhead.show_rates(found["rates"])
            memory = ", ".join(f"{way} {mebibytes:.0f}" for way, mebibytes in found["memory"].items())
            print(f"MiB of the largest rank: {memory}")
