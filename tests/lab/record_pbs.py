"""Record what the programs of a real PBS print about the site of ``tests.mixed``: what ``capture`` asks them.

    DEPLOYER_OPENPBS=ARCHIVE .venv/bin/python -m tests.lab.record_pbs    (root; half a minute, and 4 minutes at first)

The recording is in ``tests/recordings``. What a capture must find in it is in ``tests.mixed``.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from tests import mixed
from tests.lab import Lab, openpbs
from tests.lab.site import LOGIN

TARGET = Path(__file__).resolve().parents[1] / "recordings" / "pbs-23.06.json"
_COMMANDS = ("qstat --version", "qstat -Qf", "qstat -Bf", "pbsnodes -av", "id -un", "id -Gn")
#: Lines that differ each time.
_TIMES = re.compile(r" *last_state_change_time|.*license")
_DIVIDE = f"""
set -e
. {openpbs.PREFIX}/settings.sh
PATH="$PATH:{openpbs.PREFIX}/sbin"
cat >/tmp/vnodes
pbs_mom -s insert divided /tmp/vnodes
pkill -x pbs_mom
while pgrep -x pbs_mom >/dev/null; do sleep 0.1; done
. {openpbs.PREFIX}/libexec/pbs_db_env
pbs_mom
"""
_SETUP = rf"""
set -e
qmgr -c 'delete node {mixed.DIVIDED}'
qmgr -c 'create node {mixed.DIVIDED}'
for try in $(seq 100); do pbsnodes -av | grep -q '^{mixed.DIVIDED}\[1\]' && break; sleep 0.1; done
qmgr
sed -i 's/^resources: "/&Qlist, cpu_type, gpu_model, /' /var/spool/pbs/sched_priv/sched_config
pkill -HUP pbs_sched
"""


def start(lab: Lab) -> None:
    """Start PBS on a lab of five nodes, as ``tests.mixed`` has it."""
    openpbs.start(lab)
    lab.sh(mixed.DIVIDED, "root", ["bash", "-c", _DIVIDE], stdin=mixed.VNODES).check("divide a host into vnodes")
    lab.sh(LOGIN, "root", ["bash", "-lc", _SETUP], timeout=60, stdin=mixed.PBS).check("set up the queues")


def main() -> None:
    lab = Lab("record-pbs")
    try:
        lab.up(nodes=5)
        start(lab)
        found = {}
        for command in _COMMANDS:
            said = lab.sh(LOGIN, "alice", ["bash", "-lc", command]).check(shlex.quote(command))
            found[command] = [line for line in said.stdout.splitlines() if not _TIMES.match(line)]
    finally:
        lab.down(purge=True)
    TARGET.write_text(json.dumps(found, indent=1) + "\n")
    print(TARGET.name)


if __name__ == "__main__":
    main()
