"""`scripts/bench staging`: what a rank asks of the shared file system, call by call, by how the image is staged.

A real job on one lab node with two ranks, by Charliecloud and by udocker: /home is the shared file system, /opt the
site's software. ``counted.py`` stands before the runtime in job.sh and writes down what each rank does, in the probe's
step and in the payload's; the kernel asks it about each call. Paths inside the container are led back to what is bound
there.
"""

from __future__ import annotations

import argparse
import ast
import collections
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.lab import apptainer, counted
from tests.lab.cluster import Lab
from tests.lab.engine import take_engine

ROOT = Path(__file__).resolve().parents[2]
SHARED, SOFTWARE = "/home", "/opt"
_NAME = "bench"
#: A path in the job's folder, or the folder itself.
_JOB = re.compile(r"/home/alice/deployer/jobs/[^/]+")
#: What is measured: runtime and staging, which name a start option of the plan.
_START_OPTIONS = (
    ("charliecloud", ("folder", "memory", "squashfs")),
    ("udocker", ("folder", "memory")),
    ("apptainer", ("folder", "memory", "squashfs")),
    ("podman", ("folder", "memory")),
)
RUNTIMES = tuple(name for name, _ in _START_OPTIONS)
#: On real sites Apptainer is on the nodes' own disks; in the lab it is below /home.
_ABOVE = (apptainer.PREFIX, os.path.dirname(apptainer.PREFIX))


class Operation(NamedTuple):
    """A call that names a path, or an open file, by the host's own name for it."""

    call: str
    path: str


def measure(args: argparse.Namespace) -> None:
    """Print, for each form, how many operations each rank made on the shared file system, and which."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(args.lab)
        lab.up(nodes=1)
        try:
            apptainer.install(lab)
            _prepare(lab, Path(folder), args)
            chosen = [each for each in _START_OPTIONS if args.runtime in (None, each[0])]
            for runtime, stagings in chosen:
                for staging in stagings:
                    ranks = _ranks(lab, runtime, staging, shlex.split(args.command))
                    _show(f"{runtime}, {staging}", ranks, args.paths)
        finally:
            lab.down(purge=True)


def _prepare(lab: Lab, folder: Path, args: argparse.Namespace) -> None:
    """Push a bundle with a plan for a node that holds two ranks."""
    record = yaml.safe_load((ROOT / "site_profiles" / "lab.yaml").read_text())
    record["partitions"]["batch"]["node"]["cores"] = 2
    record["runtimes"] = {**record["runtimes"], "apptainer": {"squashfs": "fuse"}, "podman": {}}
    profiles, bundle = [], folder / "bundle.tar"
    for runtime, _ in _START_OPTIONS:
        record.update(name=runtime, policy={"runtimes": [runtime]})
        profiles.append(folder / f"{runtime}.yaml")
        profiles[-1].write_text(yaml.safe_dump(record))
    deployer = [str(Path(sys.executable).with_name("deployer"))]
    sites = [word for profile in profiles for word in ("--site", str(profile))]
    pack = [*deployer, "pack", "--name", _NAME, "--version", "1", *sites, "-o", str(bundle)]
    if args.rootfs:
        _run([*pack, "--rootfs", args.rootfs])
    else:
        with take_engine() as engine:
            _run([*pack, "--image", args.image], DOCKER_HOST=engine.docker_host)
    _run([*deployer, "push", str(bundle), str(profiles[0]), "--ssh-config", str(lab.ssh_config)])
    squash = f"python3 $HOME/deployer/deployer.pyz install --squashfs $HOME/deployer/bundles/{_NAME}-1.tar"
    lab.sh("login1", "alice", squash, timeout=600).check("the SquashFS file")


def _run(argv: list[str], **environment: str) -> None:
    subprocess.run(
        argv, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=900, env={**os.environ, **environment}
    )


def _ranks(lab: Lab, runtime: str, staging: str, command: list[str]) -> dict[int, list[Operation]]:
    """Run the counted job and return the operations of each rank, by its number, both steps together."""
    words = " ".join(map(shlex.quote, command))
    tool = "python3 $HOME/deployer/deployer.pyz"
    (lab.home / "alice" / "counted.py").write_text(Path(counted.__file__).read_text())
    script = f"""
