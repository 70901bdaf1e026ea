"""`scripts/bench staging`: what a rank asks of the shared file system, call by call, by how the image is staged.

A real job on one lab node with two ranks: /home is the shared file system, /opt the site's software. ``strace`` stands
before ch-run in job.sh and writes down what each rank does, in the probe's step and in the payload's. Paths inside the
container are led back to what is bound there.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.lab.cluster import Lab
from tests.lab.engine import take_engine

ROOT = Path(__file__).resolve().parents[2]
SHARED, SOFTWARE = "/home", "/opt"
_NAME = "bench"
#: Calls on an open file that a server hears of; a path in any call (%file) is one as well.
_ON_DESCRIPTORS = "read,pread64,readv,write,pwrite64,writev,getdents64,fsync,fdatasync,ftruncate,fallocate,close,fchmod"
_LINE = re.compile(r"^(?P<pid>\d+) +(?P<call>\w+)\((?P<args>.*)\) += (?P<result>\S+)")
_CHILD = re.compile(r"^(\d+) +(?:clone|clone3|fork|vfork)\(.*\) += (\d+)")
_UNFINISHED = re.compile(r"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPEN_FILE = re.compile(r"\d+<(/[^>]*)>")


class Operation(NamedTuple):
    """A call that names a path, or an open file, by the host's own name for it."""

    call: str
    path: str


def measure(args: argparse.Namespace) -> None:
    """Print, for each form, how many operations each rank made on the shared file system, and which."""
    if not shutil.which("strace"):
        sys.exit("bench: error: strace is not here (Debian package strace)")
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(args.lab)
        lab.up(nodes=1)
        try:
            _prepare(lab, Path(folder), args)
            for staging in ("folder", "memory", "squashfs"):
                _show(staging, _ranks(lab, staging, shlex.split(args.command)), args.paths)
        finally:
            lab.down(purge=True)


def _prepare(lab: Lab, folder: Path, args: argparse.Namespace) -> None:
    """Push a bundle with a plan for a node that holds two ranks."""
    record = yaml.safe_load((ROOT / "site_profiles" / "lab.yaml").read_text())
    record["partitions"]["batch"]["node"]["cores"] = 2
    profile, bundle = folder / "lab.yaml", folder / "bundle.tar"
    profile.write_text(yaml.safe_dump(record))
    deployer = [str(Path(sys.executable).with_name("deployer"))]
    pack = [*deployer, "pack", "--name", _NAME, "--version", "1", "--site", str(profile), "-o", str(bundle)]
    if args.rootfs:
        _run([*pack, "--rootfs", args.rootfs])
    else:
        with take_engine() as engine:
            _run([*pack, "--image", args.image], DOCKER_HOST=engine.docker_host)
    _run([*deployer, "push", str(bundle), str(profile), "--ssh-config", str(lab.ssh_config)])
    squash = f"python3 $HOME/deployer/deployer.pyz install --squashfs $HOME/deployer/bundles/{_NAME}-1.tar"
    lab.sh("login1", "alice", squash, timeout=600).check("the SquashFS file")


def _run(argv: list[str], **environment: str) -> None:
    subprocess.run(
        argv, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=900, env={**os.environ, **environment}
    )


def _ranks(lab: Lab, staging: str, command: list[str]) -> dict[int, list[Operation]]:
    """Run the job under strace and return the operations of each rank, by its number, both steps together."""
    words = " ".join(map(shlex.quote, command))
    tool = "python3 $HOME/deployer/deployer.pyz"
    script = f"""
set -e
rm -rf $HOME/traces; mkdir $HOME/traces
cat >$HOME/traced.sh <<'END'
#!/bin/sh
exec strace -f -y -s 4096 -e trace=%file,%process,setns,{_ON_DESCRIPTORS} \\
    -o /tmp/trace.$SLURM_STEP_ID.$SLURM_PROCID "$@"
END
chmod +x $HOME/traced.sh
job=$({tool} run {_NAME} --nodes 1 --ranks-per-node 2 --threads 1 --staging {staging} --dry-run --json -- {words} |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["folder"])')
sed -i "s#^container=(\\(ch-run\\|sh\\)#container=($HOME/traced.sh \\1#" $job/job.sh
sed -i 's/^container.4.=.*//' $job/job.sh  # the words have moved by one
sbatch --wait $job/job.sh >/dev/null || {{ cat $job/output.log; exit 1; }}
cp $job/job.sh $HOME/traces/
srun -N1 sh -c 'cp /tmp/trace.* $HOME/traces/; rm /tmp/trace.*'
"""
    lab.sh("login1", "alice", script, timeout=600).check("the traced job")
    traces = lab.home / "alice" / "traces"
    binds = _binds((traces / "job.sh").read_text())
    found: dict[int, list[Operation]] = collections.defaultdict(list)
    for path in sorted(traces.glob("trace.*")):
        found[int(path.name.rpartition(".")[2])] += operations(path.read_text(errors="replace"), binds)
    return dict(found)


