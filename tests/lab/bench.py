"""What `scripts/bench` measures: commands timed in turn (A B C, A B C, ...), so that the machine's drift hits all."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tomli

from deployer.connected.bundle import pack, sources
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.ground import engine as engines
from deployer.contract.base import first_bytes, json_records
from deployer.contract.proof.evidence import Launch
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from deployer.system import files
from tests.lab import (
    bench_again,
    bench_delta,
    bench_imb,
    bench_journey,
    bench_login,
    bench_network,
    bench_overhead,
    bench_pack,
    bench_ping,
    bench_published,
    bench_rehearse,
    bench_scale,
    bench_staging,
    bench_start,
    bench_storm,
    bench_unpack,
    bench_width,
)
from tests.lab.engine import take_engine
from tests.lab.software import find_python36

WORK = Path(__file__).resolve().parents[2] / ".deployer" / "bench"
_COMMAND_SECONDS = 600


def in_turn(commands: dict[str, Sequence[str]], rounds: int) -> dict[str, list[float]]:
    """Return the wall seconds of each command in each of ``rounds`` rounds, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, argv in commands.items():
            started = time.monotonic()
            # ch-run does not start without USER, which a root shell may lack.
            environment = {"USER": "root", **os.environ}
            subprocess.run(argv, check=True, timeout=_COMMAND_SECONDS, capture_output=True, env=environment)
            if number:
                seconds[name].append(time.monotonic() - started)
    return seconds


def show(seconds: dict[str, list[float]]) -> None:
    """Print minimum, median and maximum of each, and its ratio to the first, as the median over the rounds."""
    first = next(iter(seconds.values()))
    print(f"{'':<34} {'min':>7} {'median':>7} {'max':>7}  ratio")
    for name, times in seconds.items():
        ratio = statistics.median(mine / other for mine, other in zip(times, first, strict=True))
        print(f"{name:<34} {min(times):7.3f} {statistics.median(times):7.3f} {max(times):7.3f}  {ratio:.2f}")


def start(args: argparse.Namespace) -> None:
    """Time ``--help`` and ``status`` of the site half beside a bare start of Python, and the start of ranks.

    On CPython 3.6 and on this Python. The first start keeps its bytecode, the second uses it.

    With ``--against``, time ``--help`` and the start of a rank without a container beside those of another commit.
    """
    python = find_python36(os.environ)
    if python is None:
        sys.exit("bench: error: no CPython 3.6 here")
    WORK.mkdir(parents=True, exist_ok=True)
    program = str(python / "bin" / "python3.6")
    tool = WORK / "deployer.pyz"
    tool.write_bytes(make_pyz())
    print(f"deployer.pyz: {tool.stat().st_size} bytes")
    if args.against:
        _start_against(args, program, tool)
        return
    for each in (program, sys.executable):
        _start_beside_pass(args, each, str(tool))
    if args.tool_only:
        return
    print()
    bench_start.measure(args)


def _start_beside_pass(args: argparse.Namespace, python: str, tool: str) -> None:
    """Time the first and the second start of the tool, with a root folder that has one job."""
    kept, root = WORK / "cache", WORK / "root"
    shutil.rmtree(root, ignore_errors=True)
    job = Launch(
        "job", "tiny", "1.0", "sha256:0", "lab", "v", "", "native", 2, 1, 1, "1:00", ["true"], None, None, created=1
    )
    files.write_text(str(root / "jobs/job/job.json"), json_records.pretty(job.record()))
    words = ["env", f"XDG_CACHE_HOME={kept}", python]
    afresh = ["sh", "-c", f'rm -rf {shlex.quote(str(kept))} && exec {shlex.join([*words, tool])} "$@"', "sh"]
    print(f"\n{subprocess.check_output([python, '--version'], text=True).strip()}")
    commands: dict[str, Sequence[str]] = {"-c pass": [*words, "-c", "pass"]}
    for name, given in (("--help", ["--help"]), ("status", ["status", "job", "--root", str(root)])):
        commands[f"{name}, first start"] = [*afresh, *given]
        commands[f"{name}, second start"] = [*words, tool, *given]
    show(in_turn(commands, args.rounds))


def _start_against(args: argparse.Namespace, python36: str, tool: Path) -> None:
    """Time the start of ``tool`` beside that of the deployer.pyz of the commit ``args.against``."""
    other = _pyz_of(args.against)
    print(f"deployer.pyz of {args.against}: {other.stat().st_size} bytes")
    programs = {args.against: str(other), "this checkout": str(tool)}
    print(f"\n{python36} deployer.pyz --help")
    show(in_turn({name: [python36, path, "--help"] for name, path in programs.items()}, args.rounds))
    for python in (python36, sys.executable):
        print(f"\n{python}: a rank, as job.sh starts it")
        words = ["rank", "--out", str(WORK), "--", "true"]
        show(in_turn({name: [*_rank_of(python, path), *words] for name, path in programs.items()}, args.rounds))


