"""Slurm: sbatch, squeue and scancel. Accounting (sacct) may be off, so nothing here needs it."""

import os
import re
import shlex
from typing import Dict, List, Optional, Sequence, Set

from deployer.contract.errors import DeployerError, Refused, TransferError
from deployer.contract.shell import Code, code
from deployer.site.jobs.schedulers.interface import STEPS, JobRequest, JobState, Queue, Scheduler, last_words

#: States that can still change; all others are final. A COMPLETING job has ended, but its log is not complete yet.
_ACTIVE = frozenset(
    (
        "PENDING",
        "CONFIGURING",
        "RUNNING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
    )
)
#: States of nodes that run jobs, now or after the current ones.
_USABLE = frozenset(("idle", "mixed", "allocated", "completing", "planned", "reserved"))
_FORGOTTEN = "Invalid job id specified"
#: The id of a job or of an array's task; of a cluster that was named to sbatch, with the cluster, as ``sbatch
#: --parsable`` prints it.
_ID = re.compile(r"^(\d+)(?:_\d+)?(?:;([\w.-]+))?$")
#: The beginning of squeue's line before the jobs of a cluster that was named to it.
_CLUSTER = "CLUSTER: "
#: A directive that names clusters; a script has one line for each directive.
_CLUSTERS = re.compile(r"^#SBATCH +'?(?:--clusters?[= ]|-M ?)([\w.,-]+)", re.MULTILINE)
#: The word for GPUs that is one of generic resources.
_GRES = "gres"
#: What sbatch says if it refuses a job. The words are those of Slurm 22.05.
_REFUSALS = (
    (
        "[Ii]nvalid partition|partition configuration not available|permitted to use this partition",
        "queue.partition",
        "choose another --partition, or leave it out for the plan's; `sinfo -s` lists them, and which are up",
    ),
    (
        "[Nn]ode count specification invalid|More processors requested|Requested node configuration|Memory spec",
        "queue.nodes",
        (
            "use fewer --nodes, --ranks-per-node or --threads, or less --memory; `sinfo -o '%P %s %D %c %m'` prints "
            "each partition's sizes of jobs, nodes, CPUs and MiB"
        ),
    ),
    (
        "Requested time limit is invalid",
        "queue.time",
        "use a shorter --time, and --again for a longer job; `sinfo -o '%P %l'` prints the limits",
    ),
    (
        "Invalid account",
        "queue.account",
        "use an --account of yours; `sacctmgr show associations user=$USER format=account,partition,qos` lists them",
    ),
    (
        "Invalid qos|accounting/QOS policy",
        "queue.policy",
        (
            "use fewer nodes or less time, end another job, or choose another --directive=--qos=NAME; "
            "`sacctmgr show qos` prints the limits"
        ),
    ),
    (
        "Invalid feature|Requested reservation is invalid|[Ii]nvalid generic resource|Invalid Trackable",
        "queue.feature",
        (
            "correct --constraint, --reservation, --gpus or --directive, or constraint and gpu_request in the site's "
            "profile; `sinfo -o '%P %f %G'` prints features and GPUs, `scontrol show reservation` reservations"
        ),
    ),
)
#: A job's state in scontrol's output, and its output file up to the next NAME= of the line.
_JOB_STATE = re.compile(r" JobState=(\w+)")
_OUTPUT = re.compile(r" StdOut=(.*?)(?= [A-Z][\w/:]*=|$)")


