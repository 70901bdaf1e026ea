"""IBM Spectrum LSF 10.1, written from IBM's command reference and administration pages; never tested.

Nodes are reached with ``blaunch``, which is used like ``rsh HOST COMMAND`` (blaunch.8). LSF keeps a job's output
until its end, unless LSB_STDOUT_DIRECT is set (bsub.1), so job.sh writes to the log itself.

Queues are partitions, from lsid and bqueues -l. The command reference lists the fields. Their layout follows its
examples and XSEDE's ipf, which reads it too. A queue's hosts can be groups, exceptions and preferences, so they are
not counted; a job in the queue captures the hardware of a node.
"""

import re
from typing import Dict, List, Optional, Sequence, Set

from deployer.contract.base.json_records import Record
from deployer.contract.base.shell import code
from deployer.contract.bundle.job import clock
from deployer.contract.rules.batch_words import words
from deployer.site.capture.scheduler import BatchFacts
from deployer.site.capture.tools import Tools
from deployer.site.jobs.schedulers.interface import JobRequest, JobState, Queue, Scheduler
from deployer.site.jobs.schedulers.texts import counted, job_name, options, output_path, printed, word

#: From "Job states" in the administration pages.
_WORDS = {
    "PEND": ("PENDING", True),
    "WAIT": ("PENDING", True),
    "PSUSP": ("HELD", True),
    "RUN": ("RUNNING", True),
    "USUSP": ("SUSPENDED", True),
    "SSUSP": ("SUSPENDED", True),
    "UNKWN": ("UNKNOWN", True),
    "ZOMBI": ("FAILED", False),
    "DONE": ("COMPLETED", False),
    "EXIT": ("FAILED", False),
}
#: bjobs -o: a field without a width is not truncated; a missing value is "-".
_FORMAT = "jobid jobindex stat run_time exec_host pend_reason delimiter='|'"
_SUBMITTED = re.compile(r"^Job <(\d+)> is submitted to (?:default )?queue <[^>]*>", re.MULTILINE)
#: Reasons why a host accepts jobs later but not now (bhosts.1): its load, its jobs, its dispatch window.
_USABLE = ("ok", "closed_Busy", "closed_Cu_excl", "closed_Excl", "closed_Full", "closed_Wind")
_VERSION = re.compile(r"\bLSF\b.*?(\d+\.\d[\d.]*)")
_CLUSTER = re.compile(r"^My cluster name is (\S+)", re.MULTILINE)
_QUEUE = re.compile(r"^QUEUE: (\S+)", re.MULTILINE)
_DEFAULT = "This is the default queue."
#: The run limit in minutes. If there are default limits, they come first, under their own title, before the maximum.
_LIMIT = re.compile(r"^\s*RUNLIMIT\s*\n\s*(\d+(?:\.\d+)?) min", re.MULTILINE)
_LARGEST = "MAXIMUM LIMITS:"
#: The title of the list of GPUs, and its first entry.
_GPUS = re.compile(r"^HOST_NAME +gpu_id .*\n\S+ +\d", re.MULTILINE | re.IGNORECASE)


