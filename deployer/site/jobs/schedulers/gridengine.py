"""Grid Engine (tested with 8.1.9): qsub, qstat and qdel. Processes on nodes are started with ``qrsh -inherit``.

qstat forgets a job when it ends. A parallel environment of the site distributes slots to nodes; a slot is a core.
"""

import re
from contextlib import suppress
from typing import Dict, List, Optional, Sequence, Set

from deployer.contract.base.errors import Refused, TransferError, UsageError
from deployer.contract.base.json_records import Record
from deployer.contract.base.shell import code
from deployer.contract.bundle.sweep import numbers
from deployer.site.capture.scheduler import BatchFacts, common, duration
from deployer.site.capture.tools import Tools, determined
from deployer.site.jobs.schedulers.interface import JobRequest, JobState, Queue, Scheduler
from deployer.site.jobs.schedulers.texts import counted, job_name, options, printed, whole_number, word

#: The meaning of each letter of a job's state, the most important letter first.
_LETTERS = (
    ("d", "DELETED"),
    ("E", "ERROR"),
    ("h", "HELD"),
    ("sST", "SUSPENDED"),
    ("r", "RUNNING"),
    ("t", "TRANSFERRING"),
    ("qw", "PENDING"),
)
#: States of a queue on a node in which it runs jobs, now or after the current ones: "", or a load alarm.
_USABLE = re.compile(r"[aA]?$")
_INSTANCE = re.compile(r"^\S+@\S+\s+\S+\s+\d+/\d+/\d+\s+\S+\s+\S+[ \t]*(\S*)")
#: A job in qstat's XML, and one of its fields. Texts of other users are escaped, so they cannot contain tags.
_JOB = re.compile(r"<job_list .*?</job_list>", re.DOTALL)
_FIELD = re.compile(r"<(\w+)>([^<]*)</")
#: qsub expands variables in a path, and interprets "HOST:" before it and a comma after it.
_PATH = re.compile(r"[^$:,\s'\"\\]+$")
#: In a job that is not an array, $TASK_ID is 0 here, but the variable contains "undefined".
_OUTPUT = "/batch-system-$JOB_ID-$TASK_ID.log"
_VERSION = re.compile(r"^\S*GE\S* (\d+\.\d[\w.]*)")
#: A host in qhost's XML, one of its values, and a queue with an instance on it.
_HOST = re.compile(r"<host name='([^']+)'>(.*?)</host>", re.DOTALL)
_VALUE = re.compile(r"<hostvalue name='(\w+)'>([^<]*)<")
_QUEUE = re.compile(r"<queue name='([^']+)'>")
#: Allocation rules of parallel environments that distribute slots evenly to whole nodes, the best first.
_RULES = ("$round_robin", "$fill_up")
#: Common names for the resource that counts GPUs. Each slot of a job gets the requested number.
_GPUS = re.compile(r"^(n?gpus?|gpu_?(count|card|num)s?|cuda)$", re.IGNORECASE)
#: HH:MM:SS, in which hours and minutes may be empty, or a number of seconds: sge_types(1).
_LIMIT = re.compile(r"^(?:(\d*):(\d*):)?(\d+)$")


