"""`scripts/bench overhead`: a training without a container and in each kind of one, in turn, as publications compare.

ResNet-50 on synthetic images (``bundles/horovod-tensorflow-cpu``), one rank with all cores. One training of each way is
started and warmed up; then each does an iteration in turn while the others wait, so that the machine's drift hits all.
A pair is an iteration with the one of ``native`` beside it. After some of them all are started anew, for what is fixed
at a start: where memory lies, which pages are large. Native runs the very files of the
installed image, its Python too, on the host's C library. Beside it the start and the memory of 1 and of 8 ranks.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.bundle.pyz import make_pyz
from deployer.contract.base import shell
from deployer.contract.site import plan as plans
from deployer.contract.site.plan import Bind
from deployer.site.container import container as containers
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container
from deployer.site.install import squash
from deployer.site.install.install import install, keep
from deployer.site.rank.observed import mapped_mpi
from deployer.site.run.job_script import staging_script
from deployer.site.storage.store import InstalledImage, Store
from tests.lab import apptainer, bench_start
from tests.lab.engine import take_engine

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".deployer" / "bench-overhead"
MEMORY = Path("/dev/shm/deployer-bench-overhead")
#: The loader takes these from the system.
_OF_THE_HOST = tuple(f"/lib/x86_64-linux-gnu/{name}" for name in ("libc.so.6", "libm.so.6", "libstdc++.so.6"))
_DEFINITION = "bundles/horovod-tensorflow-cpu"
_PYTHON = "python3"
_RANKS = (1, 8)
_APPTAINER, _PODMAN = "Apptainer, folder", "podman, folder"
_READY = "import sys, tensorflow; print('ready', flush=True); sys.stdin.read()"
_PAIRS = 20


#: A way to start a command, whose paths are the container's: argv.
Way = Callable[[list[str]], list[str]]


class Memory(NamedTuple):
    """MiB once TensorFlow is imported, with shared pages divided among those who map them (PSS): of a rank with all
    that was started for it, and of what serves all ranks of the node."""

    rank: float
    node: float


def add_parser(verbs: Any) -> None:
    """Add the verb; published are iterations of 10 batches of 256, 10 to warm up and 10 that count."""
    command = verbs.add_parser("overhead")
    command.set_defaults(run=measure)
    command.add_argument("--bundle", help="a bundle of the definition that is there, with both kits")
    command.add_argument("--pairs", type=int, default=_PAIRS)
    command.add_argument("--ways", default="", help="words of the ways to measure beside native, as: folder,udocker")
    command.add_argument("--only", default="rate,start,memory", help="which tables")
    command.add_argument("--starts-anew", type=int, default=4, help="after how many pairs all are started anew")
    for option, number in (("--batch-size", 4), ("--warm-up", 2), ("--batches", 3)):
        command.add_argument(option, type=int, default=number, help="as of benchmark.py (default: %(default)s)")


def measure(args: argparse.Namespace) -> None:
    """Print the tables; pairs are one of ``native`` and one of each other, one after the other."""
    if _named(_APPTAINER, args.ways) or _named(_PODMAN, args.ways):
        apptainer.ensure([sys.executable, "-s", "-m", "tests.lab.bench", *sys.argv[1:]])
    for folder in (WORK, MEMORY):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    try:
        store = Store(str(WORK / "root"))
        image = installed(args.bundle, store, WORK, _DEFINITION)
        _say_what_differs(image)
        with _ways(store, image) as (every, servers):
            ways = {name: way for name, way in every.items() if name == "native" or _named(name, args.ways)}
            if "rate" in args.only:
                show_rates(
                    rates({name: trained(way, args) for name, way in ways.items()}, args.pairs, args.starts_anew)
                )
            if "start" in args.only:
                _show_starts(ways, args.rounds)
            if "memory" in args.only:
                _show_memory(ways, servers)
    finally:
        _writable(WORK)
        shutil.rmtree(WORK)
        shutil.rmtree(MEMORY)


def _named(name: str, words: str) -> bool:
    return not words or any(word in name for word in words.split(","))


def installed(given: str | None, store: Store, work: Path, definition: str) -> InstalledImage:
    """Install a bundle of a definition, ``given`` or packed for this, and return its image."""
    bundle = work / "bundle.tar"  # keep takes it away
    if given:
        shutil.copyfile(given, bundle)
    else:
        _pack(bundle, definition)
    image = install(str(bundle), store).image
    keep(str(bundle), store, image)
    squash.make(image, os.cpu_count() or 1)
    Path(store.tool).write_bytes(make_pyz())
    return image


def _pack(bundle: Path, definition: str) -> None:
    """Build and pack the definition with the runtimes that bundles carry."""
    deployer = str(Path(sys.executable).with_name("deployer"))
    with take_engine() as engine:
        environment = {**os.environ, "DOCKER_HOST": engine.docker_host}
        kits = ["--kit", "charliecloud", "--kit", "udocker"]
        for words in (["build", definition], ["pack", definition, "--site", "lab", *kits, "-o", str(bundle)]):
            subprocess.run([deployer, *words], check=True, cwd=ROOT, stdout=subprocess.DEVNULL, env=environment)


def _say_what_differs(image: InstalledImage) -> None:
    """Print whether what native takes of the host is the image's: all else is the image's own file."""
    for path in _OF_THE_HOST:
        mine, theirs = Path(path).resolve(), Path(_inside(image.rootfs, path))
        same = mine.is_file() and theirs.is_file() and mine.read_bytes() == theirs.read_bytes()
        print(f"{path}: {'the same file' if same else 'ANOTHER FILE'} on the host and in the image")


def _inside(rootfs: str, path: str) -> str:
    """Return where ``path`` of the image is, with its links followed inside of it."""
    command = shell.argv(RUNTIMES["charliecloud"].argv(Container(rootfs, [], {"PATH": "/usr/bin:/bin"}, [], "/"), []))
    found = subprocess.run(
        [*command, "readlink", "-f", path],
        check=True,
        capture_output=True,
        text=True,
        env=containers.user_environment(),
    )
    return rootfs + found.stdout.strip()


@contextmanager
def _ways(store: Store, image: InstalledImage) -> Iterator[tuple[Mapping[str, Way], Mapping[str, int]]]:
    """Yield the ways, native first, and the process that serves all of a way's ranks where there is one."""
    whole = container(store, image, WORK / "job", cores())
    staging = staging_script.StagedImage(
        plans.SQUASHFS, str(MEMORY), image.folder, squash.path(image.folder), 0, plans.MPICH_ABI, held=True
    )
    into = MEMORY / f"deployer-{os.getuid()}" / "1-0"
    mounted = _at(staging_script.moved(staging, whole), str(into))
    mount = shell.argv(RUNTIMES["charliecloud"].mount(mounted, f"{into}/{squash.IMAGE}"))
    joined = shell.argv([*RUNTIMES["charliecloud"].into_mounted(mounted, str(into)), mounted.rootfs, "--"])
    with bench_start.staged(store, image, into, staging.source, mount) as holder:
        ways: dict[str, Way] = {
            "native": partial(argv, "native", natively(whole)),
            "Charliecloud, folder": partial(argv, "charliecloud", whole),
            "Charliecloud, SquashFS": lambda command: [*joined, *command],
            "ch-run of the kit, folder": partial(argv, plans.CHARLIECLOUD_KIT, whole),
            "udocker P1": partial(argv, "udocker", whole),
            _APPTAINER: lambda command: [*apptainer.AS_USER, *argv("apptainer", whole, command)],
            _PODMAN: lambda command: [*apptainer.AS_USER, *argv("podman", whole, command)],
        }
        yield ways, {"Charliecloud, SquashFS": holder}


