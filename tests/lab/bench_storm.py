"""`scripts/bench storm`: many ranks of one node start the same program at once, from an image in several places.

Needs no lab and no root: a root file system, ch-run, and what else is installed of mksquashfs, Apptainer and podman.
Each way is started bare, as its manual says, and as deployer plans it. Counted per rank, in a run of its own with two
ranks: calls on the file system of the image's place and of the job's folder, which clusters share between nodes.
"""

from __future__ import annotations

import argparse
import collections
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import apptainer, bench_staging, counted

WORK = Path(__file__).resolve().parents[2] / ".deployer" / "bench-storm"
MEMORY = Path("/dev/shm/deployer-bench-storm")
#: Where the libraries of the workload `libraries` are in the image, as in Pynamic.
_LIBRARIES = "/storm"
_WORKLOADS = {
    "numpy": "import numpy",
    "torch": "import torch",
    "tensorflow": "import tensorflow",
    "libraries": f"import ctypes, os; [ctypes.CDLL('{_LIBRARIES}/' + n) for n in sorted(os.listdir('{_LIBRARIES}'))]",
}
#: How jobs start Apptainer without setuid: the node mounts the file, with the squashfuse_ll of the installation.
_ONCE = "deployer, Apptainer"
#: Prints when the program has been loaded, and stays until all others have been.
_RANK = "import sys, time; {}; print(time.time(), flush=True); sys.stdin.read()"
_PATIENCE_S = 300


class Way(NamedTuple):
    """A way to start ranks: the words before the program, and the programs' folder or file on the host."""

    name: str
    words: list[str]
    image: Path
    joined: bool = False
    mounted: bool = False


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("storm")
    command.set_defaults(run=measure)
    command.add_argument("--rootfs", required=True, help="a folder with a root file system that has python3")
    command.add_argument("--shared", type=Path, default=WORK, help="a folder on the shared file system (default: here)")
    command.add_argument("--ranks", default="1,8,32", help="per node (default: %(default)s)")
    command.add_argument("--libraries", type=int, default=500, help="of the workload with that name")
    command.add_argument("--only", default="", help="words of the workloads, as: numpy,libraries (default: all)")


def measure(args: argparse.Namespace) -> None:
    """Print a row for each workload, way and number of ranks."""
    if os.getuid() == 0:
        apptainer.ensure([sys.executable, "-s", "-m", "tests.lab.bench", *sys.argv[1:]])
    for folder in (args.shared, MEMORY):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    try:
        ways = _ways(args)
        print(f"load {os.getloadavg()[0]:.1f}; first and last: seconds; s: of processors, per rank; MiB: PSS of all")
        print(
            f"{'program':<10} {'way':<30} {'ranks':>5} {'first':>6} {'last':>6} {'s':>6} {'MiB':>6} {'mounts':>6} calls"
        )
        for workload in _there(args):
            for way in ways:
                calls = _calls(way, workload, args.shared)
                for ranks in map(int, args.ranks.split(",")):
                    print(
                        f"{workload:<10} {way.name:<30} {ranks:>5} {_storm(way, workload, ranks)} {calls}", flush=True
                    )
    finally:
        for folder in (args.shared, MEMORY):
            shutil.rmtree(folder, ignore_errors=True)


def _there(args: argparse.Namespace) -> Iterator[str]:
    for name in _WORKLOADS:
        place = next(Path(args.rootfs).glob(f"usr/lib/python3*/*-packages/{name}"), None)
        place = place or next(Path(args.rootfs).glob(f"usr/local/lib/python3*/*-packages/{name}"), None)
        if (place or name == "libraries") and (not args.only or name in args.only.split(",")):
            yield name


def _ways(args: argparse.Namespace) -> list[Way]:
    """Make the image in each place, and return the ways to start it."""
    shared, file = args.shared / "image", args.shared / "image.sqfs"
    shutil.copytree(args.rootfs, shared, symlinks=True)
    (shared / _LIBRARIES[1:]).mkdir()
    library = next(shared.glob("usr/lib/*/libutil.so.1")).resolve()
    for number in range(args.libraries):
        shutil.copy(library, shared / _LIBRARIES[1:] / f"lib{number:04d}.so")
    subprocess.run(["mksquashfs", shared, file, "-quiet", "-no-progress", "-comp", "zstd"], check=True)
    shutil.copytree(shared, MEMORY / "image", symlinks=True)
    shutil.copy(file, MEMORY / "image.sqfs")
    clean = ["--unset-env=*", "--set-env=PATH=/usr/bin:/bin"]
    ways = [Way("ch-run, shared folder", ["ch-run", *clean, str(shared), "--"], shared)]
    ways += [Way("ch-run, shared SquashFS", ["ch-run", *clean, str(file), "--"], file)]
    ways += [Way("deployer, shared folder", ["ch-run", *clean, str(shared), "--"], shared, joined=True)]
    ways += [Way("deployer, memory", ["ch-run", *clean, str(MEMORY / "image"), "--"], shared, joined=True)]
    ways += [
        Way("deployer, SquashFS in memory", ["ch-run", *clean, str(MEMORY / "image.sqfs"), "--"], file, mounted=True)
    ]
    if shutil.which("apptainer"):
        user = list(apptainer.AS_USER) if os.getuid() == 0 else []
        words = [*user, "apptainer", "--silent", "exec", "--cleanenv", "--contain", "--no-home"]
        for title, place in (("shared folder", shared), ("shared SquashFS", file), ("memory", MEMORY / "image")):
            ways.append(Way(f"Apptainer, {title}", [*words, str(place)], place))
        for title, place in (("Apptainer", "image.sqfs"), (_ONCE, "mounted")):
            ways.append(Way(f"{title}, SquashFS in memory", [*words, str(MEMORY / place)], MEMORY / "image.sqfs"))
    return ways


