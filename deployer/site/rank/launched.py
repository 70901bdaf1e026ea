"""What a rank received from its launcher and from job.sh. This module imports as little as ``rank``."""

import os

MYPY = False
if MYPY:
    from typing import Dict, Mapping, Optional, Sequence

#: Launchers' variables with a process's number. Slurm's is last: below mpiexec and mpirun, it has the daemon's number.
TASK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK", "SLURM_PROCID")
#: Launchers' variables with the number of ranks.
SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE", "SLURM_NTASKS")


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
        end: SIGUSR2 or SIGTERM is a request to end the payload, which receives SIGTERM.
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


def task_number(environment: "Mapping[str, str]") -> int:
    """Return the launcher's number for this process; 0 without a launcher."""
    return number(environment, TASK) or 0


def number(environment: "Mapping[str, str]", names: "Sequence[str]") -> "Optional[int]":
    """Return the value of the first of these variables that is a number."""
    return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), None)


def inherited_environment() -> "Dict[str, str]":
    """Return the environment that this process received: Python may add LC_CTYPE to ``os.environ`` at start."""
    with open("/proc/self/environ", "rb") as stream:
        return parsed_environment(stream.read())


def parsed_environment(data: bytes) -> "Dict[str, str]":
    """Return the environment in ``data``, in the kernel's format."""
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals}
