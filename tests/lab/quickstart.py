"""The main job from end to end: capture the lab, build, pack, check, push and run one definition there, stage by stage.

``scripts/quickstart`` calls it when the machine is set up. It uses the command line as a user would. The image's base
needs nothing of the lab, so it is made while the lab comes up.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from deployer.connected.image import last_build
from deployer.connected.image.definition.definition import Definition, load
from deployer.contract.elf.machines import SUPPORTED
from deployer.site.storage.space import human
from deployer.system.trust.verify import opened, verify
from tests.lab import Lab, LabError, foreign
from tests.lab.engine import stop_engine, take_engine

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".deployer" / "quickstart"
LAB = os.environ.get("QUICKSTART_LAB", "quickstart")
_DEPLOYER = [str(ROOT / ".venv" / "bin" / "deployer")]

#: Nothing of it takes this long, even under emulation on a slow machine: a stage that does hangs.
_STAGE_SECONDS = 4 * 3600
#: A stage that prints nothing itself says every so many seconds what it does.
_HEARTBEAT_S = 15.0
_SHOWN = 100

#: A step of an image's build in its log, with the part of the build that it belongs to; and a part's end.
_STEP = re.compile(r"(?:(?P<part>[^:]+): )?(?:Step (?P<step>\d+/\d+) : (?P<what>.*)|Successfully built .*)")


class StageFailed(Exception):
    """A stage's command failed; it has said why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Stages:
    """Runs stages in order, says which one runs, and keeps their times in seconds."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.times: list[tuple[str, float]] = []

    def run(self, name: str, action: Callable[[], Any], doing: Callable[[], str] | None = None) -> Any:
        """Run a stage. ``doing`` returns what it does now, for a stage that prints nothing for minutes."""
        print(f"\n[{len(self.times) + 1}/{self.count}] {name}", flush=True)
        started = time.monotonic()
        with heartbeat(doing) if doing else nullcontext():
            result = action()
        self.times.append((name, time.monotonic() - started))
        print(f"    {name}: {self.times[-1][1]:.1f} s", flush=True)
        return result


@contextmanager
def heartbeat(doing: Callable[[], str], every: float = _HEARTBEAT_S) -> Iterator[None]:
    """Print every so many seconds for how long the block runs and what it does."""
    ended = threading.Event()
    started = time.monotonic()

    def beat() -> None:
        while not ended.wait(every):
            print(f"    {time.monotonic() - started:.0f} s: {doing()}", flush=True)

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        yield
    finally:
        ended.set()
        beating.join()


def steps_of(log: str) -> str:
    """Return at which step each part of a build is, by the log of the build."""
    now: dict[str, str] = {}
    for line in log.splitlines():
        found = _STEP.fullmatch(line)
        if found is None:
            continue
        part = found["part"] or "image"
        if found["step"]:
            now[part] = f"{part}, step {found['step']}, {' '.join(found['what'].split())}"[:_SHOWN]
        else:
            now.pop(part, None)
    return "; ".join(now.values()) or "the base, or the checks of the image"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the quickstart and return its exit code."""
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__)
    parser.add_argument("definition", nargs="?", default="digits-horovod", help="a folder of bundles/")
    text = "the processor of the lab's nodes (default: this machine's)"
    parser.add_argument("--architecture", choices=SUPPORTED, help=text)
    parser.add_argument("--down", action="store_true", help="remove what the quickstart started")
    args = parser.parse_args(argv)
    try:
        return down() if args.down else quickstart(args.definition, args.architecture)
    except LabError as error:
        print(f"deployer: error: {error}", file=sys.stderr)
        return 7
    except StageFailed as error:
        return error.code
    except KeyboardInterrupt:
        return 130


def lab_of(machine: str | None) -> str:
    """Return the name of the lab whose nodes have a processor."""
    return LAB if machine in (None, os.uname().machine) else f"{LAB}-{str(machine).replace('_', '-')}"