def cores() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def container(store: Store, image: InstalledImage, job: Path, count: int) -> Container:
    """Return the container of a rank that has so many cores of this machine."""
    job.mkdir(exist_ok=True)
    threads = {
        "OMP_NUM_THREADS": str(count),
        "TF_NUM_INTRAOP_THREADS": str(count),
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # glibc keeps what is freed. Else each step gives its tensors back to the kernel and has them zeroed again,
        # which takes as long as the kernel has to look for pages: noise of 10 % on a machine full of page cache.
        "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    }
    binds = [Bind(str(job), plans.JOB, ""), Bind(store.tool, plans.TOOL, "")]
    variant = image.variant(plans.MPICH_ABI)
    made = containers.make(image, image.manifest().image, None, RUNTIMES["charliecloud"], binds, threads, variant)
    home = {"HOME": str(MEMORY), "TMPDIR": str(MEMORY)}  # job.sh makes one for each job
    return made._replace(environment={**made.environment, **home}, private=str(MEMORY))


def _at(container: Container, into: str) -> Container:
    """Return the container with the staged folder's name in it."""
    stage = {"stage": into}
    binds = [Bind(shell.plain(bind.source, stage), bind.target, bind.why) for bind in container.binds]
    return container._replace(rootfs=shell.plain(container.rootfs, stage), binds=binds)


def argv(runtime: str, container: Container, command: list[str]) -> list[str]:
    """Return the words that start a command in a container of a runtime."""
    return shell.argv(RUNTIMES[runtime].argv(container, command))


def natively(container: Container) -> Container:
    """Return it with the image's own programs, packages and libraries, as files of the host."""
    rootfs = shell.plain(container.rootfs)
    own = f"{rootfs}/usr/local/lib"
    packages = [
        shell.plain(container.environment.get("PYTHONPATH", "")),
        *map(str, Path(own).glob("python3*/dist-packages")),
    ]
    environment = {
        **container.environment,
        "PATH": f"{rootfs}/usr/bin",
        "PYTHONPATH": ":".join(filter(None, packages)),
        "LD_LIBRARY_PATH": own,
    }
    return container._replace(environment=environment)


# --- the rate of a training ---


def trained(way: Way, args: argparse.Namespace) -> list[str]:
    """Return the words that start a paced training."""
    options = ["--batch-size", str(args.batch_size), "--warm-up", str(args.warm_up), "--batches", str(args.batches)]
    return way([_PYTHON, f"{plans.APP}/benchmark.py", "--paced", *options])


def rates(trainings: Mapping[str, Sequence[str]], pairs: int, starts_anew: int) -> dict[str, list[float]]:
    """Return images a second of each paced training's iterations, in pairs with the first.

    ``trainings`` has the words that start each; after ``starts_anew`` pairs all of them are started anew.
    """
    found: dict[str, list[float]] = {name: [] for name in trainings}
    first = next(iter(trainings))
    while len(found[first]) < pairs:
        with ExitStack() as stack:
            # Who starts first finds the most memory in one piece.
            order = _turned(list(trainings), len(found[first]) // starts_anew)
            started = {name: stack.enter_context(_training(trainings[name])) for name in order}
            for name, training in started.items():
                if _line(training) != "ready":
                    sys.exit(f"bench: error: the training did not start: {name}")
            for number in range(min(starts_anew, pairs - len(found[first]))):
                for name in _turned(order, number):
                    found[name].append(_iteration(started[name]))
                print("  ".join(f"{name} {found[name][-1]:.3f}" for name in trainings), file=sys.stderr, flush=True)
    return found


def _turned(names: list[str], number: int) -> list[str]:
    at = number % len(names)
    return names[at:] + names[:at]


@contextmanager
def _training(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Yield a training, which prints "ready" when it is warm."""
    training = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=containers.user_environment(),
    )
    try:
        yield training
    finally:
        training.communicate()


def _iteration(training: subprocess.Popen[str]) -> float:
    if training.stdin is None:
        raise AssertionError("a pipe was asked for")
    training.stdin.write("\n")
    training.stdin.flush()
    return float(_line(training))


def _line(training: subprocess.Popen[str]) -> str:
    if training.stdout is None:
        raise AssertionError("a pipe was asked for")
    return training.stdout.readline().strip()


def show_rates(found: Mapping[str, Sequence[float]]) -> None:
    """Print the rates, and their ratios to those of the first way."""
    name, first = next(iter(found.items()))
    print(f"\n{len(first)} pairs{'' if len(first) >= _PAIRS else f' ({_PAIRS} are wanted)'}")
    print(f"{'images a second':<24} {'mean':>8} {'+-':>7}   {f'/ {name}'[:8]:>8} {'+-':>7} {'lower':>7}")
    for name, values in found.items():
        mean, half = interval(values)
        ratio, wide = interval([mine / other for mine, other in zip(values, first, strict=True)])
        print(f"{name:<24} {mean:8.3f} {half:7.3f}   {ratio:8.4f} {wide:7.4f} {ratio - wide:7.4f}")


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of ``values`` and half of its 95 % interval (Student's t, by its series in 1 / n)."""
    if len(values) < 2:
        return statistics.mean(values), math.inf
    z, free = statistics.NormalDist().inv_cdf(0.975), len(values) - 1
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return statistics.mean(values), t * statistics.stdev(values) / math.sqrt(len(values))


# --- start and memory ---


def _show_starts(ways: Mapping[str, Way], rounds: int) -> None:
    print(f"\n{'start, ms, median':<24} " + "  ".join(f"{f'{count} at once':>16}" for count in _RANKS for _ in "ab"))
    print(f"{'':<24} " + "  ".join(f"{word:>16}" for word in ("first instruction", "TensorFlow") * len(_RANKS)))
    payloads = (["date", "+%s.%N"], [_PYTHON, "-c", "import tensorflow, time; print(time.time())"])
    found: dict[str, list[list[float]]] = {name: [[] for _ in range(4)] for name in ways}
    for number in range(rounds + 1):
        for column, (count, payload) in enumerate((count, payload) for count in _RANKS for payload in payloads):
            for name, way in ways.items():
                begun = bench_start.start(way(payload), count).begun
                if number:
                    found[name][column].append(begun)
    for name, columns in found.items():
        print(f"{name:<24} " + "  ".join(f"{statistics.median(column):16.0f}" for column in columns), flush=True)


def _memory(way: Way, count: int, server: int | None) -> Memory:
    ranks = [
        subprocess.Popen(
            way([_PYTHON, "-c", _READY]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=containers.user_environment(),
        )
        for _ in range(count)
    ]
    try:
        for rank in ranks:
            if rank.stdout is None or not rank.stdout.readline():
                sys.exit(f"bench: error: TensorFlow could not be imported by {way([_PYTHON])}")
        return Memory(sum(_pss(rank.pid) for rank in ranks) / count, _pss(server) if server else 0.0)
    finally:
        for rank in ranks:
            rank.communicate()


def _pss(pid: int) -> float:
    """Return MiB of a process and all below it."""
    found = 0.0
    for each in mapped_mpi.family(pid):
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        found += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024
    return found


def _show_memory(ways: Mapping[str, Way], servers: Mapping[str, int]) -> None:
    print(f"\n{'memory, MiB':<24} " + "  ".join(f"{f'a rank of {count}':>14} {'a node':>7}" for count in _RANKS))
    for name, way in ways.items():
        sizes = [_memory(way, count, servers.get(name)) for count in _RANKS]
        print(f"{name:<24} " + "  ".join(f"{size.rank:14.1f} {size.node:7.1f}" for size in sizes), flush=True)


def _writable(folder: Path) -> None:
    """Give back the right to write that an image with udocker's kit has not; root has it anyway."""
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
