"""The interface of a scheduler: pure builders of argv, and parsers of (exit code, output). It starts no processes.

It also contains what job.sh needs from a batch system (ADR 48): its directives, the job's id and nodes, and how to
start a process on each node.
"""

import re
from typing import Dict, List, NamedTuple, Optional, Pattern, Sequence, Set, Tuple

from deployer.contract.base.errors import DeployerError, Refused, TransferError
from deployer.contract.base.shell import Code, code, quoted
from deployer.contract.bundle.sweep import TaskGroup, numbers
from deployer.contract.rules.findings import coded
from deployer.contract.site.plan import GpuRequest
from deployer.site.capture.scheduler import BatchSystem
from deployer.site.jobs.schedulers.texts import last_words

#: How processes start on the nodes of a job: on this machine, as steps (srun), or with an agent per node, like ssh.
ALONE, STEPS, AGENT = "alone", "steps", "agent"


class JobRequest(NamedTuple):
    """A job's request to its batch system; the layout may be filled in later.

    Attributes:
        name: the job's name.
        folder: the job's folder.
        log: the file for its output; None: a file in the folder with the job's id in its name.
        nodes: number of nodes.
        ranks_per_node: ranks per node.
        cpus_per_rank: CPUs per rank, as the batch system counts them.
        threads: threads per rank.
        hyperthreads: whether each thread gets a hardware thread instead of a whole core.
        time: the time limit, ``[D-]HH:MM:SS``.
        seconds: the same in seconds.
        memory_mb: MiB per node; None: not specified.
        queue: the partition or queue; empty: the default one.
        account: the account to charge; None: the batch system's default.
        constraints: features that the nodes must all have, in the batch system's words.
        reservation: the reservation.
        qos: the quality of service.
        cluster: the cluster, if the batch system has several.
        storage: file systems.
        gpus: the number of GPUs per node.
        parallel_environment: the Grid Engine environment that distributes slots to nodes.
        directives: additional directives from the plan and the user, one line each.
        exclusive: whether the job must have its nodes to itself.
    """

    name: str = ""
    folder: str = ""
    log: Optional[str] = None
    nodes: int = 1
    ranks_per_node: int = 1
    cpus_per_rank: int = 1
    time: str = ""
    seconds: int = 0
    memory_mb: Optional[int] = None
    queue: str = ""
    account: Optional[str] = None
    constraints: Sequence[str] = ()
    reservation: Optional[str] = None
    qos: Optional[str] = None
    cluster: Optional[str] = None
    storage: Sequence[str] = ()
    gpus: Optional[GpuRequest] = None
    parallel_environment: Optional[str] = None
    directives: Sequence[str] = ()
    threads: int = 1
    hyperthreads: bool = False
    exclusive: bool = False


class JobState(NamedTuple):
    """The scheduler's state of a job; a text is empty if the scheduler does not report it.

    Attributes:
        word: the scheduler's name for it (``PENDING``, ``TIMEOUT``, ...).
        reason: why the job has this state.
        elapsed: the time since its start.
        nodes: its nodes.
        active: whether the state can still change.
    """

    word: str
    reason: str = ""
    elapsed: str = ""
    nodes: str = ""
    active: bool = False


class Queue(NamedTuple):
    """A partition.

    Attributes:
        open: whether it accepts jobs.
        nodes: number of nodes.
        usable: number of nodes that can run a job now or later.
        says: the scheduler's own description of the nodes' states.
    """

    open: bool
    nodes: int
    usable: int
    says: str


class NotTaken(Refused):
    """The batch system's message proves that it has not accepted a job. After any other error it may have the job."""