def down() -> int:
    """Stop the lab and, unless others use it, the engine; keep caches."""
    for machine in SUPPORTED:
        Lab(lab_of(machine)).down()
    # An engine that the caller names was never ours to stop.
    stopped = "DOCKER_HOST" not in os.environ and stop_engine()
    print("the lab is down; the Docker engine " + ("is stopped" if stopped else "is left to those who use it"))
    return 0


def quickstart(name: str, machine: str | None = None) -> int:
    """Do all stages for bundles/``name`` and show what came of it."""
    foreign_machine = machine if machine != os.uname().machine else None
    definition = load(ROOT / "bundles" / name).on(machine)
    WORK.mkdir(parents=True, exist_ok=True)
    stages = Stages(10 if foreign_machine else 9)
    if started := os.environ.get("QUICKSTART_STARTED"):
        stages.times.append(("set up", time.time() - float(started)))
        stages.count += 1
        print(f"[1/{stages.count}] set up: {stages.times[0][1]:.1f} s")
    with base_beside(definition) as base:
        lab = Lab(lab_of(machine))
        if foreign_machine:
            stages.run("make the base", base, lambda: "mmdebstrap installs its Debian packages, which qemu runs")
            lab = stages.run(f"make nodes for {machine}", lambda: foreign.lab(lab_of(machine), foreign_machine))
        stages.run("bring up the lab", lambda: print(f"    {lab.up().text}"))
        engine = stages.run("take a Docker engine", lambda: take_engine(keep=True))
        bundle, site = WORK / f"{name}.tar", WORK / "lab.yaml"
        ssh = ["--ssh-config", str(lab.ssh_config)]
        of_site = ["--site", str(site)]
        docker = {"DOCKER_HOST": engine.docker_host}
        site.unlink(missing_ok=True)  # decisions of an earlier lab
        stages.run("capture the site", lambda: deployer("capture", "login1", *ssh, "-o", str(site)))
        if not foreign_machine:  # otherwise the nodes were made of it
            stages.run("make the base", base, lambda: "mmdebstrap installs its Debian packages")
    began = time.time()
    stages.run(
        "build the image",
        lambda: deployer("build", f"bundles/{name}", *of_site, "--quiet", env=docker),
        lambda: steps_of(log_of(last_build.record_of(definition).with_suffix(".log"), began)),
    )
    stages.run("pack the bundle", lambda: deployer("pack", f"bundles/{name}", *of_site, "-o", str(bundle), env=docker))
    stages.run("check the verdict", lambda: deployer("check", str(bundle), *of_site))
    stages.run("push, verify, install", lambda: deployer("push", str(bundle), str(site), *ssh))
    layout = ["--nodes", "2", "--ranks-per-node", "1", "--threads", "1"]
    stages.run("run on two nodes", lambda: deployer("run", *of_site, *ssh, name, *layout, "--wait"))
    result = fetch([*of_site, *ssh], name)
    show(stages, bundle, result, lab)
    return 0


