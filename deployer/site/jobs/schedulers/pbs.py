"""PBS Professional and OpenPBS, from the manual pages and sources of OpenPBS 23.06.

Nodes are reached with ``pbs_tmrsh`` (pbs_tmrsh(8B)). It executes its words without a shell, and the program's output
goes to the job's output file. PBS copies that file to its place when the job ends (qsub(1B)), so job.sh writes to the
log itself.
"""

import os
import re
from typing import Dict, List, Optional, Sequence, Set

from deployer.contract.errors import Refused, UsageError
from deployer.contract.job import clock
from deployer.contract.shell import Code, code
from deployer.site.capture.pbs import records
from deployer.site.jobs.schedulers.interface import (
    JobRequest,
    JobState,
    Queue,
    Scheduler,
    counted,
    job_name,
    word,
)

#: pbs_messages.c: the server never had the job or has forgotten it, or the job has ended and history is kept.
_FORGOTTEN = ("Unknown Job Id", "Job has finished")
#: The states of pbs_job_attributes(7B).
_WORDS = {
    "Q": "PENDING",
    "H": "HELD",
    "W": "PENDING",
    "T": "TRANSFERRING",
    "R": "RUNNING",
    "B": "RUNNING",
    "E": "COMPLETING",
    "S": "SUSPENDED",
    "U": "SUSPENDED",
    "M": "MOVED",
    "F": "COMPLETED",
    "X": "COMPLETED",
}
_FINAL = ("COMPLETED", "FAILED", "MOVED")
#: States of nodes that run jobs, now or after the current ones (pbs_node_attributes(7B)).
_USABLE = frozenset(
    ("free", "job-busy", "job-exclusive", "resv-exclusive", "busy", "provisioning", "wait-provisioning")
)
#: NUMBER.SERVER, of an array's task NUMBER[INDEX].SERVER; ids of local jobs are NUMBER.NUMBER.HOST.
_ID = re.compile(r"^\d+(\[\d+\])?\.[A-Za-z][A-Za-z0-9._-]*$")
#: A resource of a chunk: NAME=VALUE (qsub(1B), "Requesting Resources").
_RESOURCE = re.compile(r"[A-Za-z]\w*=[^=:+]+$")


