"""`scripts/bench storm`: many ranks start the same program at once, from an image in several places.

Needs no root. A root file system (a folder with python3), and of ch-run, mksquashfs, Apptainer and podman what is
there: only ways whose programs are in PATH are measured. On one node, it runs as it is. For more, give the program that
starts a process per node of your allocation, as --launch 'srun -N{nodes} -n{nodes}', and a folder that all nodes see as
--shared; --lab makes a lab instead, which needs root. Requests and bytes are counted by a FUSE file system that each
node puts before the shared folder (mfusepy, in .venv; users may open /dev/fuse and make user namespaces). Calls are
counted by seccomp's notifications (Linux 5.19, x86-64), in a run with two ranks on one node.

Each way is started bare, as its manual says, and as deployer plans it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mfusepy  # type: ignore[import-untyped]

from tests.lab import apptainer, counted, storm_node
from tests.lab.cluster import Lab

WORK = Path(__file__).resolve().parents[2] / ".deployer" / "bench-storm"
MEMORY = "/dev/shm/deployer-bench-storm"
#: Where the libraries of the workload `libraries` are in the image, as in Pynamic.
_LIBRARIES = "/storm"
_WORKLOADS = {
    "nothing": "pass",
    "numpy": "import numpy",
    "torch": "import torch",
    "tensorflow": "import tensorflow",
    "libraries": f"import ctypes, os; [ctypes.CDLL('{_LIBRARIES}/' + n) for n in sorted(os.listdir('{_LIBRARIES}'))]",
}
_PROGRAMS = {"charliecloud": "ch-run", "apptainer": "apptainer", "podman": "podman"}


class Way(NamedTuple):
    """A way to start ranks.

    Attributes:
        name: for people.
        runtime: what starts the containers.
        packed: whether the image is a SquashFS file.
        staged: whether each node copies it to its memory, or unpacks it there from one file.
        how: ``joined``: the ranks of a node share a container; ``mounted``: the file is mounted once per node.
    """

    name: str
    runtime: str
    packed: bool
    staged: bool
    how: str = ""


_WAYS = (
    Way("ch-run, shared folder", "charliecloud", packed=False, staged=False),
    Way("ch-run, shared SquashFS", "charliecloud", packed=True, staged=False),
    Way("deployer, shared folder", "charliecloud", packed=False, staged=False, how="joined"),
    Way("deployer, memory", "charliecloud", packed=False, staged=True, how="joined"),
    Way("deployer, SquashFS in memory", "charliecloud", packed=True, staged=True, how="mounted"),
    Way("deployer, SquashFS in place", "charliecloud", packed=True, staged=False, how="mounted"),
    Way("Apptainer, shared folder", "apptainer", packed=False, staged=False),
    Way("Apptainer, shared SquashFS", "apptainer", packed=True, staged=False),
    Way("deployer, Apptainer, memory", "apptainer", packed=False, staged=True),
    Way("Apptainer, SquashFS in memory", "apptainer", packed=True, staged=True),
    Way("deployer, Apptainer, SquashFS", "apptainer", packed=True, staged=True, how="mounted"),
    Way("podman, shared folder", "podman", packed=False, staged=False),
    Way("podman, memory", "podman", packed=False, staged=True),
)


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("storm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.set_defaults(run=measure)
    command.add_argument("--rootfs", required=True, help="a folder with a root file system that has python3")
    command.add_argument("--shared", type=Path, default=WORK, help="a folder on the shared file system (default: here)")
    command.add_argument("--nodes", default="1", help="how many nodes, as 1,2,4 (default: %(default)s)")
    command.add_argument("--launch", help="the words that start a process on each of {nodes} nodes")
    command.add_argument("--lab", metavar="NAME", help="make this lab, measure on its nodes, and remove it")
    command.add_argument("--ranks", default="1,8,32", help="per node (default: %(default)s)")
    command.add_argument("--libraries", type=int, default=500, help="of the workload with that name")
    command.add_argument("--only", default="", help="words of the workloads, as: numpy,libraries (default: all)")
    command.add_argument("--ways", default="", help="parts of the names of ways, as: 'memory;podman' (default: all)")


def measure(args: argparse.Namespace) -> None:
    """Print a row for each workload, way, number of nodes and of ranks."""
    counts = [int(count) for count in args.nodes.split(",")]
    if max(counts) > 1 and not args.launch and not args.lab:
        sys.exit("bench: error: several nodes need --launch or --lab")
    lab = Lab(args.lab) if args.lab else None
    if lab:
        lab.up(nodes=max(counts))
        apptainer.install(lab)
        args.shared = lab.home / "alice" / "storm"
    elif os.getuid() == 0:
        apptainer.ensure([sys.executable, "-s", "-m", "tests.lab.bench", *sys.argv[1:]])
    shutil.rmtree(args.shared, ignore_errors=True)
    args.shared.mkdir(parents=True)
    try:
        _prepare(args)
        _rows(args, lab, counts)
    finally:
        shutil.rmtree(args.shared, ignore_errors=True)
        if lab:
            lab.down(purge=True)


def _rows(args: argparse.Namespace, lab: Lab | None, counts: list[int]) -> None:
    print("first and last line: seconds; s: of processors, staging per node and per rank; per node: MiB (PSS), servers")
    print("of mounts, requests and MB read on the shared file system; calls there of a first and of a further rank")
    print(
        f"{'program':<10} {'way':<29} {'nodes':>5} {'ranks':>5} {'first':>6} {'last':>6} {'stage':>6} {'s':>6}"
        f" {'MiB':>6} {'mounts':>6} {'asked':>6} {'MB':>6} calls  load"
    )
    for workload in _there(args):
        for way in _WAYS:
            wanted = not args.ways or any(part in way.name for part in args.ways.split(";"))
            if not wanted or not (lab or shutil.which(_PROGRAMS[way.runtime])):
                continue
            title = f"{workload:<10} {way.name:<29}"
            config = {"way": way._asdict(), "program": _WORKLOADS[workload], "memory": MEMORY}
            try:
                for row in _rows_of(args, lab, counts, config):
                    print(title, row, flush=True)
            except ChildProcessError as error:
                print(f"{title} failed: {error}", flush=True)


def _rows_of(args: argparse.Namespace, lab: Lab | None, counts: list[int], config: dict[str, Any]) -> Iterator[str]:
    """Yield the rows of a way, without its name."""
    calls = _on_nodes(args, lab, 1, {**config, "ranks": 2, "mode": "calls"})[0]["calls"]
    told = ", ".join(map(str, calls or "?"))
    for nodes in counts:
        for ranks in map(int, args.ranks.split(",")):
            own = {**config, "ranks": ranks}
            cells = _cells(*(_on_nodes(args, lab, nodes, {**own, "mode": each}) for each in ("time", "requests")))
            yield f"{nodes:>5} {ranks:>5} {cells} {told}  {os.getloadavg()[0]:.0f}"


def _cells(timed: list[dict[str, Any]], asked: list[dict[str, Any]]) -> str:
    """Return the cells of a row: the latest line, and means over the nodes."""

    def mean(results: list[dict[str, Any]], key: str) -> float:
        return float(sum(each[key] for each in results)) / len(results)

    last, first = max(each["last"] for each in timed), min(each["first"] for each in timed)
    stage, used = sum(each["staging"][1] for each in timed) / len(timed), mean(timed, "per_rank")
    return (
        f"{first:6.2f} {last:6.2f} {stage:6.2f} {used:6.3f} {mean(timed, 'mib'):6.0f} {mean(timed, 'mounts'):6.0f}"
        f" {mean(asked, 'requests'):6.0f} {mean(asked, 'bytes') / 1e6:6.1f}"
    )


def _on_nodes(args: argparse.Namespace, lab: Lab | None, nodes: int, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Run `storm_node.py` on all nodes at once and return what each printed."""
    shared = Path("/home", args.shared.relative_to(lab.home)) if lab else args.shared
    words = ["python3", str(shared / "storm_node.py"), json.dumps({**config, "shared": str(shared)})]
    if lab:
        starts = [lab.argv(f"cn{number + 1}", "alice", words) for number in range(nodes)]
    else:
        launch = shlex.split(args.launch.format(nodes=nodes)) if args.launch else []
        starts = [([*launch, *words], dict(os.environ))]
    started = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for argv, env in starts]
    outputs = [process.communicate()[0] for process in started]
    results = [json.loads(line) for output in outputs for line in output.splitlines() if line.startswith("{")]
    if len(results) != nodes:
        raise ChildProcessError(f"{len(results)} of {nodes} nodes answered")
    for each in results:
        each["per_rank"] = each.get("used", 0) / config["ranks"]
    return results


