"""Findings: what a rule saw, with a stable code that documents, tests and ``--accept`` rely on.

``RULES`` is the one table of the codes that a job can show. The connected side's ``check`` makes findings of the same
shape with codes of its own.
"""

from typing import Any, Dict, List, NamedTuple

from deployer.contract.json_records import Fields, Record
from deployer.contract.text import printable

ERROR = "error"  # the job stops, or counts as failed
WARNING = "warning"  # the job goes on; a person should know
NOTE = "note"


class Finding(NamedTuple):
    """``subject`` is what it is about (a host, a rank, a file); ``message`` what was seen; ``remedy`` what to do."""

    code: str
    severity: str
    subject: str
    message: str
    remedy: str

    def record(self) -> Record:
        """Return it as a JSON object; what programs and images say in it is escaped."""
        return {name: printable(value) for name, value in self._asdict().items()}

    @staticmethod
    def read(fields: Fields) -> "Finding":
        return Finding(*(fields.text(name) for name in Finding._fields))

    def __str__(self) -> str:
        return printable("%s %s: %s: %s" % (self.severity, self.code, self.subject, self.message))


class Rule(NamedTuple):
    """A code's severity, its message and its remedy, both with ``{placeholders}``."""

    severity: str
    message: str
    remedy: str

    def about(self, code: str, subject: str, **values: Any) -> Finding:
        """Return the finding of this rule, whose code is ``code``, about ``subject``."""
        return Finding(code, self.severity, subject, self.message.format(**values), self.remedy.format(**values))


