"""Slurm: sbatch, squeue and scancel. Accounting (sacct) may be off, so nothing in this module requires it."""

import os
import re
import shlex
from typing import Dict, List, Optional, Sequence, Set

from deployer.contract.base.errors import DeployerError, Refused, TransferError
from deployer.contract.base.grouping import grouped
from deployer.contract.base.json_records import Record
from deployer.contract.base.shell import code
from deployer.site.capture.scheduler import CPUS, ENOUGH, GPUS, MEMORY, BatchFacts, Nodes, common, kinds
from deployer.site.capture.tools import Tools, determined
from deployer.site.jobs.schedulers.interface import STEPS, JobRequest, JobState, Queue, Scheduler
from deployer.site.jobs.schedulers.texts import last_words, printed, whole_number

#: States that can still change; all others are final. A COMPLETING job has ended, but its log is still incomplete.
_ACTIVE = frozenset((
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_HOLD",
    "REQUEUE_FED", "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "RESV_DEL_HOLD",
))  # fmt: skip
#: States of nodes that run jobs, now or after the current ones. A symbol may follow: ``*`` for a node that does not
#: answer, ``~`` for one that starts on demand.
_USABLE = re.compile(r"(idle|mixed|allocated|completing|planned|reserved)[^a-z*]?$")
#: The start of squeue's line before the jobs of a requested cluster.
_CLUSTER = "CLUSTER: "
#: A directive with a list of clusters; each directive is on its own line.
_CLUSTERS = re.compile(r"^#SBATCH +'?(?:--clusters?[= ]|-M ?)([\w.,-]+)", re.MULTILINE)
#: The word for a GPU in the list of generic resources.
_GRES = "gres"
#: Messages of sbatch when it refuses a job, as printed by Slurm 22.05.
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
        "Invalid qos|accounting/QOS policy|Invalid job array spec",
        "queue.policy",
        (
            "use fewer nodes or tasks or less time, end another job, or choose another --directive=--qos=NAME; "
            "`sacctmgr show qos` prints the limits, `scontrol show config` MaxArraySize, the limit of task numbers"
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
#: In scontrol's output, a job's state, and its output file up to the next NAME= in the line.
_JOB_STATE = re.compile(r" JobState=(\w+)")
_OUTPUT = re.compile(r" StdOut=(.*?)(?= [A-Z][\w/:]*=|$)")
#: One line per kind of node in a partition: name (* for the default), nodes, sockets, cores per socket, threads per
#: core, memory in MiB, GPUs, time limit, job sizes, CPUs as Slurm counts them, features, node names.
_FORMAT = "%P|%D|%X|%Y|%Z|%m|%G|%l|%s|%c|%f|%N"
#: The query for all partitions.
SINFO = ["sinfo", "--noheader", "--exact", "--format=" + _FORMAT]
#: GPUs among a node's generic resources: gpu:TYPE:COUNT, sometimes followed by a list of sockets in brackets.
_GPU = re.compile(r"(?:^|,)gpu(?::([\w.-]+))??(?::no_consume)?:(\d+)(?=[,(]|$)")
_PMI = re.compile(r"^[a-z][a-z0-9_]{0,30}$")


class Slurm(Scheduler):
    """Slurm 17 and later; only uses options that Slurm 17 has."""

    title = "Slurm"
    submit_host, job_partition, node_name = "SLURM_SUBMIT_HOST", "SLURM_JOB_PARTITION", "SLURMD_NODENAME"
    settings = ("SLURM_CONF",)
    selects = "SLURM_CLUSTERS"
    knows = ("qos", "cluster", "gpus", "exclusive")
    way = STEPS
    prefix = "#SBATCH"
    by_hand = "sbatch job.sh"
    cancels, rehearses = "scancel", "sbatch --parsable --test-only job.sh"
    #: The id of a job or of an array's task. If sbatch was given a cluster, the id includes it, in the format of
    #: ``sbatch --parsable``: "ID" or "ID;CLUSTER".
    job_id = re.compile(r"^(\d+)(?:_\d+)?(?:;([\w.-]+))?$")
    forgotten = ("Invalid job id specified",)
    node_list = code('scontrol show hostnames "$SLURM_JOB_NODELIST"')
    lists = answers = "sinfo"
    explains = "sinfo -R"
    version = "sinfo --version"
    outputs = ("scontrol", "--oneliner", "show", "job")
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
    array_words, own_numbers, element_end = "--array={tasks}{limit}", True, "_%d"

    def facts(self, tools: Tools) -> Optional[BatchFacts]:
        version = re.search(r"\d+\.\d+[\w.-]*", printed(tools, "sinfo", "--version"))
        if version is None:
            return None
        pmi = _pmi_types(tools)
        scheduler: Record = {"kind": "slurm", "version": version.group(), **({"pmi": pmi} if pmi else {})}
        config = printed(tools, "scontrol", "show", "config")
        settings = {name: value.strip() for name, value in re.findall(r"^(\w+)\s*= (.*)$", config, re.MULTILINE)}
        # If the controller did not answer, it will not answer now.
        rows = _rows(tools) if settings else []
        # including the partitions that this user may not use
        shown = printed(tools, "scontrol", "--oneliner", "--all", "show", "partition") if rows else ""
        known = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in shown.splitlines()]
        details = {partition["PartitionName"]: partition for partition in known if "PartitionName" in partition}
        partitions = _partitions(rows, tools, details, settings)
        _note_closed(details, list(partitions), tools)
        spool = settings.get("SlurmdSpoolDir", "")
        common_spool = spool if spool.startswith("/") and "%" not in spool else None  # %n and %h differ between nodes
        return BatchFacts(scheduler, partitions, settings.get("ClusterName"), common_spool)

    def own_node(self, tools: Tools, name: str) -> Record:
        rows = _rows(tools, "--nodes=" + name)
        return _shape(rows[0]) if rows else {}

    def failed(self, what: str, err: str) -> DeployerError:
        if "munge" in err.lower():
            what += ": munge, by which Slurm knows you, does not answer here"
            return TransferError(f"{what}: {last_words(err)}", "try another login node, and tell the site")
        return super().failed(what, err)

    def directives(self, request: JobRequest) -> List[str]:
        log, folder = ((path or "").replace("%", "%%") for path in (request.log, request.folder))
        lines = [
            "--job-name=" + request.name,
            "--output=" + (log or folder + "/batch-system-%j.log"),  # %j: the number of the job or array task
            "--nodes=%d" % request.nodes,
            "--ntasks-per-node=%d" % request.ranks_per_node,
            "--cpus-per-task=%d" % request.cpus_per_rank,
            "--time=" + request.time,
            "--no-requeue",  # a job that starts again over its own output is worse than a failed one
            *(["--mem=%dM" % request.memory_mb] if request.memory_mb is not None else []),
            *(["--exclusive"] if request.exclusive else []),
        ]
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
        lines += [f"--{name}={value}" for name, value in asked if value]
        gpus = request.gpus
        if gpus:
            kind = gpus.type + ":" if gpus.type else ""
            what = "gres=gpu:" if gpus.word == _GRES else gpus.word + "="
            lines.append("--%s%s%d" % (what, kind, gpus.per_node))
        return [shlex.quote(word) for word in [*lines, *request.directives]]

    def place(self, job_id: str) -> str:
        return job_id.partition(";")[2]

    def submit(self, script: str, after: Optional[str] = None, array: Sequence[str] = ()) -> List[str]:
        more = [*(["--dependency=afterany:" + _number(after)] if after else []), *array]
        return ["sbatch", "--parsable", *more, script]

    def queue(self, partition: str) -> List[str]:
        only = ["--partition=" + partition] if partition else []
        return ["sinfo", "--noheader", "--format=%P|%a|%D|%T", *only]

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        self.check("sinfo", code, err)
        rows = [line.split("|") for line in out.splitlines() if line.count("|") == 3 and line.split("|")[2].isdigit()]
        # The default partition's name ends with "*". If the query named a partition, it is the only one.
        rows = [row for row in rows if row[0].endswith("*")] or rows
        if not rows:
            return None
        usable = sum(int(row[2]) for row in rows if _USABLE.match(row[3]))
        says = ", ".join(f"{row[2]} {row[3]}" for row in rows)
        return Queue(rows[0][1] == "up", sum(int(row[2]) for row in rows), usable, says)

    def states(self, job_ids: Sequence[str]) -> List[str]:
        cluster = self.place(job_ids[0]) if job_ids else ""
        # With --states=all it also shows how a job ended, until slurmctld forgets it (MinJobAge, 300 s by default).
        words = ["squeue", "-r", *_of_cluster(cluster), "--noheader", "--states=all"]  # -r: a row per task
        # Text that is not a field of the format is printed unchanged, so that each row contains the whole id.
        number = "%i;" + cluster if cluster else "%i"
        return [*words, "--jobs=" + ",".join(map(_number, job_ids)), f"--format={number}|%T|%M|%N|%r"]

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        self.check("squeue", code, err, *self.forgotten)  # if there are several ids, squeue omits forgotten ones
        states = {}
        for line in out.strip().splitlines():
            if not line.startswith(_CLUSTER):
                number, word, elapsed, nodes, reason = [*line.split("|", 4), "", "", "", ""][:5]
                states[number] = JobState(word, "" if reason == "None" else reason, elapsed, nodes, word in _ACTIVE)
        return states

    def own(self, script: str) -> List[str]:
        # With --noheader, newer versions omit the lines with the cluster names.
        clusters = next(reversed(_CLUSTERS.findall(script)), "")
        return ["squeue", "-r", *_of_cluster(clusters), "--states=all", "--user=%d" % os.getuid(), "--format=%i|%o"]

    def parse_own(self, code: int, out: str, err: str) -> Dict[str, str]:
        self.check("squeue", code, err)
        numbers: Dict[str, str] = {}
        cluster = ""
        for line in out.splitlines():
            if line.startswith(_CLUSTER):
                cluster = ";" + line[len(_CLUSTER) :].strip()
            number, _, command = line.strip().partition("|")
            earlier = numbers.get(command)  # the first job counts, because each later start has its own folder
            if self.owns(number + cluster) and (earlier is None or _first(number) < _first(earlier)):
                numbers[command] = number + cluster
        return numbers

    def parse_outputs(self, code: int, out: str, err: str) -> Set[str]:
        self.check("scontrol", code, err)
        jobs = ((_JOB_STATE.search(line), _OUTPUT.search(line)) for line in out.splitlines())
        return {output.group(1) for state, output in jobs if state and output and state.group(1) in _ACTIVE}

    def cancel(self, job_id: str) -> List[str]:
        return ["scancel", *_of_cluster(self.place(job_id)), _number(job_id)]


