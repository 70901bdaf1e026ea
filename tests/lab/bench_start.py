"""`scripts/bench start`: the cost of a rank's start, beside the bare runtime with the same binds.

What job.sh starts is timed to the payload's first instruction (it is ``date``, which prints the time) and to its end,
alone and several at once: with the image in a folder on disk, staged in memory, and mounted from there. One of each in
turn, so that the machine's drift hits all.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from deployer.connected.bundle import pack, sources
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.ground import engine as engines
from deployer.contract.base import first_bytes
from deployer.contract.base.shell import argv
from deployer.contract.site import plan as plans
from deployer.contract.site import runtime_table
from deployer.contract.site.plan import Bind
from deployer.site.container.runtimes import RUNTIMES, podman
from deployer.site.container.runtimes.interface import Container, Runtime
from deployer.site.install import squash
from deployer.site.install.install import install, keep
from deployer.site.storage.store import InstalledImage, Store
from tests.lab import apptainer
from tests.lab.engine import take_engine

WORK = Path(__file__).resolve().parents[2] / ".deployer" / "bench-start"
MEMORY = Path("/dev/shm/deployer-bench-start")
_AT_ONCE = 8
#: Called with podman ($0), a folder with its state and configuration, options, image, --, and the command.
_BARE_PODMAN = """
state=$1; shift; oci=$(type -P crun); gid=$(id -g); words=()
while [ "$1" != -- ]; do words+=("$1"); shift; done
shift; image=${words[-1]}; unset 'words[-1]'; short=$state
keep=(--uidmap="$UID:0:1" --gidmap="$gid:0:1" --user="$UID:$gid" --group-add=keep-groups --log-driver=passthrough)
export HOME=$state XDG_RUNTIME_DIR=$state/run TMPDIR=$state
export CONTAINERS_CONF=$state/containers.conf CONTAINERS_STORAGE_CONF=$state/storage.conf
export _CONTAINERS_USERNS_CONFIGURED=done _CONTAINERS_ROOTLESS_UID=$UID _CONTAINERS_ROOTLESS_GID=$gid
"""
_PATIENCE_S = 60


class Start(NamedTuple):
    """Milliseconds: from the launch to the payload's first instruction, and to the end, of the slowest; and of
    processors, of all together, which other work on the machine lengthens less."""

    begun: float
    ended: float
    processors: float


def measure(args: argparse.Namespace) -> None:
    """Print what a rank takes more than the bare runtime, in milliseconds."""
    if args.runtime in ("apptainer", "podman"):
        apptainer.ensure([sys.executable, "-s", "-m", "tests.lab.bench", *sys.argv[1:]])
    runtime = RUNTIMES[args.runtime]
    for folder in (WORK, MEMORY):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    try:
        store = Store(str(WORK / "root"))
        image = _installed(args, store)
        Path(store.tool).write_bytes(make_pyz())
        python = image.manifest().image.python
        if python is None:
            sys.exit("bench: error: the image has no Python")
        print(f"{'ms, median of the rounds':<24} {'first instruction':>24} {'end':>26} {'processors':>26}")
        print(f"{'':<24} " + "  ".join(f"{word:>7}" for word in ("bare", "rank", "more") * 3))
        whole = Container(
            image.rootfs,
            [*_binds(), Bind(store.tool, plans.TOOL, "")],
            {"PATH": "/usr/bin"},
            ["SLURM_*"],
            "/",
            image.engine,
            str(MEMORY),
        )
        _compare("folder", runtime, whole, python, "/deployer/job", args.rounds)
        into = MEMORY / f"deployer-{os.getuid()}" / "1-0"
        binds = [*_binds(), Bind(f"{into}/evidence", plans.NODE, "")]
        memory = Container(
            f"{into}/rootfs", binds, {"PATH": "/usr/bin"}, ["SLURM_*"], "/", f"{into}/engine", str(MEMORY)
        )
        kit = ["--kit", args.runtime] if runtime.known.carried else []
        with staged(store, image, into, store.bundle(image.receipt), more=kit):
            _compare("memory", runtime, memory, python, plans.NODE, args.rounds)
        if plans.SQUASHFS not in runtime_table.RUNTIMES[args.runtime].stagings:
            return
        mounted = memory._replace(binds=[*binds, Bind(f"{into}/deployer.pyz", plans.TOOL, "")])
        if runtime.known.mounts:  # for each rank by itself
            mounted = mounted._replace(rootfs=f"{into}/{squash.IMAGE}")
            with staged(store, image, into, squash.make(image, 2).path):
                _compare("squashfs", runtime, mounted, python, plans.NODE, args.rounds)
            return
        mount = argv(runtime.mount(mounted, f"{into}/image.sqfs"))
        with staged(store, image, into, squash.make(image, 2).path, mount, kit):
            words = argv([*runtime.into_mounted(mounted, str(into)), memory.rootfs, "--"])
            _compare_words("squashfs", words, words, python, plans.NODE, args.rounds)
    finally:
        shutil.rmtree(WORK)
        shutil.rmtree(MEMORY)


def _installed(args: argparse.Namespace, store: Store) -> InstalledImage:
    bundle = WORK / "bundle.tar"
    kit = [runtime_table.RUNTIMES[args.runtime].policy_name] if runtime_table.RUNTIMES[args.runtime].carried else []
    if args.rootfs:
        pack.pack(sources.from_folder(Path(args.rootfs), "bench", "1")._replace(kit=kit), [], bundle)
    else:
        with take_engine() as engine:
            os.environ["DOCKER_HOST"] = engine.docker_host
            engines.connect().close()
            pack.pack(sources.from_image(args.image, "bench", "1")._replace(kit=kit), [], bundle)
    image = install(str(bundle), store).image
    keep(str(bundle), store, image)
    return image


def _binds() -> list[Bind]:
    """Return the job's folder, and a site's MPI on its own path: a folder of the image will do."""
    (WORK / "job").mkdir(exist_ok=True)
    (WORK / "mpi").mkdir(exist_ok=True)
    return [Bind(str(WORK / "mpi"), "/mnt", ""), Bind(str(WORK / "job"), plans.JOB, "")]


@contextmanager
def staged(
    store: Store, image: InstalledImage, into: Path, source: str, mount: Sequence[str] = (), more: Sequence[str] = ()
) -> Iterator[int]:
    """Stage the image in memory as job.sh does, for the time of the block; yield the process that holds it."""
    words = ["stage", "--image", image.folder, "--source", source, "--tool", store.tool]
    words += ["--into", str(into), "--out", str(WORK), *more, *(["--", *mount] if mount else [])]
    with subprocess.Popen([sys.executable, store.tool, *words], stdout=subprocess.PIPE, text=True) as holder:
        if holder.stdout is None or not holder.stdout.readline().startswith("staged 0"):
            sys.exit("bench: error: the image could not be staged")
        try:
            yield holder.pid
        finally:
            holder.send_signal(signal.SIGUSR2)


def _compare(name: str, runtime: Runtime, container: Container, python: str, evidence: str, rounds: int) -> None:
    words = argv(runtime.argv(container, []))
    others = runtime.known.tried or isinstance(runtime, podman.Podman)
    user = apptainer.AS_USER if others and os.getuid() == 0 else ()
    bare = _bare(runtime, container) or words
    _compare_words(name, [*user, *bare], [*user, *words], python, evidence, rounds)


def _bare(runtime: Runtime, container: Container) -> list[str]:
    """Return the words that start the bare runtime with the same options and binds, if ours come from a script."""
    ours = argv(runtime.argv(container, []))
    if runtime.known.tried:
        return [runtime.program, "--quiet", "exec", *ours[ours.index("--cleanenv") : -1]]
    if isinstance(runtime, podman.Podman):
        state = MEMORY / "bare"
        (state / "run").mkdir(parents=True, exist_ok=True)
        (state / "containers.conf").write_text('[engine]\nlock_type="file"\n')
        (state / "storage.conf").write_text('[storage]\ndriver="vfs"\n')
        (state / "mounts.conf").write_text("")
        program = podman.START.own
        words = [word for word in ours[6:] if not word.startswith("--pass=")]
        return ["bash", "-c", _BARE_PODMAN + program[program.index("exec unshare") :], "podman", str(state), *words]
    return []


def _compare_words(name: str, without: list[str], words: list[str], python: str, evidence: str, rounds: int) -> None:
    payload = ["date", "+%s.%N"]
    bare = [*without, *payload]
    rank = [
        *words,
        python,
        "-I",
        "-S",
        "-c",
        first_bytes.PROGRAM,
        plans.TOOL,
        "rank",
        "--out",
        evidence,
        "--",
        *payload,
    ]
    for count in (1, _AT_ONCE):
        pairs = [(start(bare, count), start(rank, count)) for _ in range(rounds + 1)][1:]
        cells = []
        for field in Start._fields:
            values = [tuple(getattr(each, field) for each in pair) for pair in pairs]
            cells += [statistics.median(value[side] for value in values) for side in (0, 1)]
            cells.append(statistics.median(value[1] - value[0] for value in values))
        title = f"{name}, {count} at once" if count > 1 else name
        print(f"{title:<24} " + "  ".join(f"{cell:7.1f}" for cell in cells), flush=True)


def start(argv: list[str], count: int) -> Start:
    """Start ``count`` at once; each as another rank, which prints the time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.time()
    started = [
        subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, env={"USER": "root", **os.environ, "SLURM_PROCID": str(number)}
        )
        for number in range(count)
    ]
    said = [process.communicate(timeout=_PATIENCE_S)[0] for process in started]
    ended = time.time()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if any(process.returncode for process in started):
        sys.exit(f"bench: error: {argv} failed")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Start((max(map(float, said)) - begun) * 1000, (ended - begun) * 1000, used * 1000)
