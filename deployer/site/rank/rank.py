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

from deployer.site.rank import rendezvous
from deployer.site.rank.launched import RankOptions, inherited_environment, task_number
from deployer.system import payload

MYPY = False
if MYPY:
    import signal
else:
    import _signal as signal

_VALUED = ("--out", "--shared", "--outside", "--stdin", "--warn", "--meet", "--gpus", "--home")
#: Signals that ask this process to end. The payload receives them too, and decides when to end.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(words: "list[str]") -> int:
    """Parse job.sh's call and ``run`` it, without argparse, which is too slow."""
    given, options = {}, iter(words)
    for word in options:
        if word == "--":
            break
        given[word] = next(options, "") if word in _VALUED else word
    command = list(options)
    if not given.get("--out") or set(given) - {*_VALUED, "--abort", "--itex", "--end"} or not command:
        payload.complain(
            "deployer: error: rank --out DIR [--shared DIR] [--outside LIBRARY] [--stdin FILE] [--warn TIME] "
            "[--meet PLACE] [--gpus GPUS] [--home DIR] [--abort] [--itex] [--end] -- CMD is what job.sh calls"
        )
        return 2
    return run(RankOptions(given), command)


def run(options: RankOptions, command: "list[str]") -> int:
    """Run ``command`` as the payload of this rank, write its record, and return its exit code.

    If a signal ended the payload, this process ends with the same signal. After a request to end, it waits until the
    payloads of all ranks have ended.
    """
    environment = inherited_environment()
    awaited: "set[int]" = {signal.SIGCHLD, *SIGNALS}
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
            payload.complain(f"deployer: error: {error}\nhint: request more GPUs per node (--gpus)")
            return 3  # the exit code of Refused
    if given.get("FETCH_REPLAY") and options.outside is None:
        from deployer.site.container import replay

        given = replay.start(given)
    # The image's own launcher must survive a request to end the job, so it and its ranks start with SIGTERM blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    pid = payload.start(command, given, awaited, options.stdin)
    from deployer.site.rank import payload_monitor

    return payload_monitor.watch(pid, task_number(environment), awaited, options)