RULES: Dict[str, Rule] = {
    # What `check` said on the laptop, as the plan carries it; its own codes stand in docs/rules.md.
    "check.refused": Rule(
        ERROR,
        "check says that it will not run here: {codes}: {first}",
        "{remedy}; `run --force` runs it all the same",
    ),
    "check.accepted": Rule(NOTE, "{message} ({rule}), which was accepted when the plan was made", "{remedy}"),
    "check.forced": Rule(NOTE, "check said that it will not run, and it was forced: {message} ({rule})", "{remedy}"),
    # Before a job is submitted; `lint`, `pack` and `check` have the same code.
    "command.missing": Rule(ERROR, "the command cannot start: {reason}", "{remedy}"),
    # The host step: what the nodes show before any container starts.
    "hosts.failed": Rule(
        ERROR,
        "the host step ended with exit {exit}: {seen} of {asked} nodes reported",
        "read the job's log: the site's Python or the shared folder may be missing on a node",
    ),
    "hosts.count": Rule(
        ERROR,
        "{asked} nodes were asked for, {seen} took part: {hosts}",
        "read the job's log, and leave out the node that is missing (--exclude in the plan's directives)",
    ),
    "hosts.missing": Rule(
        ERROR,
        "the node has no {path}, which is to be bound into the container",
        "leave out the node that differs; where all nodes lack it, capture one of them again and make a new plan",
    ),
    "mpi.host-missing": Rule(
        ERROR,
        "the node has no {library}",
        "the site's MPI was moved or the node lacks it: capture the site again and make a new plan",
    ),
    "mpi.host-differs": Rule(
        ERROR,
        "its {library} is {identity}, that of {other} is {expected}",
        "the nodes have different MPI installations: ask the site, or leave out the odd node",
    ),
    "mpi.host-drift": Rule(
        ERROR,
        "its {library} is {identity}; when the site was captured it was {expected}",
        "the site's MPI was replaced: capture the site again, check the bundle against it and make a new plan",
    ),
    # The stage step: the image on its way to the nodes.
    "stage.failed": Rule(
        ERROR,
        "the image could not be staged: {reason}",
        "free room there, use fewer ranks a node, or run it from where it was installed: --staging folder",
    ),
    # The root step: what a container shows on each node, before any rank starts.
    "runtime.root": Rule(
        ERROR,
        "{runtime} does not show the image's root: {said}",
        "the runtime, or its engine, does not work on this node: use another, or leave out the node",
    ),
    "runtime.native": Rule(
        NOTE,
        "there was no container: the host's own programs ran, and of the bundle its app, packages and job alone",
        "compare it with a job of the same layout without --runtime native",
    ),
    "runtime.start": Rule(
        ERROR,
        "{runtime} cannot start the container: {said}",
        "see what it says, and `deployer capture` on the node; a plan for a changed site is made by `deployer plan`",
    ),
    "runtime.namespaces": Rule(
        ERROR,
        "{runtime} needs user namespaces, which the node does not give: {said}",
        "capture a node (`srun python3 deployer.pyz capture --node`) and make a new plan, which takes udocker where "
        "the site's policy has it; where the other nodes have them, leave out this one",
    ),
    # The probe step: what each rank is in the container.
    "probe.skipped": Rule(WARNING, "the ranks were not watched, so nothing is proven", "add python3 to the image"),
    "proof.outside": Rule(
        NOTE,
        "the image has no Python, so the ranks were watched from outside the container: their MPI library, hosts and "
        "CPUs are seen; the size of the world is the launcher's word; network provider, thread level and a first "
        "MPI_Allreduce were not looked at",
        "add python3 to the image for a full proof before the payload",
    ),
    "probe.failed": Rule(
        ERROR,
        "the probe step ended with exit {exit}",
        "read the job's log; the last lines of each rank are in ranks/ in the job's folder",
    ),
    "probe.silent": Rule(
        ERROR, "{count} of {asked} ranks left no record", "the container did not start there: read the job's log"
    ),
    "probe.unfinished": Rule(
        ERROR,
        "it stopped while {stage}: {last}",
        "read ranks/ in the job's folder; a hang in MPI_Init points to the fabric or to the PMI of the plan's variant",
    ),
    "mpi.singletons": Rule(
        ERROR,
        "{count} ranks were started and each says that it is rank 0 of 1",
        "the launcher's PMI and the library do not speak with each other: see the plan's pmi and "
        "`srun --mpi=list`, and that PMI_* and SLURM_* are passed into the container",
    ),
    "mpi.alone": Rule(
        ERROR,
        "its MPI library cannot find the other ranks, so each is a world of its own: {reason}",
        "see the plan's launcher and pmi, `srun --mpi=list`, and that PMI_* and PMIX_* are passed into the container",
    ),
    "mpi.static": Rule(
        ERROR,
        "{path} has an MPI library linked into it, so the host's {library} is not used",
        "link the program to a shared MPI library (libmpi.so.12, or libmpi.so.40 of Open MPI)",
    ),
    "mpi.world-size": Rule(
        ERROR, "the world has {size} ranks, {asked} were asked for", "see the plan's launcher and pmi"
    ),
    "mpi.unmapped": Rule(
        ERROR,
        "no MPI library was found in the container: {reason}",
        "the plan's bind or its LD_LIBRARY_PATH does not fit this site: capture the site again and make a new plan",
    ),
    "mpi.not-host-library": Rule(
        ERROR,
        "it uses {path} ({identity}), not the host's {library} ({expected})",
        "the image's own library stands before the bound one: a different soname, an RPATH in the "
        "image, or a bind that is missing. `deployer check` on the laptop names the file",
    ),
    "mpi.version": Rule(
        ERROR,
        "MPI_Get_library_version says {says!r}, the plan expects {expected!r}",
        "capture the site again and make a new plan",
    ),
    "mpi.provider": Rule(
        ERROR,
        "libfabric uses the provider {provider!r}, the plan expects {expected!r}",
        "the fast network is not used: see that the provider's library and devices are bound",
    ),
    "mpi.allreduce": Rule(
        ERROR,
        "MPI_Allreduce is wrong: {wrong}",
        "library, launcher and fabric do not fit: FI_PROVIDER=tcp in the profile's environment tells whether it is the "
        "fabric",
    ),
    "limits.shm": Rule(
        ERROR,
        "{folder} of its node had {free} bytes free; ranks of a node ({ranks} here) send to each other through it",
        "remove what jobs have left there (`ls -l {folder}` on the node), or leave out the node (--exclude)",
    ),
    "limits.memlock": Rule(
        ERROR,
        "a process may lock {limit} bytes of memory, and {provider} needs {needed} or more for its buffers",
        "ask the site for `ulimit -l unlimited` in jobs (Slurm: PropagateResourceLimitsExcept=MEMLOCK, LimitMEMLOCK of "
        "slurmd)",
    ),
    "gpu.unusable": Rule(
        ERROR,
        "the GPUs cannot be used in the container: {reason}",
        "see the plan's binds of the driver's libraries and devices, and that the job asks for GPUs (directives)",
    ),
    "itex.inactive": Rule(
        ERROR,
        "Intel's extension for TensorFlow is in the bundle and is not active: {reason}",
        "its version must be made for this TensorFlow, and the CPU needs AVX2; the job's log has TensorFlow's words",
    ),
    "layout.pinning": Rule(
        WARNING,
        "{threads} threads have {cpus} CPUs",
        "see --cpus-per-task and --cpu-bind in job.sh and the site's task plugin",
    ),
    "layout.numa": Rule(
        NOTE,
        "{reason}",
        "another number of ranks a node, or of threads a rank: memory of another domain is slower",
    ),
    "layout.crossing": Rule(
        WARNING,
        "ranks {ranks} run across NUMA domains, and their CPUs would fit into one",
        "see how the ranks are pinned in job.sh; Slurm knows sockets and not the domains within them",
    ),
    "layout.overlap": Rule(
        WARNING,
        "ranks {ranks} share CPUs {cpus}",
        "see --cpus-per-task and --cpu-bind in job.sh and the site's task plugin",
    ),
    # The payload: what its own processes had mapped, and how they ended.
    "payload.mpi-unseen": Rule(
        WARNING,
        "no process of the payload mapped an MPI library",
        "right for a payload without MPI; else the program ended before it could be seen",
    ),
    "payload.failed": Rule(ERROR, "{how}", "the traceback or message is in the job's log: `deployer logs JOB`"),
    "payload.out-of-memory": Rule(
        ERROR,
        "{how}",
        "use fewer ranks per node, a smaller batch, or more nodes; --memory MIB asks for more memory per rank",
    ),
    "payload.read-only": Rule(
        ERROR,
        "it tried to write to the image, which is read-only: {line}",
        "write to the job's folder: /deployer/job, the default working folder; or set `workdir` in the job, or bind a "
        "folder with --bind SRC:DST",
    ),
    "payload.no-network": Rule(
        ERROR,
        "it asked for a host that the node cannot reach: {line}",
        "nodes have no internet: carry models and data in the bundle (data: in its definition) or bind them, and tell "
        "the program (HF_HUB_OFFLINE=1 for Hugging Face); if the name is a node's own, see MASTER_ADDR and the like",
    ),
    "payload.result": Rule(
        WARNING, "the file that DEPLOYER_RESULT names is no JSON: {reason}", "write one JSON object to it"
    ),
    # The image: looked at when a step failed.
    "image.gone": Rule(
        ERROR,
        "the image went away while the job used it: {image}",
        "install or push the bundle again; `remove` without --force and `gc` spare what a job uses",
    ),
    "image.incomplete": Rule(
        ERROR,
        "{gone}",
        "install or push the bundle again, which makes the image anew; the site removes old files there",
    ),
    # The job as a whole.
    "job.unfinished": Rule(
        ERROR,
        "the job was ended before it could write its result",
        "time limit, node failure, cancel or a full disk: see `deployer status` and the end of the job's log",
    ),
    "job.space": Rule(
        ERROR,
        "the disk of the job's folder is full, so evidence and log may have gaps: {reason}",
        "free some (`gc`, `remove`, old jobs and checkpoints), or ask for a larger quota; then run it again",
    ),
    "job.time-limit": Rule(
        ERROR,
        "the time limit of {limit} was reached",
        "give more time (--time), or let the payload write checkpoints when it gets SIGTERM",
    ),
    "job.stopped": Rule(
        ERROR,
        "the job was asked to stop (SIG{signal}) after {seconds} s",
        "cancelled by its owner or by the site: see `deployer status`",
    ),
    "job.launcher": Rule(
        ERROR,
        "there is no {launcher} on the node, which is to start the ranks",
        "see the MPI's module and launcher in the site's profile; capture finds them",
    ),
    "job.module": Rule(
        ERROR,
        "`module load {module}` failed on the node",
        "see `module avail`; capture the site again and make a new plan where the name has changed",
    ),
}


def finding(code: str, subject: str, **values: Any) -> Finding:
    """Return the finding of rule ``code`` about ``subject``; ``values`` fill the placeholders of its texts."""
    return RULES[code].about(code, subject, **values)


def errors(found: List[Finding]) -> List[Finding]:
    """Return the findings that make a job stop or fail."""
    return [item for item in found if item.severity == ERROR]
