"""rank: run the payload of one rank, and record which MPI library its own processes use and how it ended.

The probe's evidence is only about itself: the payload may be linked to another library (Debian's ``libmpich.so.12``, an
RPATH). So this process is the payload's parent, reads ``/proc/PID/maps`` of the payload and its children, and ends as
the payload ended. Apart from that it has no influence: the payload keeps the descriptors (PMI's among them), the
environment, the process group and the terminal. Launchers signal the whole group or step, so signals are not passed on,
which would double them.

A parent, unlike a forked observer, leaves nothing behind and returns each rank's own exit code. srun reports only the
highest of all ranks, which hides the rank that failed behind those that srun killed.

Each rank of a job starts this module anew, and no bytecode of it is kept: none that is in reach of other ranks can be
trusted. So the payload is started before the modules for observing it are imported. These, and all that they need
beside an ordinary payload, import what Python has loaded or built in, and nothing else: see ``system.payload``.
"""

import os
import sys

from deployer.site.rank import rendezvous
from deployer.system import payload

MYPY = False
if MYPY:
    import signal
    from typing import Dict, List, Mapping, Optional, Sequence, Set
else:
    import _signal as signal

#: Variables of launchers with a process's number. Slurm's own is last: below mpiexec and mpirun it is the daemon's.
TASK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
#: Those with the number of ranks.
SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_VALUED = ("--out", "--shared", "--outside", "--stdin", "--warn", "--meet", "--gpus", "--home")
#: Signals that ask this process to end; the payload received them too and decides.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(words: "List[str]") -> int:
    """Run job.sh's call, as ``run`` does, without argparse, which takes too long."""
    given, options = {}, iter(words)
    for word in options:
        if word == "--":
            break
        given[word] = next(options, "") if word in _VALUED else word
    command = list(options)
    if not given.get("--out") or set(given) - {*_VALUED, "--abort", "--itex", "--end"} or not command:
        usage = (
            "rank --out DIR [--shared DIR] [--outside LIBRARY] [--stdin FILE] [--warn TIME] [--meet PLACE] "
            "[--gpus GPUS] [--home DIR] [--abort] [--itex] [--end] -- CMD"
        )
        sys.stderr.write("deployer: error: %s is what job.sh calls\n" % usage)
        sys.stderr.flush()  # as in payload_monitor
        return 2
    return run(RankOptions(given), command)


class RankOptions:
    """What job.sh tells a rank.

    Attributes:
        out: the folder for its record.
        shared: the folder in which all ranks of the job see each other.
        abort: end by SIGABRT if the payload failed, because some launchers do not end the other ranks otherwise.
        itex: end a payload whose TensorFlow lacks Intel's extension, with Refused's exit code.
        outside: given if this process is outside the container that the command starts: the plan's MPI library on this
            host, empty if there is none.
        stdin: a file for the payload's standard input; None: this process's own.
        warn: when the payload is warned of the time limit, in seconds since the epoch; None: never.
        meet: where ranks find each other without MPI, as in ``rendezvous.variables``; None: they are not told.
        gpus: which GPUs are its own, as in ``devices.variables``; None: all. Without ``meet`` it has no effect.
        end: SIGUSR2 asks for the end of the payload, which gets SIGTERM.
        home: the job's home, to remove after a request to end, when the payloads of all ranks have ended; None: job.sh
            can remove it on all nodes then.
    """

    def __init__(self, given: "Mapping[str, str]") -> None:
        self.out = given["--out"]
        self.shared = given.get("--shared") or self.out
        self.outside, self.stdin, self.home = given.get("--outside"), given.get("--stdin"), given.get("--home")
        self.warn = int(given["--warn"]) if given.get("--warn", "").isdigit() else None
        self.abort, self.itex, self.end = ("--" + name in given for name in ("abort", "itex", "end"))
        self.meet, self.gpus = given.get("--meet"), given.get("--gpus")


def run(options: RankOptions, command: "List[str]") -> int:
    """Run ``command`` as the payload of this rank, write its record, and return its exit code.

    If a signal ended the payload, this process ends by the same signal. After a request to end it waits until
    the payloads of all ranks have ended.
    """
    environment = inherited_environment()
    awaited: "Set[int]" = {signal.SIGCHLD, *SIGNALS}
    if options.outside is not None:
        payload.adopt_orphans()
    if options.warn is not None:  # a launcher may have been started with it ignored, and then no shell could handle it
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    if options.end:  # it is for this process, and would end the payload
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    given = rendezvous.variables(options.meet, task_number(environment), environment) if options.meet else environment
    if options.outside is None and "LOCAL_RANK" in given:  # outside, the path would not be the container's
        given = rendezvous.talking(given, os.path.join(options.out, rendezvous.NCCL_LOG % task_number(environment)))
    if options.gpus and "LOCAL_RANK" in given:
        from deployer.site.rank import devices

        try:
            given = devices.variables(options.gpus, given)
        except devices.TooFewDevices as error:
            sys.stderr.write("deployer: error: %s\nhint: request more GPUs per node (--gpus)\n" % error)
            sys.stderr.flush()
            return 3  # Refused's
    # The image's own launcher must live on when the job is asked to end, so it has this blocked, and so have its ranks.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    pid = payload.start(command, given, awaited, options.stdin)
    from deployer.site.rank import payload_monitor

    return payload_monitor.watch(pid, task_number(environment), awaited, options)


def task_number(environment: "Mapping[str, str]") -> int:
    """Return the launcher's number of this process; 0 without a launcher."""
    return number(environment, TASK) or 0


def number(environment: "Mapping[str, str]", names: "Sequence[str]") -> "Optional[int]":
    """Return the first of these variables that is a number."""
    for name in names:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return None


def inherited_environment() -> "Dict[str, str]":
    """Return the environment as this process received it: Python's start may add LC_CTYPE to ``os.environ``."""
    with open("/proc/self/environ", "rb") as stream:
        return parsed_environment(stream.read())


def parsed_environment(data: bytes) -> "Dict[str, str]":
    """Return the environment that the kernel shows as ``data``."""
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals}
