"""`scripts/bench again`: what a changed bundle costs after the first one: pack, push and install, space at the site.

One changed line: digits-horovod is packed and pushed to a lab, and again in each round with a changed line of ``app/``.
One changed line of hello-mpi, with `deploy`: from the start of the command to the submission of the job.
One changed package: an image with another version of one package is installed beside the old one, in turn with the old
one into an empty root folder.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.bundle.pyz import make_pyz
from tests.lab import Lab, bench_delta
from tests.lab.bench_journey import DEPLOYER
from tests.lab.engine import take_engine
from tests.lab.software import find_python36

WORK = bench_delta.WORK
MEMORY = Path("/dev/shm/deployer-bench-again")
_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 600
_DEFINITION = _ROOT / "bundles" / "digits-horovod"


class Use(NamedTuple):
    """What a folder takes on its file system: bytes of blocks and inodes, each file once however many names it has."""

    bytes: int
    inodes: int


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the measurement."""
    command = verbs.add_parser("again")
    command.add_argument("--image", default="deployer/digits-horovod:1.0.0")
    command.add_argument("--only", choices=("line", "deploy", "package"), help="measure only this")
    command.set_defaults(run=measure)


def measure(args: argparse.Namespace) -> None:
    """Print both tables."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    try:
        with take_engine() as engine:
            os.environ["DOCKER_HOST"] = engine.docker_host
            if args.only in (None, "line"):
                _line(args.rounds)
            if args.only in (None, "deploy"):
                _deploy(args.rounds)
            if args.only in (None, "package"):
                _package(args.image, args.rounds)
    finally:
        shutil.rmtree(WORK)


# ---------------------------------------------------------------- one changed line


def _line(rounds: int) -> None:
    definition, bundle, lab = WORK / "definition", WORK / "b.tar", Lab("bench-again")
    shutil.copytree(_DEFINITION, definition)
    environment = {**os.environ, "XDG_CACHE_HOME": str(WORK / "cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's first start keeps the bytecode of our modules
    pack: list[str | Path] = [DEPLOYER, "pack", definition, "--site", "lab", "-o", bundle]
    push: list[str | Path] = [DEPLOYER, "push", bundle, "lab", "--ssh-config", lab.ssh_config]
    rows: dict[str, list[float]] = {"pack": [], "push with install": [], "SHA-256, GB/s": []}
    added = []
    try:
        lab.up()
        for number in range(rounds + 2):  # the first is all new, the second is not counted
            with (definition / "app" / "changed-by-bench.py").open("w") as stream:
                stream.write(f"changed = {time.time_ns()}\n")
            before, rate = _use(lab.home), _sha256_rate()
            seconds = [_timed(pack, environment), _timed(push, environment)]
            if number > 1:
                added.append(Use(*(new - old for new, old in zip(_use(lab.home), before, strict=True))))
                for row, value in zip(rows.values(), [*seconds, rate], strict=True):
                    row.append(value)
    finally:
        lab.down(purge=True)
    print(f"one changed line of {_DEFINITION.name}, {rounds} rounds")
    for name, values in rows.items():
        print(f"{name:<36} {_spread(values)}")
    print(f"{'added at the site: bytes, inodes':<36} {max(added).bytes}, {max(each.inodes for each in added)}")


def _deploy(rounds: int) -> None:
    """Measure `deploy` of hello-mpi after a changed line, from its start as a process to the job's submission."""
    definition, lab = WORK / "hello", Lab("bench-again")
    shutil.copytree(_ROOT / "bundles" / "hello-mpi", definition)
    environment = {**os.environ, **{f"XDG_{name}_HOME": str(WORK / name) for name in ("CACHE", "STATE", "CONFIG")}}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    argv: list[str | Path] = [DEPLOYER, "deploy", definition, "lab", "--no-follow"]
    program, seconds = definition / "app" / "hello.py", []
    try:
        lab.up()
        for number in range(rounds + 2):  # the first is all new, the second is not counted
            with program.open("a") as stream:
                stream.write(f"# {time.time_ns()}\n")
            seconds.append(_timed([*argv, "--ssh-config", lab.ssh_config, "-o", WORK / "hello.tar"], environment))
            lab.sh("login1", "alice", "scancel -u alice; while squeue -h | grep -q .; do sleep 0.2; done")
            print(f"deploy {number}: {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    finally:
        lab.down(purge=True)
    print(f"deploy of hello-mpi after one changed line, to the submission, {rounds} rounds; at most 3 s")
    print(f"{'deploy':<36} {_spread(seconds[2:])}")


# ---------------------------------------------------------------- one changed package


def _package(image: str, rounds: int) -> None:
    app = WORK / "app"
    app.mkdir()
    (app / "train.py").write_text("print('a')\n")
    raw = bench_delta.export(image, "old")
    new_raw = bench_delta.bumped(raw)
    old, new = bench_delta.packed(app, bench_delta.same(raw), "old"), bench_delta.packed(app, new_raw, "new")
    tool = WORK / "deployer.pyz"
    tool.write_bytes(make_pyz())
    python36 = find_python36(os.environ)
    pythons = {"3.11": sys.executable, **({"3.6": f"{python36}/bin/python3.6"} if python36 else {})}
    for where, base in (("memory", MEMORY), ("disk", WORK / "disk")):
        for version, python in pythons.items():
            with _folder(base) as root:
                _installs(f"in {where}, Python {version}", [python, tool, "install"], old, new, root, rounds)


def _installs(title: str, argv: Sequence[str | Path], old: Path, new: Path, root: Path, rounds: int) -> None:
    rows: dict[str, list[float]] = {"first install": [], "another version of a package": [], "ratio": []}
    rates, added = [], []
    for number in range(rounds + 1):  # the first is not counted
        rate = _sha256_rate()
        first = _timed([*argv, old, "--root", root])
        before = _use(root)
        second = _timed([*argv, new, "--root", root])
        if number:
            for row, value in zip(rows.values(), (first, second, second / first), strict=True):
                row.append(value)
            rates.append(rate)
            added.append(Use(*(new - old for new, old in zip(_use(root), before, strict=True))))
        shutil.rmtree(root)
    print(f"\ninstall {title}, {rounds} rounds; SHA-256 at {statistics.median(rates):.2f} GB/s")
    for name, values in rows.items():
        print(f"{name:<36} {_spread(values)}")
    print(f"{'added: bytes, inodes':<36} {max(added).bytes}, {max(each.inodes for each in added)}", flush=True)


# ---------------------------------------------------------------- both


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[Path]:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path / "root"
    finally:
        shutil.rmtree(path)


def _use(folder: Path) -> Use:
    found: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(folder):
        for path in [parent, *(os.path.join(parent, name) for name in names)]:
            state = os.lstat(path)
            found[state.st_dev, state.st_ino] = state.st_blocks * 512
    return Use(sum(found.values()), len(found))


def _timed(argv: Sequence[str | Path], environment: dict[str, str] | None = None) -> float:
    os.sync()  # what the one before it left to be written is not this one's
    started = time.monotonic()
    # ch-run does not start without USER, which a root shell may lack.
    whole = {"USER": "root", **(environment or os.environ)}
    done = subprocess.run(argv, env=whole, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        sys.exit(f"bench: error: {argv[:2]}: {done.stderr}")
    return time.monotonic() - started


def _sha256_rate() -> float:
    data = bytes(64 << 20)
    started = time.monotonic()
    hashlib.sha256(data).digest()
    return len(data) / (time.monotonic() - started) / 1e9


def _spread(values: Sequence[float]) -> str:
    return f"min {min(values):.2f}  median {statistics.median(values):.2f}  max {max(values):.2f}"
