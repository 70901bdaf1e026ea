"""rank: run the payload of one rank, and write down which MPI library its own processes use and how it ended.

The probe can only speak for itself: the payload may be linked to another library (Debian's ``libmpich.so.12``, an
RPATH). So this process stays as the payload's parent, looks at ``/proc/PID/maps`` of the payload and its children, and
ends as the payload ended. It has no other part in its life: the payload keeps the descriptors (PMI's among them), the
environment, the process group and the terminal. Launchers signal the whole group or step, so signals are not passed
on, which would make two of one; this process only waits on.

Being the parent, not a watcher that was forked off, leaves nothing behind, and gives each rank's own exit code: srun
reports the highest of all ranks, in which the one that raised is hidden by those that it killed.

Each rank of a job starts this anew: the payload is on its way before anything is imported that only watching needs, and
types stand in quotes, since ``typing`` takes longer than all else here.
"""

import os
import signal
import sys

from deployer.system import payload

MYPY = False
if MYPY:
    from typing import Dict, List, Mapping, Optional

#: How the launchers tell a process its number. Slurm's own comes last: below mpiexec and mpirun it is the daemon's.
TASK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_VALUED = ("--out", "--shared", "--outside", "--stdin")
#: What may ask this process to end; the payload got it as well and decides.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(words: "List[str]") -> int:
    """Run what job.sh calls, as ``run`` does: argparse takes longer than the start may."""
    given, options = {}, iter(words)
    for word in options:
        if word == "--":
            break
        given[word] = next(options, "") if word in _VALUED else word
    command = list(options)
    if not given.get("--out") or set(given) - {*_VALUED, "--abort", "--itex"} or not command:
        usage = "rank --out DIR [--shared DIR] [--outside LIBRARY] [--stdin FILE] [--abort] [--itex] -- COMMAND"
        sys.stderr.write("deployer: error: %s is what job.sh calls\n" % usage)
        return 2
    shared, outside, stdin = given.get("--shared"), given.get("--outside"), given.get("--stdin")
    return run(given["--out"], command, shared, "--abort" in given, "--itex" in given, outside, stdin)


def run(
    out: str,
    command: "List[str]",
    shared: "Optional[str]" = None,
    abort: bool = False,
    itex: bool = False,
    outside: "Optional[str]" = None,
    stdin: "Optional[str]" = None,
) -> int:
    """Run ``command`` as the payload of this rank and return its exit code, with its record in the folder ``out``.

    Ends by the same signal as the payload where a signal ended it; with ``abort``, by SIGABRT where it failed: some
    launchers let the other ranks wait for one that has only exited. Once asked to end it ends after the goodbyes of
    all ranks, which see each other in the folder ``shared`` (None: ``out`` is one). With ``itex`` a payload whose
    TensorFlow is without Intel's extension is ended, with Refused's exit code. ``outside`` is given if this process is
    not in the container that ``command`` starts: the plan's MPI library on this host, empty if it has none.
    ``stdin`` is a file that the payload reads as its standard input, None: it keeps that of this process.
    """
    environment = inherited_environment()
    awaited = set(_SIGNALS) | {signal.SIGCHLD}
    pid = payload.start(command, environment, awaited, stdin)
    from deployer.site.rank import payload_monitor

    return payload_monitor.watch(pid, out, shared or out, task_number(environment), awaited, abort, itex, outside)


def task_number(environment: "Mapping[str, str]") -> int:
    """Return the launcher's number for this process, 0 where there is no launcher."""
    for name in TASK:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return 0


def inherited_environment() -> "Dict[str, str]":
    """Return the environment as this process got it: Python's start may add LC_CTYPE to ``os.environ``."""
    with open("/proc/self/environ", "rb") as stream:
        pairs = (entry.partition(b"=") for entry in stream.read().split(b"\0"))
        return {os.fsdecode(name): os.fsdecode(value) for name, found, value in pairs if found}