class Scheduler(BatchSystem):
    """A scheduler. The implementations are in the plain dict ``SCHEDULERS`` under the names that plans use."""

    #: Its name in texts for users.
    title = ""
    #: How processes start on the nodes: ALONE, STEPS or AGENT.
    way = AGENT
    #: The prefix of directive lines in job.sh; empty: the scheduler does not read directives.
    prefix = ""
    #: The command to submit job.sh manually.
    by_hand = "./job.sh"
    #: The program that submits a job; empty: the first word of the command.
    submits = ""
    #: The program that cancels a job, and a command that shows why a submission returned no id.
    cancels = rehearses = ""
    #: The variable that selects its cluster, if there are several.
    selects = ""
    #: The command that lists partitions or queues.
    lists = ""
    #: The command that shows why nodes are down.
    explains = ""
    #: The command that prints its version.
    version = ""
    #: argv that queries the output files of all active jobs, including manually submitted ones, if there is a queue.
    outputs: Tuple[str, ...] = ("true",)
    #: The command that shows whether the scheduler answers.
    answers = ""
    #: Messages of its commands if the scheduler does not answer; a later query may succeed.
    silent: Tuple[str, ...] = ()
    #: Messages of its commands if it does not know a job, or the job has ended.
    forgotten: Tuple[str, ...] = ()
    #: Matches the ids that it gives.
    job_id: Pattern[str] = re.compile(r"(?!)")
    #: Where to look if the scheduler refuses something.
    look = ""
    #: Patterns of its messages when it refuses a job, each with a code and a remedy.
    refusals: Tuple[Tuple[str, str, str], ...] = ()
    #: The lines of job.sh that set $id to the job's id, or to that of an array's task; $id is empty without one.
    identified: Code = code("id=\n")
    #: The command of job.sh that prints the job's nodes, one per line.
    node_list: Code = code("uname -n")
    #: The words that start a command on a node. The node and the command follow them.
    agent: Code = code("")
    #: Variables that describe one node and must not reach the job's other nodes. The names are constants.
    of_a_node: Tuple[str, ...] = ()
    #: The optional parts of a request that this batch system supports.
    knows: Tuple[str, ...] = ()
    #: The first words of directives that job.sh sets itself.
    ours: Tuple[str, ...] = ()
    #: In job.sh, the name of the output file that the batch system has already opened; job.sh makes it the log.
    #: Empty: there is none.
    opened: Code = code("")
    #: The batch system's own output file, if it is only complete at the job's end. Then job.sh writes the log itself.
    own_log = ""
    #: The signals with which the batch system asks job.sh to end.
    ends: Tuple[str, ...] = ("TERM",)
    #: Signals to job.sh that it ignores.
    ignores: Tuple[str, ...] = ()
    #: Seconds for ranks to end after such a signal. Then job.sh kills the launcher's session, because the batch system,
    #: which is about to kill the job, does not reach it. None: the batch system reaches all processes.
    patience: Optional[int] = None
    #: Whether the agent's command passes the words after the node to a shell there, like ssh. If not, it executes them
    #: directly, without returning the program's output.
    agent_has_shell = True
    #: Whether a command on a node starts in its own session, because signals for job.sh would reach it otherwise.
    own_sessions = False
    #: The words that make a submission an array: of the tasks {tasks}, or counted from 1 to {count}; {most} at once,
    #: with {limit} after a range. Empty: it has no arrays.
    array_words = ""
    #: Whether the tasks of an array have any numbers that its words list. If not, they are counted from 1.
    own_numbers = False
    #: The end of the id of an array's task.
    element_end = "[%d]"

    def failed(self, what: str, err: str) -> DeployerError:
        """Return the error for a failed command: TransferError if the scheduler does not answer, otherwise Refused."""
        words = f"{what}: {last_words(err)}"
        if self.is_silent(err):
            return TransferError(words, f"is {self.title} up? try: {self.answers}")
        return Refused(words, "see " + self.look)

    def check(self, program: str, exit_code: int, err: str, *excused: str) -> None:
        """Raise the error of a failed command unless ``err`` contains an excused message."""
        if exit_code != 0 and not any(text in err for text in excused):
            raise self.failed(f"{program} failed", err)

    def refused(self, exit_code: int, out: str, err: str) -> DeployerError:
        """Return the error for a failed submission: NotTaken if there is certainly no job."""
        error = self.failed(f"{self.title} did not take the job", err)
        reason = _reason(err)
        for text in (reason, err) if isinstance(error, Refused) else ():
            for pattern, finding, remedy in self.refusals:
                if re.search(pattern, text):
                    certain = text == reason and exit_code > 0 and not any(map(self.owns, out.split()))
                    return (NotTaken if certain else Refused)(coded(error.message, finding), remedy)
        return error

    def is_silent(self, err: str) -> bool:
        """Return whether a command failed because the batch system does not answer."""
        return any(text in err for text in self.silent)

    def directives(self, request: JobRequest) -> List[str]:
        """Return the directives of job.sh, without their prefix. Raises UsageError for unsupported requests."""
        raise NotImplementedError

    def nodes(self, hosts: Sequence[str]) -> Code:
        """Return a command of job.sh that prints the job's nodes, one per line; ``hosts`` are the plan's."""
        del hosts
        return self.node_list

    def owns(self, job_id: str) -> bool:
        """Return whether this scheduler gave the id."""
        return self.job_id.match(job_id) is not None

    def place(self, job_id: str) -> str:
        """Return the cluster to which the commands about a job must be directed; empty: the login node's own."""
        del job_id
        return ""

    def array(self, group: TaskGroup) -> List[str]:
        """Return the words that submit the last array of a group. Raises Refused: there are no arrays here."""
        if not self.array_words:
            hint = "run the tasks one after the other, each with its own arguments after --"
            raise Refused("--array and --sweep need a batch system with arrays of jobs, and this site has none", hint)
        tasks = group.arrays[-1].tasks
        count = len(numbers(tasks))
        limit, most = "%%%d" % group.at_once if group.at_once else "", group.at_once or count
        return self.array_words.format(tasks=tasks, count=count, limit=limit, most=most).split()

    def submitting(self, group: Optional[TaskGroup]) -> str:
        """Return the command that submits job.sh manually, for a group its last array."""
        return self.by_hand.replace(" ", f" {quoted(self.array(group))} ", 1) if group else self.by_hand

    def element(self, array: str, index: int) -> str:
        """Return the id of the task of an array that the batch system numbers ``index``; see ``own_numbers``."""
        return re.sub(r"^\d+", lambda match: match.group() + self.element_end % index, array)

    def submit(self, script: str, after: Optional[str] = None, array: Sequence[str] = ()) -> List[str]:
        """Return argv that submits the batch script at the path ``script``.

        Without directives, the time limit in seconds follows as the last word.

        Args:
            after: the id of the job that must have ended before, successfully or not.
            array: the words of ``array``.
        """
        raise NotImplementedError

    def parse_submit(self, code: int, out: str, err: str) -> str:
        """Return the new job's id.

        Raises:
            NotTaken: there is certainly no job.
            Refused: the command failed, or printed no id.
            TransferError: the scheduler does not answer.
        """
        if code != 0:
            raise self.refused(code, out, err or out)
        number = self.submitted(out)
        if not self.owns(number):
            raise Refused(f"{self.by_hand.split()[0]} gave no job id: {out.strip()!r}", "try: " + self.rehearses)
        return number

    def submitted(self, out: str) -> str:
        """Return the id in what a submission printed, possibly after lines of a site's submit plugin."""
        number = (out.strip().splitlines() or [""])[-1]
        return re.sub(r"\.1-\d+:1$", "", number)  # an array of Grid Engine

    def queue(self, partition: str) -> List[str]:
        """Return argv that queries a partition; an empty text means the default partition."""
        raise NotImplementedError

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        """Return the partition, or None if it does not exist. Raises TransferError."""
        raise NotImplementedError

    def states(self, job_ids: Sequence[str]) -> List[str]:
        """Return argv that queries the states of jobs, all of the same ``place``."""
        raise NotImplementedError

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        """Return the states by id, without the jobs that the scheduler has forgotten. Raises TransferError."""
        raise NotImplementedError

    def own(self, script: str) -> List[str]:
        """Return argv that queries this user's jobs and their scripts; empty if this is not supported.

        Args:
            script: the text of a batch script, whose directives may name the cluster to query.
        """
        del script
        return []

    def parse_own(self, code: int, out: str, err: str) -> Dict[str, str]:
        """Return the ids of these jobs by the paths of their scripts. Raises TransferError."""
        del code, out, err
        return {}

    def elsewhere(self, job_id: str, here: str) -> Optional[str]:
        """Return the only host that knows the job; None if this host (``here``) can query it."""
        del job_id, here
        return None

    def parse_outputs(self, code: int, out: str, err: str) -> Set[str]:
        """Return the paths of the files that ``outputs`` prints. Raises TransferError."""
        del code, out, err
        return set()

    def cancel(self, job_id: str) -> List[str]:
        """Return argv that cancels a job."""
        return [self.cancels, job_id]

    def parse_cancel(self, code: int, out: str, err: str) -> None:
        """Raise Refused or TransferError if the job could not be cancelled. One that has ended is not an error."""
        if not any(text in out for text in self.forgotten):
            self.check(self.cancels, code, err or out, *self.forgotten)


def _reason(err: str) -> str:
    """Return the lines that explain why a command failed, without others, such as those of a site's plugin."""
    lines = err.splitlines()
    marked = ([line for line in lines if mark in line] for mark in ("submission failed", "error:"))
    return "\n".join(next(filter(None, marked), lines))
