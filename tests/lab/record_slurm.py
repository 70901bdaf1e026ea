"""Record what the programs of a real Slurm print about the site of ``tests.mixed``: what ``capture`` asks them.

    .venv/bin/python -m tests.lab.record_slurm [SUITE...]    (root; a few seconds, and half a minute for a new suite)

A controller is enough: it prints nodes as they are configured. It runs in namespaces of its own, on a Debian suite's
root. The recordings are in ``tests/recordings``, one for each version.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from deployer.site.jobs.schedulers import slurm
from tests import mixed
from tests.lab import roots

FOLDER = Path(__file__).resolve().parents[1] / "recordings"
#: The suites of Slurm 22.05, 24.11 and 26.05, or newer.
SUITES = ("bookworm", "trixie", "sid")
_PACKAGES = ("munge", "slurm-wlm")
_ADDRESS = "10.9.9.9"  # not a loopback one: the resolver would not use it
_NOBODY = 65534
_CONF = f"""\
ClusterName=mixed
SlurmctldHost=login1({_ADDRESS})
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmctldLogFile=/run/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
MpiDefault=pmi2
{mixed.SETTINGS}{mixed.slurm_nodes(dict.fromkeys(mixed.NODES, _ADDRESS))}
{mixed.PARTITIONS}"""
_START = f"""\
set -e
root=$1
mount --bind "$root" /mnt
mount --rbind /dev /mnt/dev
mount -t proc proc /mnt/proc
mount -t tmpfs tmpfs /mnt/run
[ -d /mnt/etc/slurm ] || {{ echo "$root has no Slurm" >&2; exit 1; }}
mount -t tmpfs tmpfs /mnt/etc/slurm
cp "$2/slurm.conf" "$2/gres.conf" "$2/cgroup.conf" /mnt/etc/slurm
ip link set lo up
ip address add {_ADDRESS}/32 dev lo
hostname login1
mkdir -p /mnt/run/munge /mnt/run/slurmctld
head -c 1024 /dev/urandom >/mnt/run/key
chmod 600 /mnt/run/key
chroot /mnt munged --force --key-file /run/key --socket /run/munge/munge.socket.2 --pid-file /run/munge.pid \\
    --log-file /run/munge.log --seed-file /run/munge.seed 2>/dev/null
chroot /mnt slurmctld 2>/dev/null
for try in $(seq 50); do
    chroot /mnt sinfo --noheader >/dev/null 2>&1 && break
    sleep 0.2
done
shift 2
exec chroot /mnt setpriv --reuid {_NOBODY} --regid {_NOBODY} --clear-groups "$@"
"""


#: Lines that differ each time.
_TIMES = re.compile(r"Configuration data as of|BOOT_TIME|HASH_VAL|NEXT_JOB_ID")
#: A node of each kind.
_FIRSTS = ",".join(kind.nodes[0] for kind in mixed.KINDS)


def commands() -> list[list[str]]:
    """Return what ``capture`` asks, on the login node and on each node."""
    return [
        ["sinfo", "--version"],
        ["srun", "--mpi=list"],
        ["scontrol", "show", "config"],
        ["scontrol", "--oneliner", "--all", "show", "partition"],
        slurm.SINFO,
        *([*slurm.SINFO, "--nodes=" + node] for node in mixed.NODES),
        *(["scontrol", "--oneliner", "show", "node", nodes] for nodes in (*mixed.NODES, _FIRSTS)),
    ]


def record(root: Path) -> dict[str, list[str]]:
    """Return the lines that each command prints on a root, on both streams."""
    words = [" ".join(f"'{word}'" for word in argv) for argv in commands()]
    script = "\n".join(f"{each} 2>&1; echo '=== '$?" for each in words)
    with tempfile.TemporaryDirectory(prefix="record-slurm-") as folder:
        for name, text in (
            ("slurm.conf", _CONF),
            ("gres.conf", mixed.gres_conf()),
            ("cgroup.conf", "CgroupPlugin=cgroup/v1\n"),
        ):
            Path(folder, name).write_text(text)
        Path(folder).chmod(0o755)
        namespaces = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        argv = ["unshare", *namespaces, "bash", "-c", _START, "bash", str(root), folder, "bash", "-c", script]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    answers = re.split(r"^=== (\d+)\n", done.stdout, flags=re.MULTILINE)
    if len(answers) != 2 * len(words) + 1 or set(answers[1::2]) != {"0"}:
        raise SystemExit(f"{root}: not all commands were answered:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = ([line for line in text.splitlines() if not _TIMES.match(line)] for text in answers[::2])
    return {" ".join(argv): each for argv, each in zip(commands(), lines, strict=False)}


def main(suites: list[str]) -> None:
    for suite in suites or SUITES:
        root = Path("/") if suite == "bookworm" else roots.root(suite, _PACKAGES, "slurm")
        found = record(root)
        version = re.findall(r"\d+\.\d+", found["sinfo --version"][0])[0]
        target = FOLDER / f"slurm-{version}.json"
        target.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{suite}: {target.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