def _there(args: argparse.Namespace) -> Iterator[str]:
    for name in _WORKLOADS:
        found = [
            next(Path(args.rootfs).glob(f"usr/{part}lib/python3*/*-packages/{name}"), None) for part in ("", "local/")
        ]
        if (any(found) or name in ("nothing", "libraries")) and (not args.only or name in args.only.split(",")):
            yield name


def _of_dev(rootfs: str) -> Callable[[Any, list[str]], list[str]]:
    """Return what leaves out devices: /dev/full would be copied without end."""
    return lambda path, names: names if os.path.relpath(path, rootfs) == "dev" else []


def _prepare(args: argparse.Namespace) -> None:
    """Make the image in each form, and put beside it what nodes run."""
    folder = args.shared / "image"
    shutil.copytree(args.rootfs, folder, symlinks=True, ignore=_of_dev(args.rootfs))
    (folder / _LIBRARIES[1:]).mkdir()
    for name in ("mtab", "hosts", "hostname", "resolv.conf"):  # podman would make them
        (folder / "etc" / name).unlink(missing_ok=True)
        (folder / "etc" / name).touch()
    library = next(folder.glob("usr/lib/*/libutil.so.1")).resolve()
    for number in range(args.libraries):
        shutil.copy(library, folder / _LIBRARIES[1:] / f"lib{number:04d}.so")
    packed = ["mksquashfs", folder, args.shared / "image.sqfs", "-quiet", "-no-progress", "-comp", "zstd"]
    subprocess.run([*packed, "-Xcompression-level", "3"], check=True)
    subprocess.run(["tar", "--zstd", "-C", folder, "-cf", args.shared / "image.tar", "."], check=True)
    for module in (counted, storm_node, mfusepy):
        shutil.copy(str(module.__file__), args.shared)