def _binds(script: str) -> list[tuple[str, str]]:
    """Return where paths of the container are on the host, the longest first, out of job.sh."""
    own = "/node-local"
    found = [(target, source) for source, target in re.findall(r"--bind=([^:\s]+):([^\s]+)", script)]
    image = re.search(r"^image=(\S+)$", script, re.MULTILINE)
    if image is None:
        raise AssertionError("job.sh names no image")
    found.append(("/", image[1]))
    found += [(path, path) for path in ("/proc", "/dev", "/sys", "/tmp")]
    mapped = [(target, source.replace('"$stage"', own).strip("'")) for target, source in found]
    return sorted(mapped, key=lambda pair: -len(pair[0]))


def operations(trace: str, binds: list[tuple[str, str]]) -> Iterator[Operation]:
    """Yield what the processes of a trace did by path, by the host's names; a process that has changed its root, and
    those that it starts, see what ``binds`` say."""
    inside: set[str] = set()
    for line in _whole(trace.splitlines()):
        child = _CHILD.match(line)
        if child and child[1] in inside:
            inside.add(child[2])
        found = _LINE.match(line)
        if not found:
            continue
        pid, call, words = found["pid"], found["call"], found["args"]
        if call in ("pivot_root", "chroot", "setns") and found["result"] == "0":
            inside.add(pid)
            continue
        for path in dict.fromkeys(_paths(call, words)):
            yield Operation(call, _on_host(path, binds) if pid in inside else path)


def _whole(lines: list[str]) -> Iterator[str]:
    """Yield lines with calls that were interrupted by another process put together."""
    begun: dict[tuple[str, str], str] = {}
    for line in lines:
        unfinished, resumed = _UNFINISHED.match(line), _RESUMED.match(line)
        if unfinished:
            begun[unfinished[1], unfinished[2]] = f"{unfinished[1]} {unfinished[2]}({unfinished[3]}"
        elif resumed:
            yield begun.pop((resumed[1], resumed[2]), f"{resumed[1]} {resumed[2]}(") + resumed[3]
        else:
            yield line


def _paths(call: str, words: str) -> Iterator[str]:
    if call == "execve":  # the other strings are the program's arguments
        yield from _STRING.findall(words)[:1]
    elif call in _ON_DESCRIPTORS.split(","):
        yield from _OPEN_FILE.findall(words)[:1]
    else:
        for text in _STRING.findall(words)[:2]:
            if text.startswith("/"):
                yield text
            elif text:
                base = _OPEN_FILE.search(words) or re.search(r"AT_FDCWD<(/[^>]*)>", words)
                if base:
                    yield f"{base[1]}/{text}"


def _on_host(path: str, binds: list[tuple[str, str]]) -> str:
    for target, source in binds:
        if path == target or path.startswith(target.rstrip("/") + "/"):
            return (source + "/" + path[len(target) :].lstrip("/")).rstrip("/")
    return path


def _show(staging: str, ranks: dict[int, list[Operation]], most: int) -> None:
    first, *others = sorted(ranks)
    print(f"\n{staging}: operations of a rank on {SHARED} (shared), on {SOFTWARE} (the site's software), in all")
    for rank in (first, *others):
        found = ranks[rank]
        shared, software = ([each for each in found if each.path.startswith(base + "/")] for base in (SHARED, SOFTWARE))
        print(f"  rank {rank}: {len(shared)}, {len(software)}, {len(found)}")
    shared = [each for each in ranks[others[-1]] if each.path.startswith(SHARED + "/")]
    for (call, path), count in collections.Counter(shared).most_common(most):
        print(f"    {count:5} {call:12} {path}")
