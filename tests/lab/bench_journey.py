"""`scripts/bench journey`: from an image to the first running rank, by the published recipe and by deployer, in turn.

The recipe is that of the publications (docs/evidence/benchmarks.md): ``docker build`` and ``docker export | gzip`` on
the laptop, ``scp``, ``tar -xz`` on the login node, ``srun ch-run``. There the program is part of the image, so a
changed line takes the whole way again. Deployer has one command for both, ``deploy``, with one program in ``app/``.
Both start from the same image in the engine and an empty site; the line to the laptop is limited at both ends.

The seconds of all rounds are kept as JSON in ``.deployer/bench-journey.json``: a rate that is measured again replaces
its own alone, and the table shows all. Rates of another definition are dropped: a table is of one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deployer.connected.ground import xdg
from tests.lab import Lab
from tests.lab.engine import take_engine

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".deployer" / "bench-journey"
FIGURES = ROOT / ".deployer" / "bench-journey.json"
DEPLOYER = Path(sys.executable).parent / "deployer"
_OURS, _PUBLISHED = "deployer", "published"
_FIRST, _LINE = "first shipment", "one changed line"
#: What the line to the laptop carries, in tc's words, as the table calls it.
_RATES = {"10": "10mbit", "100": "100mbit", "1000": "1gbit"}
#: How many times as fast as the published way ``deploy`` has to be, at 100 Mbit/s.
_TARGETS = {_FIRST: 4, _LINE: 50}
_USER, _LOGIN, _NODES = "alice", "login1", 2
_SECONDS = 3600
#: The program of both: each rank prints when it started, in seconds since the epoch.
_PROGRAM = "import time\n\nprint('started', time.time())  # {number}\n"
#: What ``build`` leaves beside the image belongs to the image, so both ways start after it: caches, and the record.
_BUILT = [*map(xdg.cache_folder, ("variants", "kit", "wheels")), xdg.state_folder("builds")]

#: The seconds of each stage of one journey.
Stages = dict[str, float]


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("journey")
    command.set_defaults(run=measure)
    command.add_argument(
        "--rates", default=",".join(_RATES), help="Mbit/s of the line to the laptop (default: %(default)s)"
    )
    command.add_argument("--definition", default="digits-horovod", help="a folder of bundles/ (default: %(default)s)")
    command.add_argument("--plot", type=Path, help="draw all rates into this file: .svg or .png")


def measure(args: argparse.Namespace) -> None:
    """Print the seconds of each stage for both ways, first and after one changed line, at each rate."""
    rates = args.rates.split(",")
    if unknown := set(rates) - set(_RATES):
        sys.exit(f"bench: error: unknown rate: {', '.join(unknown)}; known: {', '.join(_RATES)}")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    figures = _earlier(args.definition)
    lab = Lab("bench-journey")
    try:
        with take_engine() as engine:
            os.environ["DOCKER_HOST"] = engine.docker_host
            journey = _Journey(lab, args.definition)
            lab.up()
            for rate in rates:
                lab.fault("link-slow", "laptop", _RATES[rate])
                rounds = [journey.round(f"{rate} Mbit/s, round {number}") for number in range(1, args.rounds + 1)]
                figures[rate] = {**_conditions(), "definition": args.definition, "rounds": rounds}
                FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
                _show(rate, rounds)
    finally:
        lab.down(purge=True)
        shutil.rmtree(WORK, ignore_errors=True)
    _table(figures)
    if args.plot:
        _draw(args.plot, figures)


def _earlier(definition: str) -> dict[str, Any]:
    """Return what was measured of a definition before, by rate."""
    figures: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    return {rate: each for rate, each in figures.items() if each.get("definition") == definition}


def _conditions() -> dict[str, Any]:
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    return {"commit": commit, "date": time.strftime("%Y-%m-%d", time.gmtime()), "load": round(os.getloadavg()[1], 1)}


class _Journey:
    """Both ways to the lab, each with a program that it changes."""

    def __init__(self, lab: Lab, definition: str) -> None:
        self._lab = lab
        self._definition, self._cache = WORK / "definition", WORK / "cache"
        shutil.copytree(ROOT / "bundles" / definition, self._definition)
        described = yaml.safe_load((self._definition / "bundle.yaml").read_text())
        described["jobs"] = {"first": {"command": ["python3", "/deployer/app/first.py"], "nodes": _NODES}}
        (self._definition / "bundle.yaml").write_text(yaml.safe_dump(described))
        self._change_line()
        _say("build the image")
        run([DEPLOYER, "build", self._definition, "--site", "lab", "--quiet"])
        self._image = f"deployer/{described['name']}:{described['version']}"
        self._environment = {**os.environ, **{f"XDG_{each}_HOME": str(self._cache) for each in ("CACHE", "STATE")}}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user keeps the bytecode of our modules

    def round(self, what: str) -> dict[str, dict[str, Stages]]:
        """Return the stages of both ways, by what is shipped."""
        done: dict[str, dict[str, Stages]] = {_FIRST: {}, _LINE: {}}
        for way, travel in ((_PUBLISHED, self._published), (_OURS, self._ours)):
            self._clear()
            for shipped, ways in done.items():
                ways[way] = travel()
                _say(f"{what}: {shipped}, {way}: {_in_words(ways[way])}")
        return done

    def _published(self) -> Stages:
        """Return the seconds of each stage of the published recipe."""
        lab, context, archive = self._lab, WORK / "context", WORK / "image.tar.gz"
        context.mkdir(exist_ok=True)
        (context / "first.py").write_text(_PROGRAM.format(number=time.time_ns()))
        (context / "Dockerfile").write_text(f"FROM {self._image}\nCOPY first.py /first.py\n")
        seconds = {"docker build": _timed(["docker", "build", "-q", "-t", "bench-journey", context])}
        export = 'id=$(docker create bench-journey none) && docker export "$id" | gzip > "$0" && docker rm "$id"'
        seconds["export, gzip"] = _timed(["bash", "-o", "pipefail", "-c", export, archive])
        seconds["scp"] = _timed(["scp", "-q", "-F", lab.ssh_config, archive, f"{_LOGIN}:image.tar.gz"])
        unpack = "rm -rf image && mkdir image && tar -xzf image.tar.gz -C image --exclude='dev/*'"
        seconds["unpack"] = _timed(["ssh", "-F", lab.ssh_config, _LOGIN, unpack])
        start = f"srun -N{_NODES} --ntasks-per-node=1 ch-run image -- python3 /first.py"
        began = time.time()
        seconds["start"] = _first_rank(run(["ssh", "-F", lab.ssh_config, _LOGIN, start])) - began
        return seconds

    def _ours(self) -> Stages:
        """Return the seconds of each stage of `deploy`, until the first rank runs."""
        self._change_line()
        os.sync()
        command: list[str | Path] = [
            DEPLOYER,
            "deploy",
            self._definition,
            "lab",
            "--ssh-config",
            self._lab.ssh_config,
            "--json",
        ]
        began = time.time()
        done = json.loads(run(command, self._environment))
        log = self._lab.sh(_LOGIN, _USER, f"cat ~/deployer/jobs/{shlex.quote(done['job'])}/output.log").stdout
        seconds = {stage["name"]: float(stage["seconds"]) for stage in done["stages"]}
        seconds["start"] = _first_rank(log) - began - sum(seconds.values())
        return seconds

    def _change_line(self) -> None:
        (self._definition / "app").mkdir(exist_ok=True)
        (self._definition / "app" / "first.py").write_text(_PROGRAM.format(number=time.time_ns()))

    def _clear(self) -> None:
        """Let the site, and the laptop's cache of what was packed, be as before the first shipment."""
        self._lab.sh(_LOGIN, _USER, "cd && chmod -R u+w deployer image 2>/dev/null; rm -rf deployer image image.tar.gz")
        shutil.rmtree(self._cache, ignore_errors=True)
        for kept in _BUILT:
            if kept.is_dir():
                shutil.copytree(kept, self._cache / "deployer" / kept.name, symlinks=True)