def _rank_of(python: str, tool: str) -> list[str]:
    """Return the words with which job.sh starts a rank by this deployer.pyz."""
    return [python, "-I", "-S", "-c", first_bytes.PROGRAM, tool]


def _pyz_of(commit: str) -> Path:
    """Let the sources of a commit make their deployer.pyz, and return it."""
    folder = WORK / "against"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with subprocess.Popen(["git", "archive", commit], stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", folder], stdin=archive.stdout, check=True)
    if archive.returncode:
        sys.exit(f"bench: error: git archive {commit} failed")
    project = tomli.loads((folder / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["deployer"].partition(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}(sys.argv[1:]))"
    made = WORK / "against.pyz"
    words = [sys.executable, "-c", code, "pyz", "-o", str(made)]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": str(folder)}, cwd=folder)
    return made


def imports(args: argparse.Namespace) -> None:
    """Time ``import MODULE`` in the installed image, in the tree before flattening, and under Docker."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    command = ["python3", "-c", f"import {args.module}"]
    with take_engine() as engine:
        docker = ["docker", "--host", engine.docker_host]
        before = WORK / "before"
        before.mkdir()
        os.environ["DOCKER_HOST"] = engine.docker_host
        client = engines.connect()
        with subprocess.Popen(["tar", "-x", "-C", before], stdin=subprocess.PIPE) as unpack:
            if unpack.stdin is None:
                raise AssertionError("a pipe was asked for")
            unpack.stdin.writelines(engines.rootfs_chunks(client, args.image))
            unpack.stdin.close()
        client.close()
        packed = pack.pack(sources.from_image(args.image, "bench", "1"), [], WORK / "bench.tar")
        installed = install(str(packed.path), Store(str(WORK / "root"))).image
        python = f"--set-env=PATH={dict(e.split('=', 1) for e in packed.manifest.image.env)['PATH']}"
        show(
            in_turn(
                {
                    "before flattening, ch-run": ["ch-run", "--unset-env=*", python, str(before), "--", *command],
                    "installed, ch-run": ["ch-run", "--unset-env=*", python, installed.rootfs, "--", *command],
                    "image, docker run": [*docker, "run", "--rm", args.image, *command],
                },
                args.rounds,
            )
        )
    shutil.rmtree(WORK)


def _add_image(command: argparse.ArgumentParser) -> None:
    command.add_argument("--image", default="deployer/hello-mpi:1.0.0")
    command.add_argument("--rootfs", help="a folder with a root file system, in place of the image")


def main() -> None:
    """Run the measurement that is asked for."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    verbs = parser.add_subparsers(required=True)
    command = verbs.add_parser("start")
    command.set_defaults(run=start)
    names = [name for name, runtime in RUNTIMES.items() if runtime.contained]
    command.add_argument("--runtime", choices=names, default="charliecloud", help="(default: %(default)s)")
    command.add_argument("--tool-only", action="store_true", help="do not start ranks")
    command.add_argument("--against", metavar="COMMIT", help="compare with the deployer.pyz of another commit alone")
    _add_image(command)
    command = verbs.add_parser("staging")
    command.set_defaults(run=bench_staging.measure)
    _add_image(command)
    command.add_argument("--lab", default="bench-staging", help="the lab to make, and to remove at the end")
    command.add_argument("--runtime", choices=bench_staging.RUNTIMES, help="(default: all of them)")
    command.add_argument("--command", default="python3 -c 'import json'", help="the payload, one line of shell words")
    command.add_argument("--paths", type=int, default=20, help="how many of the paths to list")
    command = verbs.add_parser("ping")
    command.set_defaults(run=bench_ping.measure)
    command.add_argument("--lab", default="bench-ping", help="the lab to make, and to remove at the end")
    bench_imb.add_parser(verbs)
    bench_network.add_parser(verbs)
    bench_overhead.add_parser(verbs)
    bench_rehearse.add_parser(verbs)
    bench_published.add_parser(verbs)
    bench_scale.add_parser(verbs)
    bench_login.add_parser(verbs)
    bench_storm.add_parser(verbs)
    bench_width.add_parser(verbs)
    command = verbs.add_parser("import")
    command.add_argument("--image", default="deployer/digits-horovod:1.0.0")
    command.add_argument("--module", default="tensorflow")
    command.set_defaults(run=imports)
    command = verbs.add_parser("pack")
    command.add_argument("--image", default="deployer/digits-horovod:1.0.0")
    command.set_defaults(run=bench_pack.measure)
    bench_delta.add_parsers(verbs)
    bench_again.add_parser(verbs)
    bench_journey.add_parser(verbs)
    command = verbs.add_parser("unpack")
    command.add_argument("--image", default="deployer/digits-horovod:1.0.0")
    command.add_argument("--bundle", help="a bundle that is there, in place of the image")
    command.add_argument("--only", default="", help="words of the ways to measure beside tar, as: install,umoci")
    command.set_defaults(run=bench_unpack.measure)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
