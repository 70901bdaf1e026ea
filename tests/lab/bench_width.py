"""`scripts/bench width`: how an image's file reaches the nodes of a job: each reads it, sbcast, or a chain over srun.

The lab's /home is not on its network, so a file server on login1 stands for the shared file system. All lines have a
limit (tc): login1's is wider, as a storage's is.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

from tests.lab import Lab

#: Each node reads the file from the server; only the first does, and sbcast sends it; or each sends on what it receives
#: while it receives it.
_JOB = r"""
cd /tmp; rm -f image; nodes=$(scontrol show hostnames | tr '\n' ' '); cat >chain.py <<'END'
import os, socket, subprocess, sys
nodes, me = sys.argv[1].split(), os.uname().nodename
place, after = nodes.index(me), nodes[nodes.index(me) + 1:][:1]
listener = socket.create_server(("", 7070)) if place else None
subprocess.run(["true"])
if place: source = listener.accept()[0].makefile("rb")
else: source = subprocess.Popen(["curl", "-s", "http://10.99.0.1:7071/image"], stdout=subprocess.PIPE).stdout
if after:
    for _ in range(600):
        try: onward = socket.create_connection((after[0], 7070)); break
        except OSError: import time; time.sleep(0.1)
with open("/tmp/image", "wb") as out:
    while True:
        piece = source.read(1 << 18)
        if not piece: break
        out.write(piece)
        if after: onward.sendall(piece)
END
begun=$(date +%s.%N)
case $1 in
each) srun --mpi=none curl -s -o /tmp/image http://10.99.0.1:7071/image;;
sbcast) curl -s -o /tmp/source http://10.99.0.1:7071/image; sbcast -f /tmp/source /tmp/image; rm /tmp/source;;
chain) sbcast -f chain.py /tmp/chain2.py; srun --mpi=none python3 /tmp/chain2.py "$nodes";;
esac
ended=$(date +%s.%N)
[ $(srun --mpi=none stat -c %s /tmp/image | sort -u | wc -l) = 1 ] && echo "$ended - $begun" | bc
srun --mpi=none rm -f /tmp/image
"""


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    command = verbs.add_parser("width")
    command.set_defaults(run=measure)
    command.add_argument("--lab", default="bench-width", help="the lab to make, and to remove at the end")
    command.add_argument("--nodes", default="2,4,8,16", help="(default: %(default)s)")
    command.add_argument("--mb", type=int, default=32, help="the file's size (default: %(default)s)")
    command.add_argument("--node-mbit", type=int, default=100, help="a node's line (default: %(default)s)")
    command.add_argument("--server-mbit", type=int, default=400, help="the server's line (default: %(default)s)")


def measure(args: argparse.Namespace) -> None:
    """Print a row for each number of nodes: seconds, and what the lines alone need."""
    counts = [int(count) for count in args.nodes.split(",")]
    lab = Lab(args.lab)
    lab.up(nodes=max(counts))
    try:
        lab.sh("login1", "root", f"mkdir /tmp/s; head -c {args.mb}M /dev/urandom >/tmp/s/image").check("the file")
        serve = "cd /tmp/s; setsid python3 -m http.server 7071 >/dev/null 2>&1 </dev/null &"
        lab.sh("login1", "root", serve).check("the server")
        lab.fault("link-slow", "login1", f"{args.server_mbit}mbit")
        for node in lab.definition().site.compute:
            lab.fault("link-slow", node, f"{args.node_mbit}mbit")
        (lab.home / "alice/width.sh").write_text("#!/bin/bash\n" + _JOB)
        alone = args.mb * 8.389 / args.node_mbit
        print(f"load {os.getloadavg()[0]:.1f}; a node's line alone needs {alone:.1f} s")
        for count in counts:
            cells = []
            for way in ("each", "sbcast", "chain"):
                words = f"sbatch --wait -N{count} -n{count} -o out.txt width.sh {way} >/dev/null; cat out.txt"
                done = lab.sh("login1", "alice", words, timeout=600)
                seconds = [line for line in done.stdout.splitlines() if re.fullmatch(r"[\d.]+", line)]
                cells.append(f"{way} {float(seconds[0]):.1f}" if seconds else f"{way} failed: {done.stdout}")
            print(f"{count:>3} nodes: " + "; ".join(cells), flush=True)
    finally:
        lab.down(purge=True)
