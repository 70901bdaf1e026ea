"""The main job from end to end: capture the lab, build, pack, check, push and run one definition there, stage by stage.

``scripts/quickstart`` calls it when the machine is set up. It uses the command line as a user would.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deployer.site.storage.space import human
from deployer.system.verify import opened, verify
from tests.lab import Lab, LabError
from tests.lab.engine import stop_engine, take_engine

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".deployer" / "quickstart"
LAB = os.environ.get("QUICKSTART_LAB", "quickstart")

#: Nothing of it takes this long, even on a slow machine: a stage that does hangs.
_STAGE_SECONDS = 3600


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

    def run(self, name: str, action: Callable[[], Any]) -> Any:
        print(f"\n[{len(self.times) + 1}/{self.count}] {name}", flush=True)
        started = time.monotonic()
        result = action()
        self.times.append((name, time.monotonic() - started))
        print(f"    {name}: {self.times[-1][1]:.1f} s", flush=True)
        return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the quickstart and return its exit code."""
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__)
    parser.add_argument("definition", nargs="?", default="digits-horovod", help="a folder of bundles/")
    parser.add_argument("--down", action="store_true", help="remove what the quickstart started")
    args = parser.parse_args(argv)
    try:
        return down() if args.down else quickstart(args.definition)
    except LabError as error:
        print(f"deployer: error: {error}", file=sys.stderr)
        return 7
    except StageFailed as error:
        return error.code
    except KeyboardInterrupt:
        return 130


def down() -> int:
    """Stop the lab and, unless others use it, the engine; keep caches."""
    Lab(LAB).down()
    # An engine that the caller names was never ours to stop.
    stopped = "DOCKER_HOST" not in os.environ and stop_engine()
    print("the lab is down; the Docker engine " + ("is stopped" if stopped else "is left to those who use it"))
    return 0


def quickstart(name: str) -> int:
    """Do all stages for bundles/``name`` and show what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    stages = Stages(8)
    if started := os.environ.get("QUICKSTART_STARTED"):
        stages.times.append(("set up", time.time() - float(started)))
        stages.count += 1
        print(f"[1/{stages.count}] set up: {stages.times[0][1]:.1f} s")
    lab = Lab(LAB)
    stages.run("bring up the lab", lambda: print(f"    {lab.up().text}"))
    engine = stages.run("take a Docker engine", lambda: take_engine(keep=True))
    bundle, site = WORK / f"{name}.tar", WORK / "lab.yaml"
    ssh = ["--ssh-config", str(lab.ssh_config)]
    of_site = ["--site", str(site)]
    docker = {"DOCKER_HOST": engine.docker_host}
    site.unlink(missing_ok=True)  # decisions of an earlier lab
    stages.run("capture the site", lambda: deployer("capture", "login1", *ssh, "-o", str(site)))
    stages.run("build the image", lambda: deployer("build", f"bundles/{name}", *of_site, "--quiet", env=docker))
    stages.run("pack the bundle", lambda: deployer("pack", f"bundles/{name}", *of_site, "-o", str(bundle), env=docker))
    stages.run("check the verdict", lambda: deployer("check", str(bundle), *of_site))
    stages.run("push, verify, install", lambda: deployer("push", str(bundle), str(site), *ssh))
    layout = ["--nodes", "2", "--ranks-per-node", "1", "--threads", "1"]
    stages.run("run on two nodes", lambda: deployer("run", *of_site, *ssh, name, *layout, "--wait"))
    result = fetch([*of_site, *ssh], name)
    show(stages, bundle, result, lab)
    return 0


def deployer(*words: str, env: dict[str, str] | None = None) -> None:
    """Run the command line on this terminal. Raises StageFailed."""
    print(f"    $ deployer {shlex.join(words)}", flush=True)
    command = [str(ROOT / ".venv" / "bin" / "deployer"), *words]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **(env or {})}, timeout=_STAGE_SECONDS, check=False)
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