class Pbs(Scheduler):
    """PBS Professional, OpenPBS."""

    title = "PBS"
    prefix = "#PBS"
    by_hand = "qsub job.sh"
    knows = ("storage", "gpus", "exclusive")
    lists = "qstat -Q"
    explains = "pbsnodes -l"
    version = "qstat --version"
    answers = "qstat -B"
    silent = ("cannot connect to server", "Connection refused", "Connection timed out")
    look = "`qstat -Q`, and queue, account and limits in the site's profile"
    identified = code("id=$PBS_JOBID\n")
    own_log = "batch-system.log"
    ours = ("-S", "-N", "-j", "-o", "-e", "-r", "-q", "-A", "-J", "-l select", "-l place", "-l walltime")
    #: PBS ends a job by the sessions of its tasks: SIGKILL comes kill_delay, 10 s by default, after SIGTERM
    #: (pbs_queue_attributes(7B)).
    patience = 8
    agent_has_shell = False
    of_a_node = ("PBS_NODEFILE", "PBS_NODENUM", "PBS_TASKNUM", "PBS_JOBDIR", "PBS_MOMPORT")

    def directives(self, request: JobRequest) -> List[str]:
        cpus = request.ranks_per_node * request.cpus_per_rank
        chunk = "%d:ncpus=%d:mpiprocs=%d" % (request.nodes, cpus, request.ranks_per_node)
        chunk += ":mem=%dmb" % request.memory_mb if request.memory_mb is not None else ""
        if request.gpus:
            chunk += ":%s=%d" % (word("GPUs", request.gpus.word), request.gpus.per_node)
            chunk += ":gpu_type=" + word("type of GPUs", request.gpus.type) if request.gpus.type else ""
        chunk += "".join(":" + _resource(each) for each in request.constraints)
        found = [
            "-S /bin/bash",
            "-N " + job_name(request.name)[:15],  # the limit of older versions; 230 since 13
            "-j oe",
            "-o " + _path(os.path.join(request.folder, self.own_log)),
            "-r n",  # a job that begins anew over what it wrote is worse than one that failed
            "-l select=" + chunk,
            "-l place=scatter" + (":excl" if request.exclusive else ""),
            "-l walltime=" + clock(request.seconds),
        ]
        asked = [
            ("-q", "queue", request.reservation or request.queue),  # a reservation is a queue
            ("-A", "account", request.account),
        ]
        found += ["%s %s" % (option, word(what, value)) for option, what, value in asked if value]
        if request.storage:
            found.append("-l storage=" + "+".join(word("storage", each) for each in request.storage))
        return [*found, *request.directives]

    def nodes(self, hosts: Sequence[str]) -> Code:
        del hosts
        return code('cat "${{PBS_NODEFILE:-/dev/null}}"')

    def agent(self) -> Code:
        return code("pbs_tmrsh")

    def owns(self, job_id: str) -> bool:
        return _ID.match(job_id) is not None

    def submit(self, script: str, seconds: int, after: Optional[str] = None) -> List[str]:
        del seconds  # the script contains it
        return ["qsub", *(["-W", "depend=afterany:" + after] if after else []), script]

    def parse_submit(self, code: int, out: str, err: str) -> str:
        if code != 0:
            raise self.refused(code, out, err)
        job_id = (out.strip().splitlines() or [""])[-1]
        if not self.owns(job_id):
            raise Refused("qsub gave no job id: %r" % out.strip(), "try: qsub job.sh")
        return job_id

    def queue(self, partition: str) -> List[str]:
        return ["sh", "-c", 'qstat -Qf ${1:+"$1"} && pbsnodes -a', "sh", partition]

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        if "Unknown queue" in err:
            return None
        if code != 0:
            raise self.failed("qstat failed", err)
        states = [state.replace(" ", "") for state in re.findall(r"^\s+state = (.+)", out, re.MULTILINE)]
        usable = sum(1 for state in states if set(state.split(",")) <= _USABLE)
        says = counted(states)
        return Queue("enabled = True" in out and "started = True" in out, len(states), usable, says)

    def states(self, job_ids: Sequence[str]) -> List[str]:
        # Without job_history_enable, its default, a server forgets jobs that have ended. Then -x finds no job at all,
        # and qstat exits with 0.
        script = 'found=$(qstat -x -f "$@" 2>/dev/null); [ -n "$found" ] && printf "%s\\n" "$found" || qstat -f "$@"'
        return ["sh", "-c", script, "sh", *job_ids]

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        if code != 0 and not out and not any(each in err for each in _FORGOTTEN):
            raise self.failed("qstat failed", err)
        return {name.rpartition(" ")[2]: _state(fields) for name, fields in records(out).items()}

    def outputs(self) -> List[str]:
        return ["qstat", "-f"]

    def parse_outputs(self, code: int, out: str, err: str) -> Set[str]:
        if code != 0:
            raise self.failed("qstat failed", err)
        return {fields.get("Output_Path", "").partition(":")[2] for fields in records(out).values()}

    def cancel(self, job_id: str) -> List[str]:
        return ["qdel", job_id]

    def parse_cancel(self, code: int, out: str, err: str) -> None:
        del out
        if code != 0 and not any(each in err for each in _FORGOTTEN):
            raise self.failed("qdel failed", err)


def _resource(text: str) -> str:
    """Return a constraint as a resource of a chunk. Raises UsageError."""
    if not _RESOURCE.match(word("constraint", text)):
        raise UsageError(
            "constraint %r is not a resource of PBS" % text, "write NAME=VALUE, for instance cpu_type=icelake"
        )
    return text


def _path(path: str) -> str:
    """Return a path that qsub does not read as HOST:PATH. Raises UsageError."""
    if ":" in path:
        raise UsageError("PBS cannot write to the path %r" % path, "use another --root")
    return word("the path", path)


def _state(fields: Dict[str, str]) -> JobState:
    name = _WORDS.get(fields.get("job_state", ""), "UNKNOWN")
    if name == "COMPLETED" and fields.get("Exit_status", "0") != "0":
        name = "FAILED"
    hosts = dict.fromkeys(part.partition("/")[0] for part in fields.get("exec_host", "").split("+"))
    elapsed = fields.get("resources_used.walltime", "")
    return JobState(name, fields.get("comment", ""), elapsed, ",".join(hosts), name not in _FINAL)
