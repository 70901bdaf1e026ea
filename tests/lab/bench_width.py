"""`scripts/bench width`: how an image reaches the nodes of a job: each reads the bundle, or they send it on.

Real jobs with the product's own staging step, from the signal to the last node's answer. The lab's /home is not on its
network, so that each node mounts a file system (FUSE) that reads from a server on login1. All lines have a limit (tc):
login1's is wider, as a storage's is. ``sbcast`` sends the bare file, which is not unpacked.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import mfusepy  # type: ignore[import-untyped]

from tests.lab import Lab, bench_staging

_BUNDLES = "/home/alice/deployer/bundles"
_NAME = "bench"
_SERVER = r"""
import os, socketserver, struct, sys
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        with open(sys.argv[1], "rb") as file:
            while True:
                asked = self.request.recv(16, 8 << 5)
                if len(asked) < 16:
                    break
                at, size = struct.unpack("QQ", asked)
                self.request.sendall(os.pread(file.fileno(), size, at).ljust(size, b"\0"))
socketserver.ThreadingTCPServer.allow_reuse_address = socketserver.ThreadingTCPServer.daemon_threads = True
socketserver.ThreadingTCPServer(("", 7071), Handler).serve_forever()
"""
_FILES = r"""
import os, socket, stat, struct, sys, threading
import mfusepy  # type: ignore[import-untyped]
name, size = sys.argv[1], int(sys.argv[2])
own = threading.local()
class Files(mfusepy.Operations):
    def getattr(self, path, fh=None):
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path != "/" + name:
            raise mfusepy.FuseOSError(2)
        return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": size, "st_uid": 2001, "st_gid": 2001}
    def readdir(self, path, fh):
        return [".", "..", name]
    def read(self, path, length, at, fh):
        length = max(min(length, size - at), 0)
        if not hasattr(own, "server"):
            own.server = socket.create_connection(("10.99.0.1", 7071))
        own.server.sendall(struct.pack("QQ", at, length))
        return own.server.recv(length, socket.MSG_WAITALL)
mfusepy.FUSE(Files(), sys.argv[3], foreground=True, allow_other=True, ro=True)
"""
_SBCAST = r"""#!/bin/bash
begun=$(date +%s.%N)
sbcast -f {source} /dev/shm/image && echo "took $(echo "$(date +%s.%N) - $begun" | bc)"
srun --mpi=none rm -f /dev/shm/image
"""


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("width")
    command.set_defaults(run=measure)
    command.add_argument("--lab", default="bench-width", help="the lab to make, and to remove at the end")
    command.add_argument("--nodes", default="4,8,16", help="(default: %(default)s)")
    command.add_argument("--mb", type=int, default=32, help="the file's size (default: %(default)s)")
    command.add_argument("--node-mbit", type=int, default=100, help="a node's line (default: %(default)s)")
    command.add_argument("--server-mbit", type=int, default=400, help="the server's line (default: %(default)s)")
    command.add_argument("--ways", default="each,relay", help="of: each,relay,sbcast (default: %(default)s)")


def measure(args: argparse.Namespace) -> None:
    """Print a row for each number of nodes: seconds of each round, and what the lines alone need."""
    counts = [int(count) for count in args.nodes.split(",")]
    lab = Lab(args.lab)
    lab.up(nodes=max(counts))
    try:
        _prepare(lab, args)
        print(f"load {os.getloadavg()[0]:.1f}; a node's line alone needs {args.mb * 8.389 / args.node_mbit:.1f} s")
        for count in counts:
            seconds: dict[str, list[str]] = {way: [] for way in args.ways.split(",")}
            for _ in range(args.rounds):
                for way, cells in seconds.items():
                    cells.append(_took(lab, way, count))
            cells = [f"{way} {' '.join(each)}" for way, each in seconds.items()]
            print(f"{count:>3} nodes: {'; '.join(cells)}; load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        lab.down(purge=True)


def _prepare(lab: Lab, args: argparse.Namespace) -> None:
    """Push a bundle of incompressible bytes, mount it on the nodes through the network, and limit all lines."""
    home = lab.home / "alice"
    with tempfile.TemporaryDirectory() as folder:
        rootfs, bundle = Path(folder, "rootfs"), Path(folder, "bundle.tar")
        (rootfs / "bin").mkdir(parents=True)
        shutil.copy("/usr/bin/busybox", rootfs / "bin/sh")
        for number in range(args.mb // 4):
            (rootfs / f"bytes{number}").write_bytes(os.urandom(4 << 20))
        deployer = str(Path(sys.executable).with_name("deployer"))
        name = ["--name", _NAME, "--version", "1"]
        bench_staging._run([deployer, "pack", *name, "--rootfs", str(rootfs), "--site", "lab", "-o", str(bundle)])
        bench_staging._run([deployer, "push", str(bundle), "lab", "--ssh-config", str(lab.ssh_config)])
    (source,) = lab.sh("login1", "alice", f"ls {_BUNDLES}").stdout.split()
    size = lab.sh("login1", "alice", f"stat -c %s {_BUNDLES}/{source}").stdout.strip()
    (home / "server.py").write_text(_SERVER)
    (home / "files.py").write_text(_FILES)
    shutil.copy(str(mfusepy.__file__), home / "mfusepy.py")
    beside = ">/dev/null 2>&1 </dev/null &"
    serve = f"setsid python3 ~/server.py {_BUNDLES}/{source} {beside}"
    lab.sh("login1", "alice", serve).check("the server")
    lab.fault("link-slow", "login1", f"{args.server_mbit}mbit")
    for node in lab.definition().site.compute:
        lab.fault("link-slow", node, f"{args.node_mbit}mbit")
        mount = f"setsid python3 /home/alice/files.py {source} {size} {_BUNDLES} {beside}\n"
        wait = f"until mountpoint -q {_BUNDLES}; do sleep 0.1; done"
        lab.sh(node, "root", mount + wait, timeout=60).check("the mount")


def _took(lab: Lab, way: str, count: int) -> str:
    """Return the seconds of one job, in the words of a cell."""
    tool = "python3 $HOME/deployer/deployer.pyz"
    if way == "sbcast":
        (lab.home / "alice/job.sh").write_text(_SBCAST.replace("{source}", f"{_BUNDLES}/*"))
    script = f"""
if [ {way} != sbcast ]; then
    job=$({tool} run {_NAME} --nodes {count} --staging memory --force --dry-run --json -- /bin/sh |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["folder"])')
    sed 's/ --relay / /; s/ --reader .*"${{root\\[@\\]}}"//' $job/job.sh >job.sh
    [ {way} = each ] || sed -i 's/--into "$stage" /&--relay /' job.sh
    sed -i 's/^collect || /begun=$(date +%s.%N); collect \\&\\& \\
        echo "took $(echo "$(date +%s.%N) - $begun" | bc)" \\&\\& exit || /' job.sh
    cp job.sh $job/job.sh; log=$job/output.log
fi
sbatch --wait -N{count} -n{count} -o batch.log ${{job:-.}}/job.sh >/dev/null; cat batch.log $log
grep -l '"reason": "' $job/ranks/node-*.json
rm -rf batch.log $job
"""
    done = lab.sh("login1", "alice", script, timeout=600)
    seconds = re.search(r"^took ([\d.]+)$", done.stdout, re.MULTILINE)
    readers = done.stdout.count("/ranks/node-")
    told = f" ({readers} read it)" if readers else ""
    return f"{float(seconds[1]):.1f}{told}" if seconds else f"failed: {done.stdout[-900:]}{done.stderr[:900]}"
