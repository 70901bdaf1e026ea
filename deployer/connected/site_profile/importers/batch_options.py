"""Options of batch systems as users write them (``--account=x -p gpu``), read as facts about a partition.

Only what a site demands of all jobs becomes a fact. What each job asks for itself (memory, time, cores) is deployer's
to write, and is left out.
"""

import re
import shlex
from collections.abc import Collection, Iterator

from deployer.connected.ground.yaml_model import KeyPath
from deployer.connected.site_profile.importers.draft import Draft, FileLine
from deployer.connected.site_profile.importers.values import QUEUE, LocatedValue, is_known

#: The words of other programs for batch systems, with those of a profile.
KINDS = {
    "slurm": "slurm",
    "squeue": "slurm",
    "sge": "gridengine",
    "uge": "gridengine",
    "lsf": "lsf",
    "pbs": "pbs",
    "pbspro": "pbs",
    "torque": "pbs",
    "local": "local",
}

#: Long options of Slurm by their letters.
_LETTERS = {
    "A": "account", "C": "constraint", "G": "gpus", "M": "clusters", "N": "nodes", "c": "cpus-per-task",
    "n": "ntasks", "p": "partition", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
#: What each job asks for itself. Deployer writes these options, or their like, for its own jobs.
_OF_JOBS = {
    "slurm": {
        "chdir", "cpus-per-gpu", "cpus-per-task", "error", "export", "get-user-env", "job-name", "mail-type",
        "mail-user", "mem", "mem-per-cpu", "nodes", "no-requeue", "ntasks", "ntasks-per-node", "output", "parsable",
        "requeue", "time", "verbose", "wait",
    },
    "gridengine": {"-N", "-S", "-V", "-cwd", "-e", "-j", "-o", "-pe", "-r", "-terse", "-notify"},
    "pbs": {"-N", "-S", "-V", "-e", "-j", "-o", "-r"},
    "lsf": {"-J", "-M", "-W", "-cwd", "-e", "-env", "-n", "-o", "-oo", "-eo", "-R"},
}  # fmt: skip
#: Resources of Grid Engine and PBS that each job asks for itself.
_RESOURCES_OF_JOBS = frozenset(
    {"cput", "h_rss", "h_rt", "h_vmem", "mem", "mem_free", "mem_req", "mpiprocs", "ncpus", "nodes", "ompthreads",
     "place", "pmem", "ppn", "rss", "s_rt", "s_vmem", "select", "tmpfs", "vmem", "walltime"}
)  # fmt: skip
#: Options of qsub and bsub with a value.
_VALUED = {
    "gridengine": {"-A", "-N", "-P", "-S", "-e", "-j", "-l", "-o", "-pe", "-q", "-r", "-jc", "-ac", "-p"},
    "pbs": {"-A", "-N", "-P", "-S", "-W", "-e", "-j", "-l", "-o", "-p", "-q", "-r"},
    "lsf": {"-G", "-J", "-M", "-P", "-R", "-W", "-app", "-cwd", "-e", "-env", "-gpu", "-m", "-n", "-o", "-oo", "-eo",
            "-q", "-sla"},
}  # fmt: skip
_GRES = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?::(?P<count>\d+|\{\w+\}))?")

COMPUTED = "computed by a program"
_REQUEST = "option of a single job"


