"""A job from a definition: the command, and numbers that the user may override."""

import re
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence

from deployer.contract.base import records, variables
from deployer.contract.base.errors import UsageError
from deployer.contract.base.guess import guess
from deployer.contract.base.json_records import Fields, Record
from deployer.contract.base.text import counted, is_label
from deployer.contract.site import caches
from deployer.contract.site import links as linked
from deployer.contract.site.plan import APP

#: What starts on a node: a process per rank; torchrun, which starts the ranks of its node; or one process, whose
#: command starts the ranks itself or needs no others.
RANKS, TORCHRUN, NODE = "ranks", "torchrun", "node"
LAUNCHES = (RANKS, TORCHRUN, NODE)

#: More GPUs than a node has.
MOST_GPUS = 1024

_NAMES = "a name is like train-small: lower-case letters and digits, joined by single dots, dashes or underscores"

_PYTHON = re.compile(r"python[0-9.]*")
_TIME = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,3}):([0-5][0-9]):([0-5][0-9])")
_SHORT = re.compile(r"([0-9]{1,8})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Job(NamedTuple):
    """A job from a definition.

    Attributes:
        name: the job's name.
        command: runs in the container, once per rank.
        nodes: number of nodes.
        ranks_per_node: ranks per node.
        threads: threads per rank.
        time: the time limit, [D-]HH:MM:SS.
        workdir: the folder in the container where the command starts; None: the image's own, else the job's folder.
        stdin: the file in the container that every rank reads as its standard input; None: empty input.
        memory: MiB that one rank needs; None: not limited.
        environment: variables of every rank.
        launch: what starts on a node: one of ``LAUNCHES``.
        gpus: the number of GPUs that each rank sees; 0: it uses none; None: all the job's GPUs on its node.
        links: files and folders of the data or the app, by the place where the program expects them (``links``).
        keep: caches of compiled code for later jobs (``caches``).
    """

    name: str
    command: List[str]
    nodes: int
    ranks_per_node: int
    threads: int
    time: str
    workdir: Optional[str] = None
    stdin: Optional[str] = None
    memory: Optional[int] = None
    environment: Mapping[str, str] = {}
    launch: str = RANKS
    gpus: Optional[int] = None
    links: Mapping[str, str] = {}
    keep: Sequence[str] = ()

    def record(self) -> Record:
        """Return the job as a JSON object."""
        return records.short(self)

    def lacks_gpus(self, there: Optional[int]) -> str:
        """Return why a node with ``there`` GPUs has too few for the ranks; empty if they suffice or are unknown."""
        needed = self.ranks_per_node * (self.gpus or 0)
        if there is None or needed <= there:
            return ""
        product = "{} per node x {}".format(counted(self.ranks_per_node, "rank"), counted(self.gpus or 0, "GPU"))
        return "%s = %d, but a node has %s" % (product, needed, counted(there, "GPU") if there else "no GPU")

    @property
    def whole_nodes(self) -> bool:
        """Return whether each node runs one process, which starts the node's ranks itself."""
        return self.launch != RANKS

    @staticmethod
    def read(fields: Fields) -> "Job":
        name, launch, gpus = fields.text("name"), fields.maybe_text("launch") or RANKS, fields.maybe_number("gpus")
        if not is_label(name):
            # It is used in commands, file names and lines for bundle.yaml.
            problem, hint = f"'name': a job cannot be called {name!r}", _NAMES
        elif launch not in LAUNCHES:
            problem, hint = "'launch': {!r} is not one of {}".format(launch, ", ".join(LAUNCHES)), ""
        elif gpus is not None and not 0 <= gpus <= MOST_GPUS:
            problem, hint = "'gpus': %d is not a number from 0 to %d" % (gpus, MOST_GPUS), ""
        else:
            problem = hint = ""
        if problem:
            raise fields.error(f"{fields.what}: field {problem}", hint)
        environment = fields.environment("environment", lines=True) if "environment" in fields.record else {}
        _checked(fields, "environment", environment, variables.check)
        return records.read(
            Job,
            fields,
            command=fields.words("command"),
            time=check_time(fields.text("time")),
            workdir=_checked(fields, "workdir", fields.maybe_text("workdir"), check_workdir),
            stdin=_checked(fields, "stdin", fields.maybe_text("stdin"), check_stdin),
            environment=environment,
            launch=launch,
            links=_checked(fields, "links", fields.mapping("links"), linked.check) if "links" in fields.record else {},
            keep=_checked(fields, "keep", fields.words("keep"), caches.check) if "keep" in fields.record else (),
        )


def _checked(fields: Fields, name: str, value: Any, check: Callable[[Any], Any]) -> Any:
    """Return the checked value of a field, or None if it has none."""
    try:
        return None if value is None else check(value)
    except UsageError as error:
        raise fields.error(f"{fields.what}: field {name!r}: {error.message}", error.hint) from error


def started(job: Job) -> List[str]:
    """Return the words that start on a node: the command, or torchrun with it.

    PET_* variables give the node's number and the first node's address and port (``site.rank.rendezvous``).
    """
    if job.launch != TORCHRUN:
        return job.command
    python = job.command[0] if _PYTHON.fullmatch(job.command[0].rpartition("/")[2]) else "python3"
    words = [python, "-m", "torch.distributed.run", "--nnodes=%d" % job.nodes]
    return [*words, "--nproc_per_node=%d" % job.ranks_per_node, "--rdzv_backend=static", "--no_python", *job.command]


def check_workdir(path: str) -> str:
    """Return ``path`` if a job can start in it: an absolute path in the container. Raises UsageError."""
    if not _is_plain(path):
        raise UsageError(f"invalid working folder: {path!r}", "write an absolute path of the container without ..")
    return path


def check_stdin(path: str) -> str:
    """Return ``path`` if a job can read it as its standard input: an absolute path in the container.

    Raises UsageError.
    """
    if not _is_plain(path) or path.endswith("/"):
        hint = f"write an absolute path of the container without ..: a file of app/ is {APP}/FILE"
        raise UsageError(f"invalid file for standard input: {path!r}", hint)
    return path


def _is_plain(path: str) -> bool:
    return path.startswith("/") and ".." not in path.split("/") and path.isprintable()


def seconds(limit: str) -> int:
    """Return a time limit in seconds, from [D-]HH:MM:SS or any form that Slurm accepts: [D-]HH[:MM[:SS]], MM[:SS].

    Raises:
        UsageError: the text is not a time limit.
    """
    days, dash, clock = limit.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > 3 or (dash and not days.isdigit()):
        raise UsageError(f"invalid time limit: {limit!r}", "for instance 2-00:00:00")
    numbers = [int(part) for part in parts]
    if not dash and len(numbers) < 3:
        numbers.insert(0, 0)  # minutes come first
    hours, minutes, rest = [*numbers, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest


def clock(seconds: int) -> str:
    """Return a time limit as HH:MM:SS, with more than 24 hours if necessary."""
    return "%02d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)


def check_time(text: str) -> str:
    """Return a time limit in the form [D-]HH:MM:SS; a number with a unit is also accepted: 90s, 30m, 24h, 2d.

    Raises UsageError, also for 0.
    """
    short = _SHORT.fullmatch(text)
    days, rest = divmod(int(short.group(1)) * _UNITS[short.group(2)], _UNITS["d"]) if short else (0, 0)
    limit = "%d-%s" % (days, clock(rest)) if days else clock(rest) if short else text
    hint = "for instance 00:30:00, 90m, 24h or 2-00:00:00"
    if not _TIME.fullmatch(limit):
        raise UsageError(f"time limit {text!r} is not [D-]HH:MM:SS, and not a number with s, m, h or d", hint)
    if not seconds(limit):
        raise UsageError(f"invalid time limit {text!r}: for Slurm, zero means no limit", hint)
    return limit


def find(label: str, jobs: Sequence[Job], name: Optional[str], extra: Sequence[str] = (), command: str = "") -> Job:
    """Return the job with this name, or the first if no name is given.

    Args:
        label: the bundle, for errors.
        extra: the user's words; for a bundle without jobs they are the command.
        command: what the user must type to give such words, for errors.

    Raises:
        UsageError: the bundle has no such job.
    """
    for job in jobs:
        if name in (None, job.name):
            return job
    if name is None and extra and not jobs:
        return Job("command", [], 1, 1, 1, "01:00:00")
    known = [job.name for job in jobs]
    raise UsageError(
        f"{label} has no job {name}{guess(name, known)}" if name else f"{label} has no job",
        "its jobs: " + (", ".join(known) or "none") if known or name else f"give the command: {command} -- COMMAND",
    )