class Slurm(Scheduler):
    """Slurm 17 and later: only options that are as old as that."""

    title = "Slurm"
    knows = ("qos", "cluster", "gpus", "exclusive")
    way = STEPS
    prefix = "#SBATCH"
    by_hand = "sbatch job.sh"
    lists = "sinfo"
    explains = "sinfo -R"
    version = "sinfo --version"
    answers = "sinfo"
    silent = (
        "Unable to contact slurm controller",
        "Socket timed out",
        "Connection refused",
        "Connection timed out",
        "Munge",
        "authentication",
        "Zero Bytes were transmitted",
        "Transport endpoint",
    )
    look = "`sinfo`, and partition, account and limits in the site's profile"
    refusals = _REFUSALS
    identified = code("id=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}\n")
    opened = code("batch-system-$SLURM_JOB_ID.log")

    def failed(self, what: str, err: str) -> DeployerError:
        if "munge" in err.lower():
            return TransferError(
                "%s: munge, by which Slurm knows you, does not answer here: %s" % (what, last_words(err)),
                "try another login node, and tell the site",
            )
        return super().failed(what, err)

    def directives(self, request: JobRequest) -> List[str]:
        found = [
            "--job-name=" + request.name,
            "--output=" + _output(request),
            "--nodes=%d" % request.nodes,
            "--ntasks-per-node=%d" % request.ranks_per_node,
            "--cpus-per-task=%d" % request.cpus_per_rank,
            "--time=" + request.time,
            "--no-requeue",  # a job that begins anew over what it wrote is worse than one that failed
        ]
        if request.memory_mb is not None:
            found.append("--mem=%dM" % request.memory_mb)
        if request.exclusive:
            found.append("--exclusive")
        if len(request.constraints) > 1 and any("|" in each for each in request.constraints):
            raise Refused(
                "Slurm cannot combine the constraints " + " and ".join(map(repr, request.constraints)),
                "an OR would cancel the others: give one --constraint and remove that of the site's profile",
            )
        asked = [
            ("clusters", request.cluster),
            ("partition", request.queue),
            ("account", request.account),
            ("qos", request.qos),
            ("constraint", "&".join(request.constraints)),
            ("reservation", request.reservation),
        ]
        found += ["--%s=%s" % (name, value) for name, value in asked if value]
        gpus = request.gpus
        if gpus:
            kind = gpus.type + ":" if gpus.type else ""
            what = "gres=gpu:" if gpus.word == _GRES else gpus.word + "="
            found.append("--%s%s%d" % (what, kind, gpus.per_node))
        return [shlex.quote(word) for word in [*found, *request.directives]]

    def nodes(self, hosts: Sequence[str]) -> Code:
        del hosts
        return code('scontrol show hostnames "$SLURM_JOB_NODELIST"')

    def owns(self, job_id: str) -> bool:
        return _ID.match(job_id) is not None

    def place(self, job_id: str) -> str:
        return job_id.partition(";")[2]

    def submit(self, script: str, seconds: int, after: Optional[str] = None) -> List[str]:
        del seconds  # the script contains it
        return ["sbatch", "--parsable", *(["--dependency=afterany:" + _number(after)] if after else []), script]

    def parse_submit(self, code: int, out: str, err: str) -> str:
        if code != 0:
            raise self.refused(code, out, err)
        # "ID" or "ID;CLUSTER", perhaps after lines of a site's submit plugin
        job_id = (out.strip().splitlines() or [""])[-1]
        if not self.owns(job_id):
            raise Refused("sbatch gave no job id: %r" % out.strip(), "try: sbatch --parsable --test-only job.sh")
        return job_id

    def queue(self, partition: str) -> List[str]:
        only = ["--partition=" + partition] if partition else []
        return ["sinfo", "--noheader", "--format=%P|%a|%D|%T", *only]

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        if code != 0:
            raise self.failed("sinfo failed", err)
        rows = [line.split("|") for line in out.splitlines() if line.count("|") == 3 and line.split("|")[2].isdigit()]
        # The default partition's name ends with "*". If a partition was named, there is only that one.
        rows = [row for row in rows if row[0].endswith("*")] or rows
        if not rows:
            return None
        usable = [int(row[2]) for row in rows if _is_usable(row[3])]
        says = ", ".join("%s %s" % (row[2], row[3]) for row in rows)
        return Queue(rows[0][1] == "up", sum(int(row[2]) for row in rows), sum(usable), says)

    def states(self, job_ids: Sequence[str]) -> List[str]:
        cluster = self.place(job_ids[0]) if job_ids else ""
        # With --states=all it also shows how a job ended, until slurmctld forgets it (MinJobAge, 300 s by default).
        words = ["squeue", *_of_cluster(cluster), "--noheader", "--states=all"]
        # What is not a field of the format is printed as it is: then each row has the whole id.
        number = "%i;" + cluster if cluster else "%i"
        return [*words, "--jobs=" + ",".join(map(_number, job_ids)), "--format=%s|%%T|%%M|%%N|%%r" % number]

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        if code != 0:
            if _FORGOTTEN in err:  # if there are several ids, squeue leaves out forgotten ones
                return {}
            raise self.failed("squeue failed", err)
        rows = [line.partition("|") for line in _rows(out)]
        return {number: _state(rest) for number, _, rest in rows}

    def own(self, script: str) -> List[str]:
        # With --noheader, newer versions do not print the lines that name the clusters.
        words = ["squeue", *_of_cluster(_cluster_in(script)), "--states=all", "--user=%d" % os.getuid()]
        return [*words, "--format=%i|%o"]

    def parse_own(self, code: int, out: str, err: str) -> Dict[str, str]:
        if code != 0:
            raise self.failed("squeue failed", err)
        found: Dict[str, str] = {}
        cluster = ""
        for line in out.splitlines():
            if line.startswith(_CLUSTER):
                cluster = ";" + line[len(_CLUSTER) :].strip()
            number, _, command = line.strip().partition("|")
            earlier = found.get(command)  # the first one counts: each later start has a folder of its own
            if self.owns(number + cluster) and (earlier is None or _first(number) < _first(earlier)):
                found[command] = number + cluster
        return found

    def outputs(self) -> List[str]:
        return ["scontrol", "--oneliner", "show", "job"]

    def parse_outputs(self, code: int, out: str, err: str) -> Set[str]:
        if code != 0:
            raise self.failed("scontrol failed", err)
        found = set()
        for line in out.splitlines():
            state, output = _JOB_STATE.search(line), _OUTPUT.search(line)
            if state and output and state.group(1) in _ACTIVE:
                found.add(output.group(1))
        return found

    def cancel(self, job_id: str) -> List[str]:
        return ["scancel", *_of_cluster(self.place(job_id)), _number(job_id)]

    def parse_cancel(self, code: int, out: str, err: str) -> None:
        del out
        # A job that has ended is not a failure; scancel prints nothing about it, or that the id is invalid.
        if code != 0 and _FORGOTTEN not in err:
            raise self.failed("scancel failed", err)