@contextmanager
def _words(way: Way, ranks: int) -> Iterator[list[str]]:
    """Yield the words of a rank, with the node's mount if it has one for all."""
    if way.joined:
        yield [
            way.words[0],
            f"--join-ct={ranks}",
            f"--join-tag=storm-{os.getpid()}-{time.monotonic_ns()}",
            *way.words[1:],
        ]
    elif way.mounted:
        command = [*way.words, "sh", "-c", "echo $$; exec sleep 3600"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment()) as holder:
            pid = holder.stdout.readline().strip() if holder.stdout else ""
            yield [way.words[0], f"--join-pid={pid}", *way.words[1:-2], str(MEMORY / "image"), "--"]
            os.kill(int(pid), signal.SIGTERM)
    elif way.name.startswith(_ONCE):
        folder = MEMORY / "mounted"
        folder.mkdir(exist_ok=True)
        with subprocess.Popen([Path(apptainer.PREFIX) / apptainer.SQUASHFUSE, "-f", way.image, folder]) as holder:
            while not folder.is_mount() and holder.poll() is None:
                time.sleep(0.01)
            yield way.words
            subprocess.run(["umount", folder], check=True)
    else:
        yield way.words


def _storm(way: Way, workload: str, ranks: int) -> str:
    """Start ranks at once and return the cells of their row."""
    program = ["python3", "-I", "-c", _RANK.format(_WORKLOADS[workload])]
    with _words(way, ranks) as words, ExitStack() as stack:
        before, begun = _processor_seconds(), time.time()
        pipe = subprocess.PIPE
        started = [
            subprocess.Popen([*words, *program], stdin=pipe, stdout=pipe, env=_environment()) for _ in range(ranks)
        ]
        for process in started:
            stack.callback(process.kill)
        lines = [process.stdout.readline() for process in started if process.stdout]
        if not all(lines):
            raise SystemExit(f"bench: error: {way.name}: a rank printed nothing: {words}")
        times = sorted(float(line) - begun for line in lines)
        mib, mounts = _memory()
        for process in started:
            process.communicate(timeout=_PATIENCE_S)
    used = (_processor_seconds() - before) / ranks
    return f"{times[0]:6.2f} {times[-1]:6.2f} {used:6.2f} {mib:6.0f} {mounts:>6}"


def _processor_seconds() -> float:
    """Return the seconds of all ended children."""
    times = os.times()
    return times.children_user + times.children_system


def _memory() -> tuple[float, int]:
    """Return the MiB of all processes that this one started, and how many of them serve a mount."""
    parents: dict[int, list[int]] = collections.defaultdict(list)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parents[int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])].append(int(name))
    pids, kib, mounts = list(parents[os.getpid()]), 0, 0
    for pid in pids:
        pids += parents[pid]
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
            mounts += "/dev/fuse" in links
    return kib / 1024, mounts


def _calls(way: Way, workload: str, shared: Path) -> str:
    """Return how many calls on the shared file system the first of two ranks makes, and the second."""
    program = ["python3", "-I", "-c", _WORKLOADS[workload]]
    traces = [MEMORY / "trace.0", MEMORY / "trace.1"]
    inside = way.image if way.image.is_dir() and not str(way.words).count(str(MEMORY)) else MEMORY / "image"
    with _words(way, 2) as words:
        count = [sys.executable, "-I", "-S", counted.__file__]
        started = [subprocess.Popen([*count, trace, *words, *program], env=_environment()) for trace in traces]
        if sum([process.wait(_PATIENCE_S) for process in started]):
            return "?"
    binds = [(path, path) for path in ("/proc", "/dev", "/sys", "/tmp")] + [("/", str(inside))]
    found = [
        sum(
            bench_staging.is_below(each.path, str(shared)) for each in bench_staging.operations(path.read_text(), binds)
        )
        for path in traces
    ]
    return f"{max(found)}, {min(found)}"


def _environment() -> dict[str, str]:
    return {"USER": "root", **os.environ}