def _number(job_id: str) -> str:
    """Return a job's id without its cluster."""
    return job_id.partition(";")[0]


def _first(job_id: str) -> int:
    """Return the number of a job or an array."""
    return int(re.split("[_;]", job_id)[0])


def _of_cluster(cluster: str) -> List[str]:
    """Return the options that direct a command to a cluster; empty for the login node's own cluster."""
    return ["--clusters=" + cluster] if cluster else []


def _pmi_types(tools: Tools) -> List[str]:
    """Return the list of ``srun --mpi=list``: one per line below a heading, after "srun: ", on either stream."""
    answer = tools.ask(["srun", "--mpi=list"])
    words: List[str] = []
    for line in answer.both.splitlines() if answer else ():
        listed = line.replace("srun:", "").split()
        words += listed if len(listed) == 1 else []
        words += line.partition("plugin versions available:")[2].replace(",", " ").split()
    return sorted({word for word in words if _PMI.match(word)})


def _note_closed(details: Dict[str, Dict[str, str]], usable: Sequence[str], tools: Tools) -> None:
    """Note the partitions that are limited to some groups, accounts or qualities of service."""
    for name, row in sorted(details.items()):
        if name not in usable:
            if row.get("AllowGroups", "ALL") != "ALL":
                tools.note("partition {}: left out: only groups {} may use it".format(name, row["AllowGroups"]))
            continue
        for setting, what in (("AllowAccounts", "accounts"), ("AllowQos", "qualities of service")):
            if row.get(setting, "ALL") != "ALL":
                tools.note(f"partition {name}: only for {what} {row[setting]}")