def _timed(argv: Sequence[str | Path]) -> float:
    os.sync()  # what the one before it left to be written is not this one's
    started = time.monotonic()
    run(argv)
    return time.monotonic() - started


def _first_rank(text: str) -> float:
    """Return when the first rank of a job started, as the ranks themselves print it."""
    times = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("started ")]
    if len(times) != _NODES:
        sys.exit(f"bench: error: {len(times)} ranks started, not {_NODES}:\n{text}")
    return min(times)


def run(argv: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        sys.exit(f"bench: error: {shlex.join(map(str, argv))}: {done.stdout}{done.stderr}")
    return done.stdout


# ------------------------------------------------------------------------------------------------------ what is printed


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _in_words(stages: Stages) -> str:
    shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in stages.items())
    return f"{sum(stages.values()):.1f} s ({shown})"


def _totals(rounds: Sequence[Any], shipped: str, way: str) -> list[float]:
    return [sum(each[shipped][way].values()) for each in rounds]


def _ratio(rounds: Sequence[Any], shipped: str) -> float:
    """Return how many times as fast as the published way deployer is: the median over the rounds."""
    pairs = zip(_totals(rounds, shipped, _PUBLISHED), _totals(rounds, shipped, _OURS), strict=True)
    return statistics.median(published / ours for published, ours in pairs)