@contextmanager
def base_beside(definition: Definition) -> Iterator[Callable[[], None]]:
    """Make the base of a definition's image while the block runs; yield what waits for it.

    It is what ``deployer build`` makes of a definition that is its base alone: a file in the cache, without an engine.
    """
    made_of, name = definition.base, definition.name
    if made_of is None or not made_of.debian:
        raise LabError(f"{name} is not made of Debian packages", "name another definition")
    folder = WORK / f"{name}-base"
    folder.mkdir(parents=True, exist_ok=True)
    same = {"debian": made_of.debian, "include": made_of.include}
    alone = {"name": folder.name, "version": "1.0.0", "base": same, "jobs": {"none": {"command": ["true"]}}}
    (folder / "bundle.yaml").write_text(json.dumps(alone))
    words = ["build", str(folder.relative_to(ROOT)), "--architecture", str(definition.machine), "--quiet"]
    process = subprocess.Popen(
        [*_DEPLOYER, *words], cwd=ROOT, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip

    def wait() -> None:
        said, _ = process.communicate(timeout=_STAGE_SECONDS)
        print(f"    $ deployer {shlex.join(words)}  # began with the lab\n{said}", end="")
        if process.returncode:
            raise StageFailed(process.returncode)

    try:
        yield wait
    finally:
        if process.poll() is None:  # a stage failed
            process.terminate()
            process.communicate(timeout=_STAGE_SECONDS)


def log_of(path: Path, since: float) -> str:
    """Return the log of a build that began at ``since``; empty if there is none yet."""
    try:
        return path.read_text(errors="replace") if path.stat().st_mtime >= since else ""
    except FileNotFoundError:
        return ""


def deployer(*words: str, env: dict[str, str] | None = None) -> None:
    """Run the command line on this terminal. Raises StageFailed."""
    print(f"    $ deployer {shlex.join(words)}", flush=True)
    environment = {**os.environ, **(env or {})}
    done = subprocess.run([*_DEPLOYER, *words], cwd=ROOT, env=environment, timeout=_STAGE_SECONDS, check=False)
    if done.returncode:
        raise StageFailed(done.returncode)


def fetch(site: Sequence[str], name: str) -> dict[str, Any]:
    """Copy the last job's folder from the site, as a user would, and return its result."""
    target = WORK / f"{name}-job"
    shutil.rmtree(target, ignore_errors=True)
    deployer("result", *site, "-o", str(target))
    result: dict[str, Any] = json.loads((target / "result.json").read_text())
    return result


def show(stages: Stages, bundle: Path, result: dict[str, Any], lab: Lab) -> None:
    """Print the table at the end, and where everything is."""
    print("\nstage                        seconds")
    for name, seconds in stages.times:
        print(f"{name:<28} {seconds:7.1f}")
    print(f"{'in all':<28} {sum(seconds for _, seconds in stages.times):7.1f}")
    with opened(str(bundle)) as stream:
        image = verify(stream, str(bundle)).manifest.image
    print(f"\nbundle {human(bundle.stat().st_size)}; image {human(image.raw_size)}, {image.entries} entries")
    print(f"world size {result['world_size']}")
    payload = result.get("payload") or {}
    if "val_accuracy" in payload:
        print(f"validation accuracy {payload['val_accuracy']:.4f} after {len(payload['epochs'])} epochs")
    print("\n".join(["", *proof(result)]))
    folder = WORK.relative_to(ROOT)
    job = folder / f"{bundle.stem}-job"
    print(f"\nbundle       {folder / bundle.name}")
    print(f"batch script {job / 'job.sh'}")
    print(f"logs         {job}/")
    print(f"result       {job / 'result.json'}")
    print(f"the site     ssh -F {lab.ssh_config} login1")
    print("to stop it   scripts/quickstart --down")


def proof(result: dict[str, Any]) -> list[str]:
    """Return what the job proved: the MPI library of each rank, or without MPI the network between the nodes."""
    if not any(rank["mpi_identity"] for rank in result["ranks"]):
        network = result.get("network")
        if not network:
            return ["the job ran without MPI"]
        measured = f"{network['latency_us']} us, {network['bandwidth_mb_s']} MB/s"
        return ["the job ran without MPI", f"the network between its {network['nodes']} nodes: {measured}"]
    lines = [
        "the proof: each rank had the site's own MPI library mapped",
        "rank  host   MPI library of the rank                            the host's own",
    ]
    for rank in result["ranks"]:
        version = " ".join(str(rank["mpi_library"]).split())[:48]
        same = "yes" if rank["mpi_identity"] and rank["mpi_identity"] == rank["host_mpi_identity"] else "NO"
        lines.append(f"{rank['rank']:>4}  {rank['host']:<6} {version:<50} {same}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
