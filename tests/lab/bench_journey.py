"""`scripts/bench journey`: from an image to the first running rank, by the published recipe and by deployer, in turn.

The recipe is that of the publications (docs/benchmarks.md): ``docker build`` and ``docker export | gzip`` on the
laptop, ``scp``, ``tar -xz`` on the login node, ``srun ch-run``. There the program is part of the image, so a changed
line takes the whole way again. Deployer packs, pushes and runs bundles/digits-horovod with the same program in its app.
Both start from the same image in the engine and an empty site; the line to the laptop is limited at both ends.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.lab import Lab
from tests.lab.engine import take_engine

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".deployer" / "bench-journey"
_DEFINITION = "digits-horovod"
_IMAGE = f"deployer/{_DEFINITION}:1.0.0"
_OURS, _PUBLISHED = "deployer", "published"
#: What the line to the laptop carries, in tc's words, as the table calls it.
_RATES = {"10": "10mbit", "100": "100mbit", "1000": "1gbit"}
_USER, _LOGIN = "alice", "login1"
_SECONDS = 3600
#: The program of both: each rank prints when it started, in seconds since the epoch.
_PROGRAM = "import time\n\nprint('started', time.time())  # {number}\n"


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("journey")
    command.set_defaults(run=measure)
    command.add_argument(
        "--rates", default=",".join(_RATES), help="Mbit/s of the line to the laptop (default: %(default)s)"
    )


def measure(args: argparse.Namespace) -> None:
    """Print the seconds of each stage for both ways, first and after one changed line, at each rate."""
    rates = args.rates.split(",")
    if unknown := set(rates) - set(_RATES):
        sys.exit(f"bench: error: unknown rate: {', '.join(unknown)}; known: {', '.join(_RATES)}")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    lab = Lab("bench-journey")
    try:
        with take_engine() as engine:
            os.environ["DOCKER_HOST"] = engine.docker_host
            lab.up()
            for rate in rates:
                lab.fault("link-slow", "laptop", _RATES[rate])
                rows: dict[tuple[str, str], list[dict[str, float]]] = {}
                for _ in range(args.rounds):
                    for way, travel in ((_PUBLISHED, _published), (_OURS, _ours)):
                        _clear(lab)
                        for number, what in enumerate(("first", "one changed line")):
                            rows.setdefault((what, way), []).append(travel(lab, number))
                _show(rate, rows)
    finally:
        lab.down(purge=True)
        shutil.rmtree(WORK, ignore_errors=True)


def _published(lab: Lab, number: int) -> dict[str, float]:
    """Return the seconds of each stage of the published recipe."""
    context, archive = WORK / "context", WORK / "image.tar.gz"
    context.mkdir(exist_ok=True)
    (context / "first.py").write_text(_PROGRAM.format(number=time.time_ns()))
    (context / "Dockerfile").write_text(f"FROM {_IMAGE}\nCOPY first.py /first.py\n")
    seconds = {"docker build": _timed(["docker", "build", "-q", "-t", "bench-journey", context])}
    export = 'id=$(docker create bench-journey none) && docker export "$id" | gzip > "$0" && docker rm "$id"'
    seconds["export, gzip"] = _timed(["bash", "-o", "pipefail", "-c", export, archive])
    seconds["scp"] = _timed(["scp", "-q", "-F", lab.ssh_config, archive, f"{_LOGIN}:image.tar.gz"])
    unpack = "rm -rf image && mkdir image && tar -xzf image.tar.gz -C image --exclude='dev/*'"
    seconds["unpack"] = _timed(["ssh", "-F", lab.ssh_config, _LOGIN, unpack])
    start = "srun -N2 --ntasks-per-node=1 ch-run image -- python3 /first.py"
    seconds["start"] = _first_rank(["ssh", "-F", lab.ssh_config, _LOGIN, start], lambda output: output)
    return seconds


def _ours(lab: Lab, number: int) -> dict[str, float]:
    """Return the seconds of each stage of deployer."""
    definition, bundle = WORK / "definition", WORK / "b.tar"
    if number == 0:
        shutil.rmtree(definition, ignore_errors=True)
        shutil.rmtree(WORK / "cache", ignore_errors=True)
        shutil.copytree(ROOT / "bundles" / _DEFINITION, definition)
        described = yaml.safe_load((definition / "bundle.yaml").read_text())
        described["jobs"] = {"first": {"command": ["python3", "/deployer/app/first.py"], "nodes": 2}}
        (definition / "bundle.yaml").write_text(yaml.safe_dump(described))
    (definition / "app" / "first.py").write_text(_PROGRAM.format(number=time.time_ns()))
    program = Path(sys.executable).parent / "deployer"
    ssh: list[str | Path] = ["--ssh-config", lab.ssh_config]
    environment = {**os.environ, "XDG_CACHE_HOME": str(WORK / "cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's first start keeps the bytecode of our modules
    seconds = {"pack": _timed([program, "pack", definition, "--site", "lab", "-o", bundle], environment)}
    seconds["push, install"] = _timed([program, "push", bundle, "lab", *ssh], environment)
    run = [program, "run", "--site", "lab", *ssh, _DEFINITION, "--nodes", "2", "--wait"]
    log = f"cat $(ls -td deployer/jobs/{_DEFINITION}-* | head -n 1)/output.log"
    seconds["start"] = _first_rank(run, lambda _: lab.sh(_LOGIN, _USER, f"cd && {log}").stdout, environment)
    return seconds


def _clear(lab: Lab) -> None:
    lab.sh(_LOGIN, _USER, "cd && chmod -R u+w deployer image 2>/dev/null; rm -rf deployer image image.tar.gz")


def _timed(argv: Sequence[str | Path], environment: dict[str, str] | None = None) -> float:
    os.sync()  # what the one before it left to be written is not this one's
    started = time.monotonic()
    _run(argv, environment)
    return time.monotonic() - started


def _first_rank(
    argv: Sequence[str | Path], output: Callable[[str], str], environment: dict[str, str] | None = None
) -> float:
    """Return the seconds until the first rank of a job has started, as the ranks themselves print it."""
    started = time.time()
    text = output(_run(argv, environment))
    times = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("started ")]
    if len(times) != 2:
        sys.exit(f"bench: error: {len(times)} ranks started, not 2:\n{text}")
    return min(times) - started


def _run(argv: Sequence[str | Path], environment: dict[str, str] | None) -> str:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        sys.exit(f"bench: error: {shlex.join(map(str, argv))}: {done.stderr}")
    return done.stdout


def _show(rate: str, rows: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    """Print the least total of each way with its stages, and how much faster deployer is."""
    best = {key: min(rounds, key=lambda stages: sum(stages.values())) for key, rounds in rows.items()}
    print(f"\n{rate} Mbit/s, seconds of the best of {len(next(iter(rows.values())))} rounds")
    for (what, way), stages in best.items():
        shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in stages.items())
        print(f"  {what:<18} {way:<10} {sum(stages.values()):8.1f}   ({shown})")
    for what in dict.fromkeys(what for what, _ in best):
        ratio = sum(best[what, _PUBLISHED].values()) / sum(best[what, _OURS].values())
        print(f"  {what:<18} {ratio:.1f} x as fast as the published way", flush=True)
