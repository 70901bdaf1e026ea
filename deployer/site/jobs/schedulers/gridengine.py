"""Grid Engine (8.1.9 was seen): qsub, qstat and qdel. Nodes are reached with ``qrsh -inherit``.

qstat forgets a job when it ends. A parallel environment of the site deals the slots to nodes; a slot is a core.
"""

import re
from typing import Dict, List, Optional, Sequence, Set

from deployer.contract.errors import Refused, TransferError, UsageError
from deployer.contract.shell import Code, code
from deployer.site.jobs.schedulers.interface import JobRequest, JobState, Queue, Scheduler, counted, job_name, word

_FORGOTTEN = "does not exist"
#: What each letter of a job's state means, the most important first.
_LETTERS = (
    ("d", "DELETED"),
    ("E", "ERROR"),
    ("h", "HELD"),
    ("s", "SUSPENDED"),
    ("S", "SUSPENDED"),
    ("T", "SUSPENDED"),
    ("r", "RUNNING"),
    ("t", "TRANSFERRING"),
    ("q", "PENDING"),
    ("w", "PENDING"),
)
#: States of a queue on a node in which it runs jobs, now or after the current ones: "" and an alarm of the load.
_USABLE = re.compile(r"[aA]?$")
_INSTANCE = re.compile(r"^\S+@\S+\s+\S+\s+\d+/\d+/\d+\s+\S+\s+\S+[ \t]*(\S*)")
#: A job in qstat's XML, and one of its fields: texts of other users are escaped there, so they hold no tags.
_JOB = re.compile(r"<job_list .*?</job_list>", re.DOTALL)
_FIELD = re.compile(r"<(\w+)>([^<]*)</")
#: qsub replaces variables in a path, and reads "HOST:" before it and a comma after it.
_PATH = re.compile(r"[^$:,\s'\"\\]+$")
#: $TASK_ID is 0 here for a job that is not an array, though its variable says undefined.
_OUTPUT = "/batch-system-$JOB_ID-$TASK_ID.log"
#: A job's id, or JOB.TASK for a task of an array.
_ID = re.compile(r"\d+(\.\d+)?$")


