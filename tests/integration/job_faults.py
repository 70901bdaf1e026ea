"""Faults of jobs that are really produced on the lab, and what a user is to see of each: a table, and what makes them.

``python -m tests.integration.job_faults LINES`` prints each fault of docs/evidence/faults.md with its whole sentence.
LINES is what ``test_job_faults.py`` writes if DEPLOYER_FAULTS names a file; a second file is of an earlier commit.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deployer.contract.base.text import printable
from tests.integration.conftest import PYTHON, WORKSPACE
from tests.lab import Lab
from tests.lab.disks import disk

BUNDLE = "faults"
#: A payload that lives until something ends it, and when both of its ranks have begun.
LONG = ("python3", "-c", "import time; print('begun', flush=True); time.sleep(600)")
BEGUN = "[ $(grep -c begun $folder/output.log) = 2 ]"
#: As LONG, and ranks with MPI.
TOGETHER = ("python3", "-m", "mpi4py", "-c", LONG[2])
RUNS = "grep -q -x -e RUNNING <(squeue --noheader --jobs $id --format %T)"
ENDS = "timeout 90 sh -c 'while squeue --noheader --jobs $id | grep -q .; do sleep 0.2; done'"
STAGES = "ls -d /dev/shm/deployer-stage-*"
LIBRARY = "/opt/intel/mpi/2021.15/lib/libmpi.so.12"
TOOL = "/opt/python/3.6/bin"
#: A second deployer.pyz, which no fault touches, for `status`.
LOOK = "/home/alice/look.pyz"
PROGRAM = "/home/alice/programs/program"
BOUND = "--bind /home/alice/programs:/data"
#: x86-64's `true`, marked as of Itanium, which nothing emulates.
FOREIGN = (
    "login1",
    (
        f"mkdir -p /home/alice/programs; cp /bin/true {PROGRAM}; "
        f"printf '\\062' | dd of={PROGRAM} bs=1 seek=18 conv=notrunc 2>&1"
    ),
)
ALL = ("login1", "cn1", "cn2")
NODES = ("cn1", "cn2")

#: A node, or "lab" for a fault of ``tests.lab.faults``, and what is done there as root; $folder and $id are the job's.
Act = tuple[str, str]


@dataclass(frozen=True)
class Fault:
    """A fault and what a user is to see.

    Attributes:
        text: the fault, in words.
        state: the batch system's word for the job's end; empty: no job exists.
        code: the finding that comes first; empty: none.
        words: what its sentence contains, a regular expression: what Slurm forwards of a rank that it kills varies.
        before: what is done before the job is submitted.
        after: what mends it, done last.
        options: of ``run``.
        command: the payload.
        shell: what the user's shell does before it calls ``run``.
        at: a condition on login1 (a node and a script: there), waited for before ``then``.
        then: what is done to the running job.
        disk_mb: the size of a disk for the jobs' folder of this row, or 0.
        slow: takes minutes, because the batch system waits.
    """

    text: str
    state: str
    code: str
    words: str = ""
    before: tuple[Act, ...] = ()
    after: tuple[Act, ...] = ()
    options: str = ""
    command: tuple[str, ...] = ("true",)
    shell: str = ":"
    at: str | Act = ""
    then: tuple[Act, ...] = ()
    disk_mb: int = 0
    slow: bool = False


@dataclass(frozen=True)
class Seen:
    """What the user saw: of the batch system, in ``status``, and the codes of result.json."""

    state: str
    sentence: str
    remedy: str
    codes: tuple[str, ...]

    def is_right(self, fault: Fault) -> bool:
        first = fault.code in self.sentence
        return self.state == fault.state and first and re.search(fault.words, self.sentence) is not None


def covered(path: str, *nodes: str) -> dict[str, tuple[Act, ...]]:
    """Return what hides a folder, or a file, of nodes, and what shows it again."""
    cover = f"if [ -d {path} ]; then mount -t tmpfs none {path}; else mount --bind /dev/null {path}; fi"
    return {
        "before": tuple((node, cover) for node in nodes),
        "after": tuple((node, f"umount -l {path}") for node in nodes),
    }


def full(path: str, *nodes: str) -> dict[str, tuple[Act, ...]]:
    """Return what puts a full file system at a path of nodes."""
    fill = f"mount -t tmpfs -o size=64k,mode=1777 none {path}; head -c 1M /dev/zero >{path}/.fill; true"
    return {
        "before": tuple((node, fill) for node in nodes),
        "after": tuple((node, f"umount -l {path}") for node in nodes),
    }


def python(code: str) -> tuple[str, ...]:
    return ("python3", "-c", code)


def mpi(code: str) -> tuple[str, ...]:
    return ("python3", "-m", "mpi4py", "-c", "from mpi4py import MPI; rank = MPI.COMM_WORLD.rank\n" + code)


def one(code: str) -> tuple[str, ...]:
    """Return a payload whose second rank does ``code`` while the first waits for it."""
    return python(f"import os, signal, sys, time\nif os.environ['SLURM_PROCID'] == '1': {code}\ntime.sleep(600)")


FAULTS: dict[str, Fault] = {
    # ---- nodes
    "node-down": Fault(
        "an admin sets a node DOWN",
        "NODE_FAIL",
        "job.ended",
        "a node of it died",
        command=LONG,
        at=BEGUN,
        then=(("login1", "scontrol update nodename=cn2 state=down reason=test"),),
        after=(("login1", "scontrol update nodename=cn2 state=resume || true"),),
    ),
    "first-node-down": Fault(
        "an admin sets the first node DOWN, on which the script runs",
        "NODE_FAIL",
        "job.ended",
        "a node of it died",
        command=LONG,
        at=BEGUN,
        then=(("login1", "scontrol update nodename=cn1 state=down reason=test"),),
        after=(("login1", "scontrol update nodename=cn1 state=resume || true"),),
    ),
    "slurmd-killed": Fault(
        "slurmd of the second node ends",
        "NODE_FAIL",
        "job.ended",
        "a node of it died",
        command=LONG,
        at=BEGUN,
        then=(("lab", "kill-slurmd cn2"),),
        after=(("lab", "start-slurmd cn2"),),
        slow=True,
    ),
    "slurmd-dead": Fault(
        "slurmd of the second node has ended before the job starts",
        "FAILED",
        "job.ended",
        "failed on node cn2: ",
        before=(("lab", "kill-slurmd cn2"),),
        after=(("lab", "start-slurmd cn2"),),
        slow=True,
    ),
    "slurmd-dead-staged": Fault(
        "the same, with a staged image",
        "FAILED",
        "job.ended",
        "failed on node cn2: ",
        options="--staging memory",
        before=(("lab", "kill-slurmd cn2"),),
        after=(("lab", "start-slurmd cn2"),),
        slow=True,
    ),
    "slurmd-hangs": Fault(
        "slurmd of the second node hangs before the job starts",
        "NODE_FAIL",
        "job.ended",
        "failed on node cn2: ",
        before=(("cn2", "pkill -STOP -x slurmd"),),
        after=(("cn2", "pkill -CONT -x slurmd"),),
        slow=True,
    ),
    "node-off": Fault(
        "the second node loses power",
        "NODE_FAIL",
        "job.ended",
        "a node of it died",
        command=LONG,
        at=BEGUN,
        then=(("lab", "kill-node cn2"),),
        after=(("lab", "start-node cn2"),),
        slow=True,
    ),
    "first-node-off": Fault(
        "the first node loses power",
        "NODE_FAIL",
        "job.ended",
        "a node of it died",
        command=LONG,
        at=BEGUN,
        then=(("lab", "kill-node cn1"),),
        after=(("lab", "start-node cn1"),),
        slow=True,
    ),
    "link-cut": Fault(
        "the second node's network link is cut",
        "NODE_FAIL",
        "job.ended",
        "a node of it died",
        command=TOGETHER,
        at=BEGUN,
        then=(("lab", "link-down cn2"),),
        after=(("lab", "link-up cn2"),),
        slow=True,
    ),
    "drained-before": Fault(
        "a node is drained before the job is submitted",
        "PENDING",
        "",
        before=(("login1", "scontrol update nodename=cn2 state=drain reason=test"),),
        after=(("login1", "scontrol update nodename=cn2 state=resume || true"),),
    ),
    "drained-meanwhile": Fault(
        "a node is drained while the job runs",
        "COMPLETED",
        "",
        command=python("import time; print('begun', flush=True); time.sleep(3)"),
        at=BEGUN,
        then=(("login1", "scontrol update nodename=cn2 state=drain reason=test"),),
        after=(("login1", "scontrol update nodename=cn2 state=resume || true"),),
    ),
    # ---- cancelled
    "cancelled": Fault(
        "its owner cancels the running job",
        "CANCELLED",
        "job.stopped",
        "cancelled",
        command=LONG,
        at=BEGUN,
        then=(("login1", "setpriv --reuid alice --clear-groups scancel $id"),),
    ),
    "cancelled-by-root": Fault(
        "root cancels the running job",
        "CANCELLED",
        "job.stopped",
        "cancelled",
        command=LONG,
        at=BEGUN,
        then=(("login1", "scancel $id"),),
    ),
    "cancelled-pending": Fault(
        "the job is cancelled before it starts",
        "CANCELLED",
        "job.ended",
        "its owner or the site cancelled it",
        options="--directive=--begin=now+600",
        then=(("login1", "scancel $id"),),
    ),
    "cancelled-starting": Fault(
        "the job is cancelled while its nodes are looked at",
        "CANCELLED",
        "job.stopped",
        "cancelled",
        at=f"{RUNS} && [ -d $folder/hosts ]",
        then=(("login1", "scancel $id"),),
    ),
    "cancelled-staging": Fault(
        "the job is cancelled while the image is staged",
        "CANCELLED",
        "job.stopped",
        "cancelled",
        options="--staging memory",
        at=("cn2", STAGES),
        then=(("login1", "scancel $id"),),
    ),
    "killed-whole": Fault(
        "the job is cancelled with SIGKILL, which its script cannot handle",
        "CANCELLED",
        "job.stopped",
        "cancelled",
        command=LONG,
        at=BEGUN,
        then=(("login1", "scancel --signal=KILL --full $id; scancel $id"),),
    ),
    "step-cancelled": Fault(
        "an admin cancels the payload's step alone",
        "FAILED",
        "payload.failed",
        "CANCELLED",
        command=LONG,
        at=BEGUN,
        then=(
            ("login1", "scancel $(squeue --noheader --steps --jobs $id --format %i | grep -v batch | sort | tail -1)"),
        ),
    ),
    "requeued": Fault(
        "the job asks to be requeued (--directive=--requeue), and an admin requeues it",
        "COMPLETED",
        "",
        options="--directive=--requeue",
        command=python(
            "import os, time\nprint('begun', flush=True)\n"
            "time.sleep(2 if os.environ.get('SLURM_RESTART_COUNT') else 60)"
        ),
        at=BEGUN,
        then=(("login1", "scontrol requeue $id; scontrol update jobid=$id starttime=now"),),
        slow=True,
    ),
    "held": Fault(
        "an admin holds the job",
        "PENDING",
        "",
        options="--directive=--begin=now+600",
        then=(("login1", "scontrol hold $id"),),
    ),
    # ---- time
    "time-limit": Fault(
        "the job reaches its time limit",
        "TIMEOUT",
        "job.time-limit",
        "00:01:00",
        options="--time 00:01:00",
        command=LONG,
        slow=True,
    ),
    "never-ends": Fault(
        "one rank ends well, the other never",
        "TIMEOUT",
        "job.time-limit",
        "00:01:00",
        options="--time 00:01:00",
        command=mpi("if rank: import time; time.sleep(600)"),
        slow=True,
    ),
    "others-wait": Fault(
        "one rank raises without -m mpi4py, and the other waits for it",
        "TIMEOUT",
        "job.time-limit",
        "KeyError: 'alone'",
        options="--time 00:01:00",
        command=python(
            "from mpi4py import MPI\nif MPI.COMM_WORLD.rank: raise KeyError('alone')\nMPI.COMM_WORLD.Barrier()"
        ),
        slow=True,
    ),
    # ---- disks
    "tmp-full": Fault("/tmp of a node is full", "FAILED", "runtime.space", "/tmp", **full("/tmp", "cn2")),
    "tmp-full-first": Fault("/tmp of the first node is full", "FAILED", "runtime.space", "/tmp", **full("/tmp", "cn1")),
    "tmp-full-staged": Fault(
        "/tmp of the first node is full, with a staged image",
        "FAILED",
        "runtime.space",
        "/tmp",
        options="--staging memory",
        **full("/tmp", "cn1"),
    ),
    "shm-full": Fault(
        "/dev/shm of a node is full, in which the image is staged",
        "FAILED",
        "stage.failed",
        "/dev/shm",
        options="--staging memory",
        **full("/dev/shm", "cn2"),
    ),
    "shm-full-folder": Fault(
        "/dev/shm of a node is full; nothing is staged", "COMPLETED", "", command=mpi(""), **full("/dev/shm", "cn2")
    ),
    "folder-full": Fault(
        "the disk with the job's folder fills up",
        "FAILED",
        "payload.failed",
        "No space left on device",
        disk_mb=128,
        command=python("f = open('/deployer/job/big', 'wb', 0)\nwhile True: f.write(bytes(1 << 20))"),
    ),
    "folder-read-only": Fault(
        "the disk with the job's folder becomes read-only",
        "FAILED",
        "job.unfinished",
        "cannot be written: Read-only",
        disk_mb=128,
        command=LONG,
        at=BEGUN,
        then=(("cn1", "mount -o remount,abort $disk; pkill -f '^python3 -c import time'"),),
    ),
    "quota": Fault(
        "an error about a disk quota in the payload (a stand-in: the program raises it)",
        "FAILED",
        "payload.failed",
        "Disk quota exceeded",
        command=python("import os; raise OSError(122, os.strerror(122), '/home/alice/big')"),
    ),
    "tmp-noexec": Fault(
        "/tmp of the nodes is mounted noexec",
        "COMPLETED",
        "",
        before=tuple((node, "mount -o remount,noexec /tmp") for node in NODES),
        after=tuple((node, "mount -o remount,exec /tmp") for node in NODES),
    ),
    "no-shm": Fault(
        "a node has no /dev/shm",
        "COMPLETED",
        "",
        command=mpi(""),
        before=(("cn2", "umount -l /dev/shm; rmdir /dev/shm"),),
        after=(("cn2", "mkdir -p /dev/shm; mount -t tmpfs -o mode=1777 none /dev/shm"),),
    ),
    "no-shm-staged": Fault(
        "a node has no /dev/shm, in which the image is staged",
        "FAILED",
        "stage.failed",
        "/dev/shm",
        options="--staging memory",
        before=(("cn2", "umount -l /dev/shm; rmdir /dev/shm"),),
        after=(("cn2", "mkdir -p /dev/shm; mount -t tmpfs -o mode=1777 none /dev/shm"),),
    ),
    "hidepid": Fault(
        "/proc of the nodes hides the processes of others",
        "COMPLETED",
        "",
        command=mpi(""),
        before=tuple((node, "mount -o remount,hidepid=2 /proc") for node in NODES),
        after=tuple((node, "mount -o remount,hidepid=0 /proc") for node in NODES),
    ),
    # ---- limits of the shell that submits, which Slurm passes on
    "ulimit-v": Fault(
        "ulimit -v 300000 in the user's shell",
        "FAILED",
        "limits.process",
        "ulimit -v",
        shell="ulimit -v 300000",
        command=mpi(""),
    ),
    "ulimit-v-small": Fault(
        "ulimit -v 60000 in the user's shell", "", "", "memory", shell="ulimit -v 60000", command=mpi("")
    ),
    "ulimit-n": Fault("ulimit -n 16", "COMPLETED", "", "", shell="ulimit -n 16", command=mpi("")),
    "ulimit-n-small": Fault("ulimit -n 7", "", "", "Too many open files", shell="ulimit -n 7", command=mpi("")),
    "ulimit-f": Fault("ulimit -f 1", "", "", "File too large", shell="ulimit -f 1", command=mpi("")),
    "ulimit-t": Fault(
        "ulimit -t 1", "FAILED", "limits.process", "ulimit -t", shell="ulimit -t 1", command=python("while True: pass")
    ),
    "ulimit-v-payload": Fault(
        "ulimit -v 3000000, and the payload needs more",
        "FAILED",
        "limits.process",
        "3000000 KiB of address space",
        shell="ulimit -v 3000000",
        command=python("food = bytearray(4 << 30)"),
    ),
    # ---- what nodes lack
    "no-python": Fault(
        "no node has the site's Python", "FAILED", "job.unfinished", "python3.6: No such file", **covered(TOOL, *NODES)
    ),
    "no-python-second": Fault(
        "the second node lacks the site's Python",
        "FAILED",
        "hosts.failed",
        "python3.6: No such file",
        **covered(TOOL, "cn2"),
    ),
    "no-python-staged": Fault(
        "no node has the site's Python, with a staged image",
        "FAILED",
        "job.unfinished",
        "python3.6: No such file",
        options="--staging memory",
        **covered(TOOL, *NODES),
    ),
    "no-mpi": Fault(
        "the second node lacks the MPI",
        "FAILED",
        "mpi.host-missing",
        "cn2",
        **covered("/opt/intel/mpi/2021.15/lib", "cn2"),
    ),
    "no-image": Fault(
        "the second node does not see the images",
        "FAILED",
        "runtime.start",
        "cn2",
        **covered(f"{WORKSPACE}/images", "cn2"),
    ),
    "no-jobs": Fault(
        "the second node does not see the job's folder",
        "FAILED",
        "hosts.count",
        "1 took part: cn1, not cn2",
        **covered(f"{WORKSPACE}/jobs", "cn2"),
    ),
    "no-home": Fault(
        "the second node does not mount /home", "FAILED", "hosts.failed", "/home/alice", **covered("/home", "cn2")
    ),
    "no-home-first": Fault(
        "the first node does not mount /home",
        "FAILED",
        "job.unfinished",
        "its first node could not write",
        **covered("/home", "cn1"),
    ),
    "no-runtime": Fault(
        "the second node has no ch-run", "FAILED", "runtime.start", "ch-run", **covered("/usr/bin/ch-run", "cn2")
    ),
    "no-launcher": Fault(
        "the first node has no srun", "FAILED", "hosts.failed", "srun", **covered("/usr/bin/srun", "cn1")
    ),
    "no-module": Fault(
        "the module cannot be loaded", "FAILED", "job.module", "intel-mpi/2021.15", **covered("/opt/modulefiles", "cn1")
    ),
    "no-modules": Fault(
        "the first node has no module command",
        "FAILED",
        "job.module",
        "intel-mpi/2021.15",
        **covered("/etc/profile.d", "cn1"),
    ),
    "no-munge": Fault(
        "munge has ended on the second node",
        "NODE_FAIL",
        "job.ended",
        "a node of it died",
        before=(("lab", "stop-munge cn2"),),
        after=(("lab", "start-munge cn2"),),
        slow=True,
    ),
    "clock": Fault(
        "the clock of the second node is two hours ahead",
        "FAILED",
        "job.ended",
        "failed on node cn2: ",
        before=(("lab", "clock-ahead cn2 7200"),),
        after=(("lab", "clock-ahead cn2 0"),),
        slow=True,
    ),
    "tool-gone": Fault(
        "deployer.pyz is removed between submit and start",
        "FAILED",
        "job.unfinished",
        "deployer.pyz",
        options="--directive=--begin=now+2",
        then=(("login1", f"mv {WORKSPACE}/deployer.pyz {WORKSPACE}/x.pyz"),),
        after=(("login1", f"mv {WORKSPACE}/x.pyz {WORKSPACE}/deployer.pyz"),),
    ),
    "image-gone": Fault(
        "the image is removed while the job waits",
        "FAILED",
        "image.gone",
        "removed",
        options="--directive=--begin=now+2",
        then=(("login1", f"mv {WORKSPACE}/images {WORKSPACE}/away"),),
        after=(("login1", f"mv {WORKSPACE}/away {WORKSPACE}/images"),),
    ),
    "folder-gone": Fault(
        "the job's folder is away when the job ends",
        "CANCELLED",
        "job.ended",
        "cancelled",
        command=LONG,
        at=BEGUN,
        then=(("login1", f"mv $folder $folder.away; scancel $id; {ENDS}; mv $folder.away $folder"),),
    ),
    "log-unwritable": Fault(
        "the job's folder cannot be written when it starts",
        "FAILED",
        "job.unfinished",
        "cannot be written: Permission denied",
        options="--directive=--begin=now+2",
        then=(("login1", "chmod 500 $folder"),),
        after=(("login1", "chmod 700 $folder"),),
    ),
    "mpi-changed": Fault(
        "libmpi is another one on the second node",
        "FAILED",
        "mpi.host-differs",
        "cn2",
        before=(
            (
                "cn2",
                (
                    f"cp {LIBRARY} /run/other && strip --remove-section=.note.gnu.build-id /run/other; "
                    f"mount --bind /run/other {LIBRARY}"
                ),
            ),
        ),
        after=(("cn2", f"umount -l {LIBRARY}"),),
    ),
    "bind-gone": Fault(
        "a folder that the job binds is missing on the second node",
        "FAILED",
        "hosts.missing",
        "/home/alice/data",
        before=(("login1", "mkdir -p /home/alice/data/in"), ("cn2", "mount -t tmpfs none /home/alice/data")),
        options="--bind /home/alice/data/in:/data",
        after=(("cn2", "umount -l /home/alice/data"),),
    ),
    "bind-closed": Fault(
        "a folder that the job binds cannot be read (root-squash, or another user's)",
        "FAILED",
        "payload.failed",
        "Permission denied",
        before=(("login1", "mkdir -p -m 700 /home/alice/closed; chmod 700 /home/alice/closed"),),
        options="--bind /home/alice/closed:/data",
        command=python("import os; os.listdir('/data')"),
    ),
    "mount-stale": Fault(
        "a folder that the job binds is a dead mount on the second node",
        "FAILED",
        "hosts.missing",
        "/home/alice/stale",
        before=(
            ("login1", "mkdir -p /home/alice/stale; chmod 777 /home/alice/stale"),
            (
                "cn2",
                (
                    "mksquashfs /etc/ssl /run/s.sq -noappend -quiet >/dev/null; "
                    "squashfuse -o allow_other /run/s.sq /home/alice/stale; pkill -KILL -x squashfuse"
                ),
            ),
        ),
        options="--bind /home/alice/stale:/data",
        after=(("cn2", "umount -l /home/alice/stale"),),
    ),
    "two-jobs": Fault(
        "another job computes on the same nodes and cores",
        "COMPLETED",
        "",
        command=mpi(""),
        before=(
            ("login1", "scontrol update partitionname=batch oversubscribe=force:2"),
            ("login1", "cd /tmp; sbatch --uid alice --nodes 2 --output /dev/null --wrap 'srun sleep 60'"),
        ),
        after=(("login1", "scancel --user alice; scontrol update partitionname=batch oversubscribe=no"),),
    ),
    # ---- the payload
    "rank-killed": Fault(
        "SIGKILL for one rank", "FAILED", "payload.failed", "SIGKILL", command=one("os.kill(os.getpid(), 9)")
    ),
    "rank-crashes": Fault(
        "SIGSEGV in one rank", "FAILED", "payload.failed", "SIGSEGV", command=one("os.kill(os.getpid(), 11)")
    ),
    "rank-sigbus": Fault(
        "SIGBUS in one rank", "FAILED", "payload.failed", "SIGBUS", command=one("os.kill(os.getpid(), 7)")
    ),
    "rank-aborts": Fault("SIGABRT in one rank", "FAILED", "payload.failed", "SIGABRT", command=one("os.abort()")),
    "rank-exits": Fault(
        "one rank exits with 5, the others wait", "FAILED", "payload.failed", "exit code 5", command=one("sys.exit(5)")
    ),
    "mpi4py-raises": Fault(
        "an exception in one rank with -m mpi4py, the others wait",
        "FAILED",
        "payload.failed",
        "ValueError: no such digit|are lost",
        command=mpi("if rank: raise ValueError('no such digit')\nMPI.COMM_WORLD.Barrier()"),
    ),
    "mpi4py-raises-first": Fault(
        "an exception in rank 0 with -m mpi4py",
        "FAILED",
        "payload.failed",
        "ZeroDivisionError|are lost",
        command=mpi("if not rank: 1 / 0\nMPI.COMM_WORLD.Barrier()"),
    ),
    "mpi4py-cause": Fault(
        "an exception that was raised from another one",
        "FAILED",
        "payload.failed",
        "RuntimeError: epoch 3|FileNotFoundError|are lost",
        command=mpi(
            "try: open('/none')\nexcept OSError as e:\n"
            "  if rank: raise RuntimeError('epoch 3') from e\nMPI.COMM_WORLD.Barrier()"
        ),
    ),
    "mpi-abort": Fault(
        "MPI_Abort in one rank, after its own message",
        "FAILED",
        "payload.failed",
        "loss is NaN",
        command=mpi(
            "import sys\nif rank: print('error: loss is NaN', file=sys.stderr, flush=True); "
            "MPI.COMM_WORLD.Abort(3)\nMPI.COMM_WORLD.Barrier()"
        ),
    ),
    "raises-then-noise": Fault(
        "an exception in one rank, and 40 lines of another rank after it",
        "FAILED",
        "payload.failed",
        "ValueError: no such digit",
        command=python(
            "import os, time\nif os.environ['SLURM_PROCID'] == '1': raise ValueError('no such digit')\n"
            "time.sleep(0.5)\nfor i in range(40): print('step', i, 'val_error 0.3', flush=True)\ntime.sleep(60)"
        ),
    ),
    "import-error": Fault(
        "a Python module is missing",
        "FAILED",
        "payload.failed",
        "No module named 'torch'",
        command=python("import torch"),
    ),
    "missing": Fault("the program is missing", "", "command.missing", "train", command=("/usr/bin/train",)),
    "not-executable": Fault(
        "the program is not executable", "", "command.missing", "/etc/passwd", command=("/etc/passwd",)
    ),
    "exec-format": Fault(
        "the program has no format that the kernel knows",
        "FAILED",
        "payload.failed",
        "Exec format error",
        before=(("login1", f"mkdir -p /home/alice/programs; printf 'garbage\\0\\1' >{PROGRAM}; chmod 755 {PROGRAM}"),),
        options=BOUND,
        command=("/data/program",),
    ),
    "foreign": Fault(
        "the program is for another processor",
        "FAILED",
        "payload.failed",
        "Exec format error",
        before=(FOREIGN,),
        options=BOUND,
        command=("/data/program",),
    ),
    "missing-in-shell": Fault(
        "a program that a shell starts is missing",
        "FAILED",
        "payload.failed",
        "not found",
        command=("sh", "-c", "no-such-program"),
    ),
    "exec-format-in-shell": Fault(
        "a program that a shell starts has no known format",
        "FAILED",
        "payload.failed",
        "syntax error",
        before=(FOREIGN,),
        options=BOUND,
        command=("sh", "-c", "/data/program"),
    ),
    "writes-image": Fault(
        "the program writes into the image",
        "FAILED",
        "payload.read-only",
        "/opt/x",
        command=python("open('/opt/x', 'w')"),
    ),
    "downloads": Fault(
        "the program downloads",
        "FAILED",
        "payload.no-network",
        "",
        command=python("import urllib.request; urllib.request.urlopen('http://data.example/x')"),
    ),
}


#: Those of the smoke tier, one for each kind of evidence; the others are slow as a whole.
QUICK = [
    "node-down",
    "cancelled",
    "cancelled-pending",
    "tmp-full",
    "ulimit-v",
    "no-python",
    "no-python-second",
    "no-home",
    "image-gone",
    "mpi4py-cause",
    "raises-then-noise",
    "exec-format",
]


class Bench:
    """Makes faults on a lab to which the bundle ``faults`` was pushed."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        lab.sh("login1", "alice", f"cp {WORKSPACE}/deployer.pyz {LOOK}").check("copy the tool")

    def see(self, name: str) -> Seen:
        """Make a fault, mend it, and return what the user saw."""
        fault = FAULTS[name]
        with ExitStack() as stack:
            root = WORKSPACE
            if fault.disk_mb:
                root = stack.enter_context(self._small_disk(fault.disk_mb))
            self._values = {"folder": "/nonexistent", "id": "0", "disk": root}
            stack.callback(self._do, fault.after)
            self._do(fault.before)
            tool = f"{PYTHON} {root}/deployer.pyz"
            self._until(self._idle, "two idle nodes", 90)
            words = [
                "run",
                BUNDLE,
                *fault.options.split(),
                "--plan",
                "lab",
                "--nodes",
                "2",
                "--json",
                "--",
                *fault.command,
            ]
            done = self.lab.sh("login1", "alice", f"{fault.shell}; {tool} {shlex.join(words)}", timeout=120)
            if done.returncode:
                lines = done.stderr.splitlines() or [""]
                hint = next((line[6:] for line in lines if line.startswith("hint: ")), "")
                return Seen("", lines[0].replace("deployer: error: ", ""), hint, ())
            job = json.loads(done.stdout)
            self._values.update(folder=job["folder"], id=job["job_id"])
            stack.callback(self._root, "login1", "scancel $id")
            if fault.at:
                place, script = fault.at if isinstance(fault.at, tuple) else ("login1", fault.at)
                self._until(lambda: self._root(place, script, check=False), f"{name}: {script}")
            self._do(fault.then)
            return self._end(fault, f"{PYTHON} {LOOK} status --root {root}", job)

    def _end(self, fault: Fault, tool: str, job: dict[str, Any]) -> Seen:
        status: dict[str, Any] = {}

        def ended() -> bool:
            said = self.lab.sh("login1", "alice", f"{tool} {job['job']} --json", timeout=120)
            status.update(json.loads(said.stdout))
            return not status["active"] or fault.state == status["state"]

        self._until(ended, "the job's end", 200)
        read = self.lab.sh("login1", "alice", f"cat {job['folder']}/result.json")
        findings = json.loads(read.stdout)["findings"] if read.returncode == 0 else []
        codes = tuple(dict.fromkeys(each["code"] for each in findings))
        sentence = status["problem"] or (status["reason"] if status["active"] else "")
        return Seen(status["state"], sentence, status["remedy"], codes)

    @contextmanager
    def _small_disk(self, size_mb: int) -> Iterator[str]:
        place = "/home/alice/small"
        with disk(self.lab, ALL, place, size_mb):
            self.lab.sh(
                "login1",
                "alice",
                f"cp {WORKSPACE}/deployer.pyz {place} && "
                f"{PYTHON} {place}/deployer.pyz install {WORKSPACE}/bundles/{BUNDLE}-1*.tar --root {place}",
            ).check("install it")
            yield place

    def _do(self, acts: tuple[Act, ...]) -> None:
        for node, script in acts:
            if node == "lab":
                self.lab.fault(*script.split())
            else:
                self._root(node, script, check=True)

    def _idle(self) -> bool:
        return self.lab.sh("login1", "root", "sinfo --noheader --states idle --format %D").stdout.split() == ["2"]

    def _root(self, node: str, script: str, check: bool = False) -> bool:
        values = "; ".join(f"{name}={value}" for name, value in self._values.items())
        done = self.lab.sh(node, "root", f"{values}; {script}")
        if check:
            done.check(f"on {node}: {script}")
        return done.returncode == 0

    @staticmethod
    def _until(holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(what)
            time.sleep(0.2)


def record(path: str, name: str, seen: Seen) -> None:
    """Add a line to the file of what was seen."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name, **asdict(seen)}) + "\n")


def _read(path: str) -> dict[str, Seen]:
    rows = map(json.loads, Path(path).read_text().splitlines())
    return {row.pop("name"): Seen(**{name: row[name] for name in Seen.__annotations__}) for row in rows}


def _table(now: dict[str, Seen], before: dict[str, Seen]) -> None:
    """Print a row for each fault: what it is, what the user saw, and whether that is right, now and before."""
    for name, fault in FAULTS.items():
        words = {
            which: ("right" if seen[name].is_right(fault) else "**wrong**") if name in seen else ""
            for which, seen in (("now", now), ("before", before))
        }
        saw = now.get(name, Seen("", "not run", "", ()))
        shown = printable(re.sub(r"[0-9a-f]{32,}", "...", saw.sentence)).replace("|", "\\|").replace("*", "\\*")
        print(f"| {fault.text} | {saw.state or 'not started'} | {shown} | {words['before']} | {words['now']} |")


if __name__ == "__main__":
    _table(_read(sys.argv[1]), _read(sys.argv[2]) if len(sys.argv) > 2 else {})
