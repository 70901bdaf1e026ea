"""rank: run the payload of one rank, and record which MPI library its processes use and how it ended.

The probe's results apply only to itself: the payload may be linked to another library (Debian's ``libmpich.so.12``, an
RPATH). Therefore this process is the payload's parent, reads ``/proc/PID/maps`` of the payload and its children, and
ends in the same way as the payload. It has no other influence: the payload keeps the descriptors (including PMI's), the
environment, the process group and the terminal. Launchers signal the whole group or step, so forwarding signals would
double them.

Unlike a forked observer, a parent leaves no process behind and returns each rank's own exit code. srun reports only the
highest exit code of all ranks, which hides the rank that failed behind those that srun killed.

Each rank of a job starts this module, without any bytecode: bytecode that other ranks can write cannot be trusted. So
the payload is started before the modules that observe it are imported. For an ordinary payload, these modules import
only modules that Python has already loaded or built in: see ``system.payload``.
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

#: Launchers' variables with a process's number. Slurm's is last: below mpiexec and mpirun, it has the daemon's number.
TASK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
#: Launchers' variables with the number of ranks.
SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_VALUED = ("--out", "--shared", "--outside", "--stdin", "--warn", "--meet", "--gpus", "--home")
#: Signals that ask this process to end. The payload receives them too, and decides when to end.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(words: "List[str]") -> int:
    """Parse job.sh's call and ``run`` it, without argparse, which is too slow."""
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
        sys.stderr.write(f"deployer: error: {usage} is what job.sh calls\n")
        sys.stderr.flush()  # as in payload_monitor
        return 2
    return run(RankOptions(given), command)


class RankOptions:
    """The options that job.sh passes to a rank.

    Attributes:
        out: the folder for its record.
        shared: the folder that all ranks of the job share.
        abort: end with SIGABRT if the payload failed, because some launchers would not end the other ranks otherwise.
        itex: end a payload whose TensorFlow lacks Intel's extension, with Refused's exit code.
        outside: the plan's MPI library on this host, or empty if there is none; given if this process runs outside the
            container that the command starts.
        stdin: a file for the payload's standard input; None: this process's own.
        warn: when to warn the payload of the time limit, in seconds since the epoch; None: never.
        meet: the meeting point of ranks without MPI, as in ``rendezvous.variables``; None: do not set these variables.
        gpus: the rank's own GPUs, as in ``devices.variables``; None: all. Without ``meet``, this has no effect.
        end: SIGUSR2 is a request to end the payload, which receives SIGTERM.
        home: the job's home, to remove after a request to end, when the payloads of all ranks have ended; None: job.sh
            can then remove it on all nodes.
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

    If a signal ended the payload, this process ends with the same signal. After a request to end, it waits until the
    payloads of all ranks have ended.
    """
    environment = inherited_environment()
    awaited: "Set[int]" = {signal.SIGCHLD, *SIGNALS}
    if options.outside is not None:
        payload.adopt_orphans()
    if options.warn is not None:  # if the launcher was started with it ignored, no shell could handle it
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    if options.end:  # it is meant for this process, and would end the payload
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    given = rendezvous.variables(options.meet, task_number(environment), environment) if options.meet else environment
    if options.outside is None and "LOCAL_RANK" in given:  # outside, the path would not be the container's
        given = rendezvous.talking(given, os.path.join(options.out, rendezvous.NCCL_LOG % task_number(environment)))
    if options.gpus and "LOCAL_RANK" in given:
        from deployer.site.rank import devices

        try:
            given = devices.variables(options.gpus, given)
        except devices.TooFewDevices as error:
            sys.stderr.write(f"deployer: error: {error}\nhint: request more GPUs per node (--gpus)\n")
            sys.stderr.flush()
            return 3  # the exit code of Refused
    # The image's own launcher must survive a request to end the job, so it and its ranks start with SIGTERM blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    pid = payload.start(command, given, awaited, options.stdin)
    from deployer.site.rank import payload_monitor

    return payload_monitor.watch(pid, task_number(environment), awaited, options)


def task_number(environment: "Mapping[str, str]") -> int:
    """Return the launcher's number for this process; 0 without a launcher."""
    return number(environment, TASK) or 0


def number(environment: "Mapping[str, str]", names: "Sequence[str]") -> "Optional[int]":
    """Return the value of the first of these variables that is a number."""
    for name in names:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return None


def inherited_environment() -> "Dict[str, str]":
    """Return the environment that this process received: Python may add LC_CTYPE to ``os.environ`` at start."""
    with open("/proc/self/environ", "rb") as stream:
        return parsed_environment(stream.read())


def parsed_environment(data: bytes) -> "Dict[str, str]":
    """Return the environment in ``data``, in the kernel's format."""
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals}