class GridEngine(Scheduler):
    """Sun's Grid Engine and its descendants."""

    title = "Grid Engine"
    prefix = "#$"
    by_hand = "qsub job.sh"
    knows = ("parallel_environment", "gpus")
    lists = "qconf -sql"
    explains = "qstat -f -explain aE"
    version = "qstat -help"
    answers = "qstat"
    silent = ("unable to send message to qmaster", "unable to contact qmaster", "commlib error", "got select error")
    look = "`qconf -sql`, `qconf -spl`, and the site's profile"
    identified = code("id=$JOB_ID.$SGE_TASK_ID id=${{id%.undefined}}\n")
    opened = code("batch-system-$JOB_ID-${{SGE_TASK_ID/undefined/0}}.log")
    ours = ("-S", "-N", "-j", "-o", "-e", "-r", "-pe", "-q", "-P", "-ar", "-t", "-l h_rt")
    of_a_node = ("PE_HOSTFILE", "SGE_JOB_SPOOL_DIR", "JOB_SCRIPT")
    #: With -notify, all processes of a job get SIGUSR2 some time before SIGKILL; the queue's "notify" says how long.
    ends = ("TERM", "USR2")
    #: With -notify, they also get SIGUSR1 before SIGSTOP.
    ignores = ("USR1",)
    own_sessions = True

    def directives(self, request: JobRequest) -> List[str]:
        if not _PATH.match(request.log or request.folder):
            raise UsageError("Grid Engine cannot write to the path %r" % request.folder, "use another --root")
        found = [
            "-S /bin/bash",
            "-N " + job_name(request.name),
            "-j y",
            "-o " + (request.log or request.folder + _OUTPUT),
            "-r n",  # a job that begins anew over what it wrote is worse than one that failed
            "-notify",
            "-l h_rt=%d" % request.seconds,
        ]
        slots = request.ranks_per_node * request.cpus_per_rank
        if request.parallel_environment:
            found.append(
                "-pe %s %d" % (word("parallel environment", request.parallel_environment), request.nodes * slots)
            )
        elif request.nodes * slots > 1:
            raise Refused(
                "Grid Engine deals slots to nodes by a parallel environment, and the plan names none",
                "set partitions.NAME.parallel_environment in the site's profile; `qconf -spl` lists them",
            )
        if request.memory_mb is not None:
            found.append("-l mem_free=%dM" % -(-request.memory_mb // slots))
        asked = [
            ("-q", "queue", request.queue),
            ("-P", "account", request.account),
            ("-ar", "reservation", request.reservation),
        ]
        found += ["%s %s" % (option, word(what, value)) for option, what, value in asked if value]
        found += ["-l " + word("constraint", each) for each in request.constraints]
        if request.gpus:  # a consumable, so it is given per slot
            if request.gpus.per_node % slots:
                raise Refused(
                    "%d GPUs cannot be divided among %d slots per node" % (request.gpus.per_node, slots),
                    "choose ranks x threads that divide the GPUs, or request them with --directive alone",
                )
            found.append("-l %s=%d" % (word("GPUs", request.gpus.word), request.gpus.per_node // slots))
        return [*found, *request.directives]

    def nodes(self, hosts: Sequence[str]) -> Code:
        del hosts
        return code("""cut -d ' ' -f 1 "${{PE_HOSTFILE:-/dev/null}}\"""")

    def agent(self) -> Code:
        return code("""\"${{SGE_BINARY_PATH:+$SGE_BINARY_PATH/}}qrsh" -inherit -nostdin""")

    def owns(self, job_id: str) -> bool:
        return _ID.match(job_id) is not None

    def submit(self, script: str, seconds: int, after: Optional[str] = None) -> List[str]:
        del seconds  # the script contains it
        return ["qsub", "-terse", *(["-hold_jid", after.partition(".")[0]] if after else []), script]

    def parse_submit(self, code: int, out: str, err: str) -> str:
        if code != 0:
            raise self.refused(code, out, err or out)
        job_id = (out.strip().splitlines() or [""])[-1]
        if not self.owns(job_id):
            raise Refused("qsub gave no job id: %r" % out.strip(), "try: qsub -verify job.sh")
        return job_id

    def queue(self, partition: str) -> List[str]:
        return ["qstat", "-f", *(["-q", partition] if partition else [])]

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        if code != 0 and self.is_silent(err):
            raise self.failed("qstat failed", err)
        found = [match.group(1) for match in map(_INSTANCE.match, out.splitlines()) if match]
        if not found:
            return None  # it prints nothing about a queue that does not exist
        usable = sum(1 for states in found if _USABLE.match(states))
        says = counted(found)
        return Queue(any("d" not in states for states in found), len(found), usable, says)

    def states(self, job_ids: Sequence[str]) -> List[str]:
        del job_ids  # qstat cannot select by them and show states
        return ["qstat", "-xml", "-u", "*"]

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        if code != 0:
            raise self.failed("qstat failed", err)
        if "</job_info>" not in out:
            raise TransferError("qstat gave no XML: %r" % out[:100], "is Grid Engine up? try: qstat")
        found = {}
        for job in _JOB.findall(out):
            fields = dict(_FIELD.findall(job))
            state = fields.get("state", "")
            name = next((name for letter, name in _LETTERS if letter in state), state.upper())
            nodes = fields.get("queue_name", "").partition("@")[2]
            number, task = fields.get("JB_job_number", ""), fields.get("tasks", "")
            found[number + ("." + task if task else "")] = JobState(name, "", "", nodes, True)
        return found

    def outputs(self) -> List[str]:
        return ["qstat", "-j", "*"]

    def parse_outputs(self, code: int, out: str, err: str) -> Set[str]:
        if code != 0 and self.is_silent(err):
            raise self.failed("qstat failed", err)
        lines = (line.partition(":") for line in out.splitlines())
        # "stdout_path_list:  NONE:NONE:/path/output.log": host and file's owner come first
        return {value.strip().split(":")[-1] for name, _, value in lines if name == "stdout_path_list"}

    def cancel(self, job_id: str) -> List[str]:
        number, _, task = job_id.partition(".")
        return ["qdel", number, *(["-t", task] if task else [])]

    def parse_cancel(self, code: int, out: str, err: str) -> None:
        if code != 0 and _FORGOTTEN not in err + out:
            raise self.failed("qdel failed", err or out)