def _number(job_id: str) -> str:
    """Return a job's id without its cluster."""
    return job_id.partition(";")[0]


def _first(job_id: str) -> int:
    """Return the number of a job, or of an array."""
    return int(re.split("[_;]", job_id)[0])


def _output(request: JobRequest) -> str:
    """Return the path of a job's output. Slurm replaces %j in it by the number of the job or of an array's task."""
    return (
        request.folder.replace("%", "%%") + "/batch-system-%j.log"
        if request.log is None
        else request.log.replace("%", "%%")
    )


def _of_cluster(cluster: str) -> List[str]:
    """Return the words that direct a command to a cluster; none for the login node's own."""
    return ["--clusters=" + cluster] if cluster else []


def _cluster_in(script: str) -> str:
    """Return the clusters that a batch script's directives name; empty if they name none."""
    return next(reversed(_CLUSTERS.findall(script)), "")


def _rows(out: str) -> List[str]:
    """Return the lines of squeue. With a cluster it may print its name too."""
    return [line for line in out.strip().splitlines() if not line.startswith(_CLUSTER)]


def _state(text: str) -> JobState:
    """Return the state from squeue's WORD|ELAPSED|NODES|REASON."""
    word, elapsed, nodes, reason = [*text.split("|", 3), "", "", ""][:4]
    return JobState(word, "" if reason == "None" else reason, elapsed, nodes, word in _ACTIVE)


def _is_usable(state: str) -> bool:
    """Return whether nodes in a state of sinfo's can run jobs.

    The state may end with a sign: ``*`` for a node that does not answer, ``~`` for one that starts on demand.
    """
    found = re.match(r"([a-z]+)([^a-z]?)$", state)
    return found is not None and found.group(1) in _USABLE and found.group(2) != "*"
