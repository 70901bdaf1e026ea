"""Record what the programs of a real Grid Engine print, with two queues and GPUs: what ``capture`` asks them.

    .venv/bin/python -m tests.lab.record_gridengine    (root; half a minute)

The recording is in ``tests/recordings``. What a capture must find in it is in ``tests.mixed``: of a machine of 2 cores.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.lab import Lab, gridengine

TARGET = Path(__file__).resolve().parents[1] / "recordings" / "gridengine-8.1.json"
_QUEUE = "fast"
_SETUP = f"""
set -e
qconf -sc >/tmp/complexes
echo 'gpu gpu INT <= YES YES 0 0' >>/tmp/complexes
qconf -Mc /tmp/complexes
qconf -aattr exechost complex_values gpu=4 cn2
qconf -sq batch >/tmp/queue
sed -i -e 's/^qname.*/qname {_QUEUE}/' -e 's/^hostlist.*/hostlist cn2/' -e 's/^h_rt.*/h_rt 12:0:0/' /tmp/queue
qconf -Aq /tmp/queue
sleep 5
"""
_COMMANDS = (
    "qconf -sql", "qstat -help", "qconf -sc", "qhost -q -F gpu -xml", "qconf -se cn2", "qconf -spl",
    f"qconf -sp {gridengine.ENVIRONMENT}", "qconf -sq batch", f"qconf -sq {_QUEUE}",
)  # fmt: skip


def start(lab: Lab) -> None:
    """Start Grid Engine on a lab of two nodes, with a second queue, and GPUs on one of them."""
    gridengine.start(lab)
    lab.sh("login1", "root", ["bash", "-lc", _SETUP], timeout=60).check("set up the queues")


def main() -> None:
    lab = Lab("record-gridengine")
    try:
        lab.up(nodes=2)
        start(lab)
        found = {}
        for command in _COMMANDS:
            said = lab.sh("login1", "alice", ["bash", "-lc", f"{command} || :"]).check(shlex.quote(command))
            found[command] = said.stdout.splitlines()
    finally:
        lab.down(purge=True)
    TARGET.write_text(json.dumps(found, indent=1) + "\n")
    print(TARGET.name)


if __name__ == "__main__":
    main()