class Lsf(Scheduler):
    """LSF 10.1.0.9 and later; older versions cannot specify memory and GPUs per host (release notes of 10.1.0.9)."""

    title = "LSF"
    submit_host = "LSB_SUB_HOST"
    settings = ("LSF_",)
    prefix = "#BSUB"
    by_hand = rehearses = "bsub <job.sh"
    submits, cancels = "bsub", "bkill"
    job_id = re.compile(r"\d+(\[\d+\])?$")
    #: bjobs.1 and bkill.1: LSF forgets a job CLEAN_PERIOD after its end, an hour by default (lsb.params.5).
    forgotten = ("is not found", "No matching job found", "already finished")
    node_list = code('cat "${{LSB_DJOB_HOSTFILE:-/dev/null}}"')
    agent = code("blaunch")
    knows = ("gpus", "exclusive")
    lists = "bqueues"
    explains = "bhosts -l"
    version = answers = "lsid"
    outputs = ("bjobs", "-noheader", "-o", "output_file")
    silent = (
        "LSF is down",
        "Cannot connect to LSF",
        "Failed in an LSF library call",
        "daemon not responding",
        "try later",
    )
    look = "`bqueues`, and queue, account and limits in the site's profile"
    identified = code('id=$LSB_JOBID[${{LSB_JOBINDEX:-0}}] id=${{id%"[0]"}}\n')
    own_log = "batch-system.log"
    array_words = "-J deployer[1-{count}]{limit}"
    ours = ("-J", "-o", "-e", "-r", "-rn", "-n", "-W", "-q", "-P", "-U")
    of_a_node = ("LSB_DJOB_HOSTFILE", "LSB_HOSTS", "LSB_MCPU_HOSTS", "LSB_JOBFILENAME", "LSB_AFFINITY_HOSTFILE")
    #: At the run limit, LSF sends SIGUSR2 and ends the job ten minutes later (bsub -W). bkill sends SIGINT, SIGTERM and
    #: SIGKILL, 10 s apart; a parallel job gets only SIGKILL unless LSB_USE_SEQUENTIAL_SIGNAL=Y (lsf.conf.5).
    ends = ("TERM", "INT", "USR2")

    def facts(self, tools: Tools) -> Optional[BatchFacts]:
        about = printed(tools, "lsid")
        version = _VERSION.search(about)
        listed = tools.ask(["bqueues", "-l"]) if version else None
        if version is None or listed is None:
            return None
        parts = _QUEUE.split(listed.out)[1:]
        queues = sorted(zip(parts[::2], parts[1::2]), key=lambda queue: _DEFAULT not in queue[1])
        cluster = _CLUSTER.search(about)
        scheduler: Record = {"kind": "lsf", "version": version.group(1).rstrip(".")}
        gpus = _GPUS.search(printed(tools, "lshosts", "-gpu", any_status=True))
        # It is unknown which queues have GPUs, because a job without a request sees none.
        word: Record = {"gpu_request": words("lsf").gpus} if gpus else {}
        return BatchFacts(
            scheduler, {name: dict(_partition(text), **word) for name, text in queues}, cluster and cluster.group(1)
        )

    def directives(self, request: JobRequest) -> List[str]:
        slots = request.ranks_per_node
        lines = [
            "-J " + job_name(request.name),
            "-o " + output_path(self.title, request.folder, self.own_log, "%"),  # bsub would expand %J and %I
            "-rn",  # a job that starts again over its own output is worse than a failed one
            "-n %d" % (request.nodes * slots),
            '-R "span[ptile=%d]"' % slots,
            # without AFFINITY=Y on its hosts (lsb.hosts.5), the job stays pending
            '-R "affinity[%s(%d)]"' % ("thread" if request.hyperthreads else "core", request.threads),
            "-W %d:%02d" % (-(-request.seconds // 60) // 60, -(-request.seconds // 60) % 60),
        ]
        lines += ["-x"] if request.exclusive else []
        if request.memory_mb is not None:
            lines.append(f'-R "rusage[mem={request.memory_mb}MB/host]"')
        lines += ['-R "select[{}]"'.format(word("constraint", name)) for name in request.constraints]
        if request.gpus:
            model = ":gmodel=" + word("type of GPUs", request.gpus.type) if request.gpus.type else ""
            lines.append(f'-gpu "num={request.gpus.per_node}/host{model}"')
        lines += options(("-q", "queue", request.queue), ("-P", "account", request.account))
        lines += options(("-U", "reservation", request.reservation))
        return [*lines, *request.directives]

    def submit(self, script: str, after: Optional[str] = None, array: Sequence[str] = ()) -> List[str]:
        # bsub reads directives from its standard input only.
        more = [*(["-w", f"ended({after})"] if after else []), *array]
        return ["sh", "-c", 'script=$1; shift; exec bsub "$@" <"$script"', "sh", script, *more]

    def submitted(self, out: str) -> str:
        match = _SUBMITTED.search(out)
        return match.group(1) if match else ""

    def queue(self, partition: str) -> List[str]:
        return ["sh", "-c", 'bqueues ${1:+"$1"} && echo && bhosts -w', "sh", partition]

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        if "No such queue" in err:
            return None
        self.check("bqueues", code, err)
        queues, _, hosts = out.partition("\n\n")
        states = [line.split()[1] for line in hosts.splitlines()[1:] if len(line.split()) > 1]
        usable = sum(1 for state in states if state in _USABLE)
        return Queue("Open:Active" in queues, len(states), usable, counted(states))

    def states(self, job_ids: Sequence[str]) -> List[str]:
        return ["bjobs", "-a", "-noheader", "-o", _FORMAT, *job_ids]

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        if not out:
            self.check("bjobs", code, err, *self.forgotten)
        states = {}
        for line in out.splitlines():
            if line.count("|") >= 5:
                row = (part.strip() for part in line.split("|", 6)[:6])
                number, task, status, elapsed, hosts, reason = ("" if part == "-" else part for part in row)
                name, active = _WORDS.get(status, (status, False))
                # "2*cn1:2*cn2": slots and hosts
                nodes = ",".join(dict.fromkeys(host.rpartition("*")[2] for host in hosts.split(":")))
                own_id = f"{number}[{task}]" if task not in ("", "0") else number
                states[own_id] = JobState(name, reason, elapsed, nodes, active)
        return states

    def parse_outputs(self, code: int, out: str, err: str) -> Set[str]:
        self.check("bjobs", code, err, "No unfinished job found")
        return {line.strip() for line in out.splitlines()}


def _partition(text: str) -> Record:
    limit = _LIMIT.search(text.partition(_LARGEST)[2] or text)
    if not limit or not float(limit.group(1)):
        return {}
    return {"max_time": clock(int(float(limit.group(1)) * 60))}