def _rows(tools: Tools, *more: str) -> List[List[str]]:
    """Return sinfo's rows, with the memory that is not reserved for the system (MemSpecLimit).

    sinfo also prints partitions without any of the requested nodes; these are omitted.
    """
    rows = [line.strip().split("|") for line in printed(tools, *SINFO, *more).splitlines()]
    rows = [row for row in rows if len(row) == _FORMAT.count("|") + 1 and row[1].isdigit() and int(row[1])]
    firsts = [re.sub(r"\[(\w+)[^\]]*\]", r"\1", row[-1]).partition(",")[0] for row in rows]
    asked = ("scontrol", "--oneliner", "show", "node", ",".join(sorted(set(firsts))))
    about = printed(tools, *asked) if rows else ""
    kept = dict(re.findall(r"^NodeName=(\S+) .* MemSpecLimit=(\d+)", about, re.MULTILINE))
    for row, first in zip(rows, firsts):
        row[5] = str(int(row[5]) - int(kept.get(first, 0))) if row[5].isdigit() else row[5]
    return rows


def _partitions(
    rows: List[List[str]], tools: Tools, details: Dict[str, Dict[str, str]], settings: Dict[str, str]
) -> Record:
    """Return partitions from sinfo's rows.

    Args:
        details: the settings of each partition.
        settings: the settings of the cluster.
    """
    by_name = grouped((row[0], row) for row in rows)
    partitions: Record = {}
    for marked in sorted(by_name, key=lambda name: (not name.endswith("*"), name)):  # a star marks the default
        name, own = marked.rstrip("*"), by_name[marked]
        every = [Nodes(int(row[1]), _shape(row), row[10].split(","), whole_number(row[9])) for row in own]
        for entry, words, nodes in kinds(name, every):
            fields = _partition(entry, own[0], nodes, tools, [details.get(name, {}), settings])
            partitions[entry] = dict(fields, **words)
    return partitions