def _show(rate: str, rounds: Sequence[Any]) -> None:
    """Print the median of each stage at one rate."""
    print(f"\n{rate} Mbit/s, seconds, medians of {len(rounds)} rounds")
    for shipped in _TARGETS:
        for way in (_PUBLISHED, _OURS):
            names = rounds[0][shipped][way]
            stages = {name: statistics.median(each[shipped][way][name] for each in rounds) for name in names}
            print(f"  {shipped:<18} {way:<10} {_in_words(stages)}", flush=True)


def _table(figures: Mapping[str, Any]) -> None:
    """Print the table of docs/evidence/benchmarks.md: the medians of all rates that were measured."""
    print("\n| Mbit/s | what | published, s | deployer, s | ratio | promised | rounds | commit, load |")
    print("|---|---|---|---|---|---|---|---|")
    for rate in sorted(figures, key=int):
        of_rate = figures[rate]
        rounds = of_rate["rounds"]
        for shipped, target in _TARGETS.items():
            medians = [statistics.median(_totals(rounds, shipped, way)) for way in (_PUBLISHED, _OURS)]
            promised = f"at least {target}" if rate == "100" else ""
            print(
                f"| {rate} | {shipped} | {medians[0]:.1f} | {medians[1]:.1f} | **{_ratio(rounds, shipped):.1f}** "
                f"| {promised} | {len(rounds)} | {of_rate['commit']}, {of_rate['load']} |"
            )


def _draw(path: Path, figures: Mapping[str, Any]) -> None:
    """Draw a bar per way and stage for each rate: medians, on a logarithmic axis."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    for column, shipped in enumerate(_TARGETS, 1):
        axes = figure.add_subplot(1, 2, column)
        rates = sorted(figures, key=int)
        for offset, way in ((-0.2, _PUBLISHED), (0.2, _OURS)):
            heights = [statistics.median(_totals(figures[rate]["rounds"], shipped, way)) for rate in rates]
            bars = axes.bar([place + offset for place in range(len(rates))], heights, 0.4, label=way)
            axes.bar_label(bars, fmt="%.1f", fontsize="small")
        axes.set(title=shipped, xlabel="Mbit/s", ylabel="seconds to the first running rank", yscale="log")
        axes.set_xticks(range(len(rates)), rates)
        axes.legend(fontsize="small")
    figure.savefig(path)