class BatchOptions:
    """The options in one text, written to a draft.

    Attributes:
        queue: the queue or partition that the options name, or None.
    """

    def __init__(
        self, draft: Draft, kind: str, origin: FileLine, partition: str | None = None, but: Collection[str] = ()
    ) -> None:
        """Read for the batch system ``kind`` and a partition of the draft; None: for all, except ``but``."""
        self._draft = draft
        self._kind = kind
        self._origin = origin
        self._at: KeyPath = ("partitions", partition) if partition else ()
        self._but = but
        self.queue: str | None = None

    def read(self, text: str) -> None:
        """Write what ``text`` says to the draft."""
        for option, value in self._words(text):
            if not is_known(value) or not is_known(option):
                self._unknown(option, value)
            elif self._kind == "slurm":
                self._slurm(option, value)
            else:
                self._other(option, value)

    def storage(self, value: LocatedValue) -> None:
        """Write the file systems that jobs name (PBS, ``-l storage=a+b``)."""
        text = value.text()
        if text:
            self._draft.add(("scheduler", "storage"), text.split("+"), self._origin)
        else:
            self._draft.note(COMPUTED, f"storage = {value.computed()}", self._origin)

    def _words(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield options and values."""
        try:
            words = shlex.split(text)
        except ValueError:
            self._draft.note("options that cannot be read", text, self._origin)
            return
        at = 0
        while at < len(words):
            word, following = words[at], words[at + 1] if at + 1 < len(words) else None
            at += 1
            if not word.startswith("-") or word == "-":
                self._draft.note(COMPUTED if not is_known(word) else "options that cannot be read", word, self._origin)
                continue
            option, sign, value = word.partition("=")
            if self._kind == "slurm" and not word.startswith("--"):
                option, value = f"--{_LETTERS.get(word[1], word[1])}", word[2:].removeprefix("=")
                sign = value
            takes = self._kind == "slurm" or option in _VALUED.get(self._kind, ())
            if not sign and takes and following is not None and not following.startswith("-"):
                value, at = following, at + 1
            yield option, value

    def _unknown(self, option: str, value: str) -> None:
        if option.lstrip("-") in ("account", "A", "P"):
            self._account_required()
        else:
            self._draft.note(COMPUTED, f"{option} {value}", self._origin)

    def _account_required(self) -> None:
        """A job must name an account, and the file does not say which: a note until the policy is known."""
        self._draft.set(("policy", "account"), True, self._origin)

    def _account(self, value: str) -> None:
        if not value:
            self._account_required()
        elif self._at:
            self._draft.set((*self._at, "account"), value, self._origin)
        else:
            self._draft.set(("scheduler", "account"), value, self._origin)

    def _slurm(self, option: str, value: str) -> None:
        name, draft = option[2:], self._draft
        gres = [_GRES.fullmatch(word) for word in value.split(",")] if name == "gres" else []
        if name == "account":
            self._account(value)
        elif name == "partition":
            self._queue(value)
        elif name in ("qos", "constraint"):
            self._fact(name, value)
        elif name in ("clusters", "cluster"):
            self._fact("cluster", value)
        elif any(gres):
            draft.set(("scheduler", "gpu_request"), "gres", self._origin)
            for word, found in zip(value.split(","), gres, strict=True):
                if found:
                    self._gpu_type(found.group("type"), option, value)
                else:
                    draft.note("a resource that is not a GPU", f"{option}={word}", self._origin)
        elif name == "gpus-per-node":
            draft.set(("scheduler", "gpu_request"), "gpus-per-node", self._origin)
        elif name in _OF_JOBS["slurm"] or name == "gpus" or "{" in value:
            draft.note(_REQUEST, f"{option} {value}".strip(), self._origin)
        else:
            self._directive(f"{option}={value}" if value else option)

    def _gpu_type(self, kind: str | None, option: str, value: str) -> None:
        if kind and self._at:
            self._draft.set((*self._at, "node", "gpus", "type"), kind, self._origin)
        elif kind:
            self._draft.note("a kind of GPU without its partition", f"{option} {value}", self._origin)

    def _other(self, option: str, value: str) -> None:
        if option == "-q":
            self._queue(value)
        elif option == "-P" or (option == "-A" and self._kind == "pbs"):
            self._account(value)
        elif option == "-l":
            for word in re.split(r"[,:]", value):
                self._resource(word)
        elif option == "-gpu":
            self._draft.set(("scheduler", "gpu_request"), "gpu", self._origin)
            if set(re.split(r"[:=]", value)) - {"num", "1", "{num}"}:
                self._draft.note("how GPUs are shared", f"-gpu {value}", self._origin)
        elif option in _OF_JOBS.get(self._kind, ()):
            self._draft.note(_REQUEST, f"{option} {value}".strip(), self._origin)
        else:
            # These batch systems read a directive as a command line. Slurm's is one word, which its module quotes.
            self._directive(f"{option} {shlex.quote(value)}" if value else option)

    def _resource(self, word: str) -> None:
        name, _, value = word.partition("=")
        if name == "storage":
            self.storage(LocatedValue(value, self._origin.line))
        elif name in ("ngpus", "gpu", "gpus"):
            self._draft.set(("scheduler", "gpu_request"), name, self._origin)
        elif name in _RESOURCES_OF_JOBS or name.isdigit():
            self._draft.note(_REQUEST, f"-l {word}", self._origin)
        elif self._kind == "pbs":  # it may be part of a chunk: alone it has another meaning
            self._draft.note("a resource of a chunk", f"-l {word}", self._origin)
        else:
            self._directive(f"-l {shlex.quote(word)}")

    def _queue(self, value: str) -> None:
        names = value.split(",")
        if len(names) == 1 and QUEUE.fullmatch(value):
            self.queue = value
        else:
            self._draft.note("several partitions in one request", value, self._origin)

    def _fact(self, key: str, value: str) -> None:
        if not value:
            return
        if self._at:
            self._draft.set((*self._at, key), value, self._origin)
        else:
            self._draft.for_all((key,), value, self._origin, self._but)

    def _directive(self, text: str) -> None:
        if self._at:
            self._draft.add((*self._at, "directives"), [text], self._origin)
        else:
            self._draft.for_all(("directives",), [text], self._origin, self._but)
