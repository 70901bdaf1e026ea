"""`scripts/bench pack`: packing a real image beside `tar | zstd` and `docker export | zstd`, interleaved in one run."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground import engine as engines
from tests.lab.engine import take_engine

WORK = Path(__file__).resolve().parents[2] / ".deployer" / "bench"
_SECONDS = 600
#: What is packed with one changed line of its app folder. Its image must be built.
DEFINITION = Path(__file__).resolve().parents[2] / "bundles" / "digits-horovod"
#: With `--changes` the image is read although its layer is known; all frames come from the cache.
_READ = "one line of app/, image read again"


class Way(NamedTuple):
    """One way to pack: what is done before the clock starts, the command, its output, and what it is compared with."""

    name: str
    prepare: Callable[[], object]
    argv: Sequence[str | Path]
    output: Path
    against: str


def measure(args: argparse.Namespace) -> None:
    """Print the table: seconds, bytes and peak memory of each way, and its ratios, round by round, to its baseline."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    try:
        with take_engine() as engine:
            os.environ["DOCKER_HOST"] = engine.docker_host
            folder = _unpacked(args.image)
            container = _docker("create", args.image, "none").stdout.strip()
            try:
                _run(_ways(args.image, folder, container), args.rounds)
            finally:
                _docker("rm", container)
    finally:
        shutil.rmtree(WORK)


def _ways(image: str, folder: Path, container: str) -> list[Way]:
    tool = Path(sys.executable).parent / "deployer"
    cache = WORK / "cache"
    os.environ["XDG_CACHE_HOME"] = str(cache)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's first start keeps the bytecode of our modules
    changed = folder / "usr" / "changed-by-bench.py"
    known = WORK / "known"  # a cache that stays
    definition = WORK / "definition"
    shutil.copytree(DEFINITION, definition)
    line = definition / "app" / "changed-by-bench.py"

    def empty() -> None:
        shutil.rmtree(cache, ignore_errors=True)

    def change() -> None:
        changed.write_text(f"changed = {time.time_ns()}\n")

    def change_app() -> None:
        line.write_text(f"changed = {time.time_ns()}\n")

    def pack_app(output: Path, *words: str | Path) -> Sequence[str | Path]:
        return ["env", f"XDG_CACHE_HOME={known}", tool, "pack", definition, "--site", "lab", *words, "-o", output]

    def pack(source: str, what: str | Path, output: Path) -> Sequence[str | Path]:
        return [tool, "pack", source, what, "--name", "bench", "--version", "1", "-o", output]

    def nothing() -> None:
        pass

    tar_zstd, export_zstd, ours, ours_image, again, read, line_output = (WORK / f"{i}.out" for i in range(7))
    by_hand = "tar | zstd -3 -T0, folder"
    exported = "docker export | zstd -3 -T0, image"
    first = "deployer pack --rootfs, empty cache"
    return [
        Way(
            by_hand, nothing, _shell('tar -C "$1" -cf - . | zstd -3 -T0 -q -f -o "$2"', folder, tar_zstd), tar_zstd, ""
        ),
        Way(first, empty, pack("--rootfs", folder, ours), ours, by_hand),
        Way("the same after one changed file", change, pack("--rootfs", folder, again), again, first),
        Way(
            exported,
            nothing,
            _shell('docker export "$1" | zstd -3 -T0 -q -f -o "$2"', container, export_zstd),
            export_zstd,
            "",
        ),
        Way("deployer pack --image, empty cache", empty, pack("--image", image, ours_image), ours_image, exported),
        Way(_READ, change_app, pack_app(read, "--changes", WORK / "changes"), read, ""),
        Way("the same, the image is known", change_app, pack_app(line_output), line_output, _READ),
    ]


def _run(ways: Sequence[Way], rounds: int) -> None:
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    cpu = dict.fromkeys(seconds, 0.0)
    memory = dict.fromkeys(seconds, 0)
    sizes = {}
    for number in range(rounds + 1):  # the first is not counted
        for way in ways:
            way.prepare()
            os.sync()  # what the one before it left to be written is not this one's
            started = time.monotonic()
            process = subprocess.Popen(list(map(str, way.argv)), stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            elapsed = time.monotonic() - started
            if process.returncode:
                sys.exit(f"bench: error: {way.name} failed")
            sizes[way.name] = way.output.stat().st_size
            memory[way.name] = max(memory[way.name], usage.ru_maxrss * 1024)
            cpu[way.name] = usage.ru_utime + usage.ru_stime  # without the engine's own
            if number:
                seconds[way.name].append(elapsed)
    print(f"{'':<36} {'min':>6} {'median':>6} {'max':>6} {'cpu s':>6} {'MB':>7} {'MiB mem':>7}  time  bytes")
    for way in ways:
        times = seconds[way.name]
        line = f"{way.name:<36} {min(times):6.2f} {statistics.median(times):6.2f} {max(times):6.2f}"
        line += f" {cpu[way.name]:6.2f} {sizes[way.name] / 1e6:7.1f} {memory[way.name] / 2**20:7.0f}"
        if way.against:
            pairs = zip(times, seconds[way.against], strict=True)
            line += f"  {statistics.median(mine / other for mine, other in pairs):.2f}"
            line += f"  {sizes[way.name] / sizes[way.against]:.3f}"
        print(line)


def _shell(script: str, *words: str | Path) -> list[str | Path]:
    return ["bash", "-o", "pipefail", "-c", script, "bench", *words]


def _unpacked(image: str) -> Path:
    folder = WORK / "rootfs"
    folder.mkdir()
    client = engines.connect()
    with subprocess.Popen(["tar", "-x", "-C", folder], stdin=subprocess.PIPE) as unpack:
        if unpack.stdin is None:
            raise AssertionError("a pipe was asked for")
        unpack.stdin.writelines(engines.rootfs_chunks(client, image))
        unpack.stdin.close()
    client.close()
    return folder


def _docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True, timeout=_SECONDS)
