"""`scripts/bench unpack`: install beside other ways to get a flat image into a folder, on the same layer, in turn."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.bundle import pack, sources
from deployer.connected.bundle.pyz import make_pyz
from deployer.system.trust import verify
from tests.lab.engine import take_engine
from tests.lab.software import find_python36

DISK = Path(__file__).resolve().parents[2] / ".deployer" / "bench-unpack"
MEMORY = Path("/dev/shm/deployer-bench-unpack")


class Run(NamedTuple):
    """What one run took: seconds by the clock, seconds of processors, and MiB of its largest process.

    The last is at least that of the process which measures, about 50 MiB: a child starts as its copy.
    """

    seconds: float
    cpu: float
    memory: float


def measure(args: argparse.Namespace) -> None:
    """Print a table for memory (tmpfs) and one for disk; ratios are to ``tar --zstd -x`` of the same layer."""
    if shutil.disk_usage(MEMORY.parent).free < 8 << 30:
        sys.exit(f"bench: error: {MEMORY.parent} has less than 8 GiB free")
    for base in (MEMORY, DISK):
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True)
    try:
        bundle = Path(args.bundle).resolve() if args.bundle else _packed(args.image)
        ways = _ways(_sources(bundle), [name for name in args.only.split(",") if name])
        for name, base in (("memory", MEMORY), ("disk", DISK)):
            _show(f"in {name}", _in_turn(ways, base / "out", args.rounds))
    finally:
        shutil.rmtree(MEMORY)
        shutil.rmtree(DISK)


def _packed(image: str) -> Path:
    with take_engine() as engine:
        os.environ["DOCKER_HOST"] = engine.docker_host
        return pack.pack(sources.from_image(image, "bench", "1"), [], MEMORY / "bench.tar").path


def _sources(bundle: Path) -> dict[str, Path]:
    """Put the bundle and its layer in the forms that the ways take into memory: reading is not what is measured."""
    made = {name: MEMORY / name for name in ("b.tar", "layer.tar.zst", "layer.tar.gz", "oci", "deployer.pyz")}
    if bundle != made["b.tar"]:
        shutil.copyfile(bundle, made["b.tar"])
    made["deployer.pyz"].write_bytes(make_pyz())
    with verify.opened(str(bundle)) as stream, made["layer.tar.zst"].open("wb") as layer:
        verification = verify.begin(stream, str(bundle))
        layer.writelines(verification.check(verification.layer_segments()))
        image = verification.manifest.image
    print(
        f"{image.entries} entries, {image.raw_size} bytes, {layer.name}: {made['layer.tar.zst'].stat().st_size} bytes"
    )
    unpacked = subprocess.Popen(["zstd", "-dcq", made["layer.tar.zst"]], stdout=subprocess.PIPE)
    with unpacked as raw, made["layer.tar.gz"].open("wb") as out:
        subprocess.run(["gzip", "-1"], stdin=raw.stdout, stdout=out, check=True)
    if shutil.which("umoci"):
        plain = MEMORY / "layer.tar"  # add-layer compresses it itself
        subprocess.run(["zstd", "-dqf", made["layer.tar.zst"], "-o", plain], check=True)
        for words in (
            ["init", "--layout", made["oci"]],
            ["new", "--image", f"{made['oci']}:1"],
            ["raw", "add-layer", "--image", f"{made['oci']}:1", plain],
        ):
            subprocess.run(["umoci", *words], check=True, capture_output=True)
        plain.unlink()
    return made


def _ways(made: dict[str, Path], only: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands; each makes the folder ``OUT``. ``only`` are words of those to measure beside the first."""
    python36 = find_python36(os.environ)
    install = ["install", str(made["b.tar"]), "--root", "OUT"]
    tar = ["tar", "--no-same-owner", "-C", "OUT", "--one-top-level=."]  # as a user: without a chown a file
    ways = {
        "tar --zstd -x": [*tar, "--zstd", "-xf", str(made["layer.tar.zst"])],
        f"install, Python {sys.version_info[0]}.{sys.version_info[1]}": [
            sys.executable, str(made["deployer.pyz"]), *install
        ],
        "install, Python 3.6": [
            str(python36 / "bin/python3.6"), str(made["deployer.pyz"]), *install
        ] if python36 else [],
        "tar -xz": [*tar, "-xzf", str(made["layer.tar.gz"])],
        "ch-convert, tar.gz": ["ch-convert", "-i", "tar", "-o", "dir", str(made["layer.tar.gz"]), "OUT/image"],
        "umoci unpack": ["umoci", "unpack", "--image", f"{made['oci']}:1", "OUT/image"],
    }  # fmt: skip
    return {
        name: argv
        for number, (name, argv) in enumerate(ways.items())
        if argv and shutil.which(argv[0]) and (not number or not only or any(word in name for word in only))
    }


def _in_turn(ways: dict[str, list[str]], out: Path, rounds: int) -> dict[str, list[Run]]:
    """Return what each took in each of ``rounds`` rounds, after one that is not counted; ``out`` is new each time."""
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, argv in ways.items():
            out.mkdir()
            os.sync()  # what the one before left to write is not for this one to wait for
            run = _timed([word.replace("OUT", str(out)) for word in argv])
            shutil.rmtree(out)
            if number:
                runs[name].append(run)
    return runs


def _timed(argv: list[str]) -> Run:
    started = time.monotonic()
    environment = {"USER": "root", **os.environ}
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)  # with its children's: the largest of them is what counts
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, argv)
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def _show(title: str, runs: dict[str, list[Run]]) -> None:
    first = next(iter(runs.values()))
    print(f"\n{title:<22} {'min s':>7} {'median':>7} {'max':>7} {'cpu s':>7} {'MiB':>5}  ratio (its min, max)")
    for name, mine in runs.items():
        seconds = [run.seconds for run in mine]
        ratios = sorted(a.seconds / b.seconds for a, b in zip(mine, first, strict=True))
        print(
            f"{name:<22} {min(seconds):7.2f} {statistics.median(seconds):7.2f} {max(seconds):7.2f} "
            f"{statistics.median(run.cpu for run in mine):7.2f} {max(run.memory for run in mine):5.0f}  "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}, {ratios[-1]:.2f})"
        )