def _partition(name: str, row: List[str], nodes: List[Nodes], tools: Tools, levels: List[Dict[str, str]]) -> Record:
    """Return a partition's entry; ``levels`` are its settings and those of the cluster, in the order of precedence."""
    sizes = re.match(r"^(?:\d+-)?(\d+)$", row[8])  # a single number if minimum and maximum are equal
    shapes, own = [each.shape for each in nodes], levels[0]
    shape = common(name, shapes, tools)
    exclusive = own.get("OverSubscribe") == "EXCLUSIVE" or own.get("Exclusive") == "NODE"  # the latter since version 25
    cpus = [each.cpus for each in nodes if each.cpus]
    partition: Record = {
        "nodes": sum(each.number for each in nodes),
        "max_nodes": int(sizes.group(1)) if sizes else None,
        "max_time": row[7] if row[7] not in ("infinite", "n/a") else None,
        "gpu_request": _GRES if any(GPUS in each for each in shapes) else None,
        "exclusive": exclusive or None,
        "request_memory": (MEMORY in shape and cpus and _limit_memory(shape, min(cpus), levels)) or None,
        "node": shape,
    }
    return determined(partition)


def _limit_memory(shape: Record, cpus: int, levels: List[Dict[str, str]]) -> bool:
    """Limit a node's memory to what a job may use. Return whether a job without a memory request gets too little."""

    def per_node(limit: str) -> int:
        """Return a memory limit for a whole node; 0 if there is none."""
        limits = ((level.get(limit + "PerNode", ""), level.get(limit + "PerCPU", "")) for level in levels)
        return next(filter(None, (whole_number(node) or whole_number(cpu) * cpus for node, cpu in limits)), 0)

    shape[MEMORY] = min(shape[MEMORY], per_node("MaxMem") or shape[MEMORY])
    selects = (level.get("SelectTypeParameters", "NONE") for level in levels)
    consumed = next((select for select in selects if select != "NONE"), "")
    return "MEMORY" in consumed.upper() and 0 < per_node("DefMem") < ENOUGH * shape[MEMORY]


def _shape(row: List[str]) -> Record:
    shape: Record = {}
    sockets, cores, threads, memory = map(whole_number, row[2:6])
    cpus = whole_number(row[9])
    if sockets * cores:
        shape.update(sockets=sockets, cores=sockets * cores)
    if threads:
        shape["threads_per_core"] = threads
        if cpus not in (0, sockets * cores * threads):
            shape[CPUS] = cpus
    if memory > 1:  # 1 is Slurm's default if the memory is not configured
        shape[MEMORY] = memory
    gpus = _GPU.findall(row[6])
    if gpus:
        types = {kind for kind, _ in gpus if kind}
        one = {"type": types.pop()} if len(gpus) == 1 and types else {}  # without a type, Slurm assigns any GPUs
        shape[GPUS] = dict(one, count=sum(int(count) for _, count in gpus))
    return shape