class GridEngine(Scheduler):
    """Sun Grid Engine and its descendants."""

    title = "Grid Engine"
    submit_host = "SGE_O_HOST"
    settings = ("SGE_",)
    prefix = "#$"
    by_hand = "qsub job.sh"
    cancels, rehearses = "qdel", "qsub -verify job.sh"
    #: A job's id, or JOB.TASK for a task of an array.
    job_id = re.compile(r"\d+(\.\d+)?$")
    forgotten = ("does not exist",)
    node_list = code("""cut -d ' ' -f 1 "${{PE_HOSTFILE:-/dev/null}}\"""")
    agent = code("""\"${{SGE_BINARY_PATH:+$SGE_BINARY_PATH/}}qrsh" -inherit -nostdin""")
    knows = ("parallel_environment", "gpus")
    lists = "qconf -sql"
    explains = "qstat -f -explain aE"
    version = "qstat -help"
    answers = "qstat"
    outputs = ("qstat", "-j", "*")
    silent = ("unable to send message to qmaster", "unable to contact qmaster", "commlib error", "got select error")
    look = "`qconf -sql`, `qconf -spl`, and the site's profile"
    identified = code("id=$JOB_ID.$SGE_TASK_ID id=${{id%.undefined}}\n")
    opened = code("batch-system-$JOB_ID-${{SGE_TASK_ID/undefined/0}}.log")
    ours = ("-S", "-N", "-j", "-o", "-e", "-r", "-pe", "-q", "-P", "-ar", "-t", "-l h_rt")
    of_a_node = ("PE_HOSTFILE", "SGE_JOB_SPOOL_DIR", "JOB_SCRIPT")
    #: With -notify, all processes of a job get SIGUSR2 before SIGKILL; the queue's "notify" is the time between them.
    ends = ("TERM", "USR2")
    #: With -notify, they also get SIGUSR1 before SIGSTOP.
    ignores = ("USR1",)
    own_sessions = True
    array_words, element_end = "-t 1-{count} -tc {most}", ".%d"

    def facts(self, tools: Tools) -> Optional[BatchFacts]:
        queues = tools.ask(["qconf", "-sql"])
        if queues is None:
            return None
        version = _VERSION.match(printed(tools, "qstat", "-help", any_status=True))
        scheduler: Record = {"kind": "gridengine", **({"version": version.group(1)} if version else {})}
        word = _gpu_word(tools)
        scheduler.update({"gpu_request": word} if word else {})
        nodes = _nodes(printed(tools, "qhost", "-q", *(["-F", word] if word else []), "-xml"), word, tools)
        environments = _environments(tools)
        partitions = {name: _partition(name, nodes.get(name, []), environments, tools) for name in queues.out.split()}
        return BatchFacts(scheduler, dict(partitions), None)

    def directives(self, request: JobRequest) -> List[str]:
        if not _PATH.match(request.log or request.folder):
            raise UsageError(f"Grid Engine cannot write to the path {request.folder!r}", "use another --root")
        lines = [
            "-S /bin/bash",
            "-N " + job_name(request.name),
            "-j y",
            "-o " + (request.log or request.folder + _OUTPUT),
            "-r n",  # a job that starts again over its own output is worse than a failed one
            "-notify",
            f"-l h_rt={request.seconds}",
        ]
        slots = request.ranks_per_node * request.cpus_per_rank
        if request.parallel_environment:
            environment = word("parallel environment", request.parallel_environment)
            lines.append(f"-pe {environment} {request.nodes * slots}")
        elif request.nodes * slots > 1:
            raise Refused(
                "Grid Engine deals slots to nodes by a parallel environment, and the plan names none",
                "set partitions.NAME.parallel_environment in the site's profile; `qconf -spl` lists them",
            )
        if request.memory_mb is not None:
            lines.append(f"-l mem_free={-(-request.memory_mb // slots)}M")
        lines += options(("-q", "queue", request.queue), ("-P", "account", request.account))
        lines += options(("-ar", "reservation", request.reservation))
        lines += ["-l " + word("constraint", constraint) for constraint in request.constraints]
        if request.gpus:  # a consumable, so it is requested per slot
            if request.gpus.per_node % slots:
                raise Refused(
                    f"{request.gpus.per_node} GPUs cannot be divided among {slots} slots per node",
                    "choose ranks x threads that divide the GPUs, or request them with --directive alone",
                )
            lines.append(f"-l {word('GPUs', request.gpus.word)}={request.gpus.per_node // slots}")
        return [*lines, *request.directives]

    def submit(self, script: str, after: Optional[str] = None, array: Sequence[str] = ()) -> List[str]:
        return ["qsub", "-terse", *(["-hold_jid", after.partition(".")[0]] if after else []), *array, script]

    def queue(self, partition: str) -> List[str]:
        return ["qstat", "-f", *(["-q", partition] if partition else [])]

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        if self.is_silent(err):
            self.check("qstat", code, err)
        instances = [match.group(1) for match in map(_INSTANCE.match, out.splitlines()) if match]
        if not instances:
            return None  # it prints nothing about a nonexistent queue
        usable = sum(1 for states in instances if _USABLE.match(states))
        return Queue(any("d" not in states for states in instances), len(instances), usable, counted(instances))

    def states(self, job_ids: Sequence[str]) -> List[str]:
        del job_ids  # qstat cannot both select jobs and show their states
        return ["qstat", "-xml", "-u", "*"]

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        self.check("qstat", code, err)
        if "</job_info>" not in out:
            raise TransferError(f"qstat gave no XML: {out[:100]!r}", "is Grid Engine up? try: qstat")
        states = {}
        for job in _JOB.findall(out):
            fields = dict(_FIELD.findall(job))
            state = fields.get("state", "")
            name = next((name for letters, name in _LETTERS if set(letters) & set(state)), state.upper())
            nodes = fields.get("queue_name", "").partition("@")[2]
            number, task = fields.get("JB_job_number", ""), fields.get("tasks", "")
            tasks = [number]
            with suppress(UsageError):  # the tasks that wait are one row: 3-10:1
                tasks = ["%s.%d" % (number, each) for each in numbers(task)]
            states.update(dict.fromkeys(tasks, JobState(name, nodes=nodes, active=True)))
        return states

    def parse_outputs(self, code: int, out: str, err: str) -> Set[str]:
        if self.is_silent(err):
            self.check("qstat", code, err)
        lines = (line.partition(":") for line in out.splitlines())
        # "stdout_path_list:  NONE:NONE:/path/output.log": host and file's owner come first
        return {value.strip().split(":")[-1] for name, _, value in lines if name == "stdout_path_list"}

    def cancel(self, job_id: str) -> List[str]:
        number, _, task = job_id.partition(".")
        return ["qdel", number, *(["-t", task] if task else [])]