set -e
rm -rf $HOME/traces; mkdir $HOME/traces
cat >$HOME/traced.sh <<'END'
#!/bin/sh
exec /usr/bin/python3 -I -S $HOME/counted.py /tmp/trace.$SLURM_STEP_ID.$SLURM_PROCID "$@"
END
chmod +x $HOME/traced.sh
PATH=$PATH:{apptainer.PREFIX}/bin
job=$({tool} run {_NAME} --plan {runtime} --nodes 1 --ranks-per-node 2 --threads 1 --staging {staging} \\
    --dry-run --json -- {words} | python3 -c 'import json, sys; print(json.load(sys.stdin)["folder"])')
sed -i "s#^container=(#container=($HOME/traced.sh #" $job/job.sh
sed -i 's/^container.4.=.*//' $job/job.sh  # the words have moved by one
if [ {runtime} = udocker ]; then sed -i 's/^    --cd=/    --set-env=PROOT_NO_SECCOMP=1 --cd=/' $job/job.sh; fi
sbatch --wait $job/job.sh >/dev/null || {{ cat $job/output.log >&2; exit 1; }}
cp $job/job.sh $HOME/traces/
srun -N1 sh -c 'cp /tmp/trace.* $HOME/traces/; rm /tmp/trace.*'
"""
    lab.sh("login1", "alice", script, timeout=900).check("the counted job")
    traces = lab.home / "alice" / "traces"
    binds = _binds((traces / "job.sh").read_text())
    found: dict[int, list[Operation]] = collections.defaultdict(list)
    for path in sorted(traces.glob("trace.*")):
        found[int(path.name.rpartition(".")[2])] += operations(path.read_text(errors="replace"), binds)
    return dict(found)


def _binds(script: str) -> list[tuple[str, str]]:
    """Return where paths of the container are on the host, the longest first, out of job.sh."""
    own = "/node-local"
    found = [(target, source) for source, target in re.findall(r"--(?:bind|volume)=([^:\s]+):([^\s]+)", script)]
    image = re.search(r"^image=(\S+)$", script, re.MULTILINE)
    if image is None:
        raise AssertionError("job.sh names no image")
    found.append(("/", image[1]))
    found += [(path, path) for path in ("/proc", "/dev", "/sys", "/tmp")]
    mapped = [(target, source.replace('"$stage"', own).strip("'")) for target, source in found]
    return sorted(mapped, key=lambda pair: -len(pair[0]))


def operations(trace: str, binds: list[tuple[str, str]]) -> Iterator[Operation]:
    """Yield what the processes of a trace did by path, by the host's names; one that has another root than the host's
    sees what ``binds`` say."""
    for line in trace.splitlines():
        call, inside, path = line.split(" ", 2)
        path = ast.literal_eval(path)
        yield Operation(call, _on_host(path, binds) if inside == "1" else path)


def _on_host(path: str, binds: list[tuple[str, str]]) -> str:
    for target, source in binds:
        if path == target or path.startswith(target.rstrip("/") + "/"):
            return (source + "/" + path[len(target) :].lstrip("/")).rstrip("/")
    return path


def is_below(path: str, base: str) -> bool:
    of_the_node = path in _ABOVE or path.startswith(apptainer.PREFIX + "/")
    return path.startswith(base + "/") and not of_the_node


def _show(staging: str, ranks: dict[int, list[Operation]], most: int) -> None:
    first, *others = sorted(ranks)
    print(f"\n{staging}: operations of a rank on {SHARED} (shared), on {SOFTWARE} (the site's software), in all;")
    print("  in brackets: in the job's folder")
    for rank in (first, *others):
        found = ranks[rank]
        shared, software = ([each for each in found if is_below(each.path, base)] for base in (SHARED, SOFTWARE))
        records = [each for each in shared if _JOB.match(each.path)]
        print(f"  rank {rank}: {len(shared)}, {len(software)}, {len(found)} [{len(records)}]")
        for (call, path), count in collections.Counter(records).most_common():
            print(f"    {count:5} {call:12} {path}  [job]")
    shared = [each for each in ranks[others[-1]] if is_below(each.path, SHARED)]
    for (call, path), count in collections.Counter(shared).most_common(most):
        print(f"    {count:5} {call:12} {path}")