def _gpu_word(tools: Tools) -> Optional[str]:
    """Return the name of the resource that counts GPUs per slot, as listed by complex(5); None if there is none."""
    for row in map(str.split, printed(tools, "qconf", "-sc").splitlines()):
        if len(row) != 8 or not _GPUS.match(row[0]):
            continue
        if row[4] in ("YES", "FORCED") and row[5] == "YES":
            return row[0]
        tools.note(f"the resource {row[0]} is not counted per slot: jobs request it with directives")
    return None


def _nodes(text: str, word: Optional[str], tools: Tools) -> Dict[str, List[Record]]:
    """Return the hardware of each queue's nodes."""
    shapes: Dict[str, List[Record]] = {}
    for host, inner in _HOST.findall(text):
        shape = _shape(dict(_VALUE.findall(inner)))
        queues = _QUEUE.findall(inner)
        if word and queues and f"<resourcevalue name='{word}'" in inner:
            # qhost prints only the free GPUs
            values = _fields(printed(tools, "qconf", "-se", host)).get("complex_values", "").replace(" ", "")
            total = re.search(rf"(?:^|,){re.escape(word)}=(\d+)(?:\.0*)?(?:,|$)", values)
            count = int(total.group(1)) if total else 0
            shape.update({"gpus": {"count": count}} if count else {})
        for queue in queues:
            shapes.setdefault(queue, []).append(shape)
    return shapes


def _shape(values: Dict[str, str]) -> Record:
    sockets, cores, threads = (whole_number(values.get(name, "")) for name in ("m_socket", "m_core", "m_thread"))
    if not sockets * cores:
        return {}
    shape: Record = {"sockets": sockets, "cores": cores}
    if threads and threads % cores == 0:
        shape["threads_per_core"] = threads // cores
    return shape


def _partition(name: str, nodes: List[Record], environments: Dict[str, str], tools: Tools) -> Record:
    fields = _fields(printed(tools, "qconf", "-sq", name))
    limit = _LIMIT.match(fields.get("h_rt", ""))
    shape = common(name, nodes, tools)
    # The list may have host-specific values: "mpi smp,[cn1=gpu]".
    names = re.sub(r"\[[^\]]*\]", "", fields.get("pe_list", "")).replace(",", " ").split()
    usable = [environment for environment in environments if environment in names]
    if len(usable) > 1:
        others = ", ".join(f"{other} ({environments[other]})" for other in usable[1:])
        tools.note(f"partition {name}: parallel environment {usable[0]} was chosen; others: {others}")
    elif not usable:
        tools.note(f"partition {name}: no parallel environment deals slots to several nodes and has control_slaves")
    partition: Record = {
        "nodes": len(nodes) or None,
        "max_time": duration(limit) if limit else None,
        "node": shape,
        "parallel_environment": usable[0] if usable else None,
    }
    return determined(partition)


def _environments(tools: Tools) -> Dict[str, str]:
    """Return the allocation rules of parallel environments in which deployer's jobs can run, the best first.

    Such an environment distributes slots over several nodes and allows processes there.
    """
    rules = {}
    for name in sorted(printed(tools, "qconf", "-spl").split()):
        fields = _fields(printed(tools, "qconf", "-sp", name))
        rule = fields.get("allocation_rule", "")
        if fields.get("control_slaves", "").upper() == "TRUE" and (rule in _RULES or rule.isdigit()):
            rules[name] = rule
    return {name: rules[name] for name in sorted(rules, key=lambda name: (*_RULES, rules[name]).index(rules[name]))}


def _fields(text: str) -> Dict[str, str]:
    """Return the fields of qconf's output, in which a backslash continues a line."""
    pairs = (line.partition(" ") for line in re.sub(r"\\\n\s*", "", text).splitlines())
    return {name: value.strip() for name, _, value in pairs}
