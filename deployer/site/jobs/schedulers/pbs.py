"""PBS Professional and OpenPBS, written from the manual pages and sources of OpenPBS 23.06.

Nodes are reached with ``pbs_tmrsh`` (pbs_tmrsh(8B)). It executes its arguments without a shell, and the program's
output goes to the job's output file. PBS copies that file to its destination when the job ends (qsub(1B)), so job.sh
writes to the log itself. The attributes of queues come from pbs_queue_attributes(7B), pbs_server_attributes(7B) and
pbs_node_attributes(7B).
"""

import re
from typing import Dict, Iterator, List, Optional, Sequence, Set

from deployer.contract.base.errors import UsageError
from deployer.contract.base.grouping import grouped
from deployer.contract.base.json_records import Record
from deployer.contract.base.shell import code
from deployer.contract.bundle.job import clock
from deployer.contract.bundle.sweep import TaskGroup, numbers
from deployer.contract.rules.batch_words import words
from deployer.site.capture.scheduler import ENOUGH, BatchFacts, Nodes, common, duration, kinds
from deployer.site.capture.tools import Tools, determined
from deployer.site.jobs.schedulers.interface import JobRequest, JobState, Queue, Scheduler
from deployer.site.jobs.schedulers.texts import counted, job_name, options, output_path, printed, whole_number, word

#: The meaning of a job's states (pbs_job_attributes(7B)).
_LETTERS = (
    ("QW", "PENDING"),
    ("H", "HELD"),
    ("T", "TRANSFERRING"),
    ("RB", "RUNNING"),
    ("E", "COMPLETING"),
    ("SU", "SUSPENDED"),
    ("M", "MOVED"),
    ("FX", "COMPLETED"),
)
_FINAL = ("COMPLETED", "FAILED", "MOVED")
#: States of nodes that run jobs, now or after the current ones (pbs_node_attributes(7B)).
_USABLE = frozenset(
    ("free", "job-busy", "job-exclusive", "resv-exclusive", "busy", "provisioning", "wait-provisioning")
)
#: A resource of a chunk: NAME=VALUE (qsub(1B), "Requesting Resources").
_RESOURCE = re.compile(r"[A-Za-z]\w*=[^=:+]+$")
_VERSION = re.compile(r"^pbs_version = (\S+)", re.MULTILINE)
#: The attributes that a queue inherits from the server unless it sets them.
_LIMIT, _DEFAULT, _CHUNK = "resources_max.", "resources_default.", "default_chunk."
_AVAILABLE = "resources_available."
#: Countable resources: a default for them selects no nodes. Resources that identify a single node are not features.
_COUNT = re.compile(r"^\d+([kmgtp]?[bw])?$")
_OWN = ("host", "vnode")
#: Identical nodes report memory that differs by less than this fraction, because their kernels reserve some.
_ALIKE = 0.02
_CLOCK = re.compile(r"^(?:(\d+):)?(\d+):(\d\d)$")
_SIZE = re.compile(r"^(\d+)([kmgt]?)b$")
_KIB = {"": 1 / 1024, "k": 1, "m": 1024, "g": 1024**2, "t": 1024**3}


class Pbs(Scheduler):
    """PBS Professional and OpenPBS."""

    title = "PBS"
    submit_host = "PBS_O_HOST"
    settings = ("PBS_",)
    prefix = "#PBS"
    by_hand = "qsub job.sh"
    cancels, rehearses = "qdel", "qsub job.sh"
    #: NUMBER.SERVER; of an array NUMBER[].SERVER, of its task NUMBER[INDEX].SERVER; for local jobs NUMBER.NUMBER.HOST.
    job_id = re.compile(r"^\d+(\[\d*\])?\.[A-Za-z][A-Za-z0-9._-]*$")
    #: From pbs_messages.c: the server does not know the job (any more), or the job has ended and its history is kept.
    forgotten = ("Unknown Job Id", "Job has finished")
    node_list = code('cat "${{PBS_NODEFILE:-/dev/null}}"')
    agent = code("pbs_tmrsh")
    knows = ("storage", "gpus", "exclusive")
    lists = "qstat -Q"
    explains = "pbsnodes -l"
    version = "qstat --version"
    answers = "qstat -B"
    outputs = ("qstat", "-f")
    silent = ("cannot connect to server", "Connection refused", "Connection timed out")
    look = "`qstat -Q`, and queue, account and limits in the site's profile"
    identified = code("id=$PBS_JOBID\n")
    own_log = "batch-system.log"
    #: An array must be allowed to start again. Each start has its own folder.
    array_words = "-r y -J 1-{count}{limit}"
    ours = ("-S", "-N", "-j", "-o", "-e", "-r", "-q", "-A", "-J", "-l select", "-l place", "-l walltime")
    #: PBS ends a job through the sessions of its tasks: SIGTERM, then SIGKILL after kill_delay, 10 s by default
    #: (pbs_queue_attributes(7B)).
    patience = 8
    agent_has_shell = False
    of_a_node = ("PBS_NODEFILE", "PBS_NODENUM", "PBS_TASKNUM", "PBS_JOBDIR", "PBS_MOMPORT")

    def facts(self, tools: Tools) -> Optional[BatchFacts]:
        about = tools.ask(["qstat", "--version"], any_status=True)
        version = _VERSION.search(about.both) if about else None
        listed = tools.ask(["qstat", "-Qf"]) if version else None
        if version is None or listed is None:
            return None
        vnodes = records(printed(tools, "pbsnodes", "-av"))
        server = next(iter(records(printed(tools, "qstat", "-Bf")).values()), {})
        shared = {key: value for key, value in server.items() if key.startswith((_LIMIT, _DEFAULT, _CHUNK))}
        queues = {name[len("Queue: ") :]: dict(shared, **fields) for name, fields in records(listed.out).items()}
        usable = {name: queue for name, queue in queues.items() if _admits(name, queue, tools)}
        routes = {
            name: [each.partition("@")[0] for each in queue.get("route_destinations", "").split(",")]
            for name, queue in usable.items()
            if not queue.get("queue_type", "").lower().startswith("e")  # others only route jobs
        }
        default = server.get("default_queue", "")
        first = routes.get(default, [default])
        partitions: Record = {}
        for name in sorted(set(usable) - set(routes), key=lambda name: (name not in first, name)):
            partitions.update(_partitions(name, usable[name], routes, vnodes, tools))
        return BatchFacts({"kind": "pbs", "version": version.group(1)}, partitions, None)

    def directives(self, request: JobRequest) -> List[str]:
        cpus = request.ranks_per_node * request.cpus_per_rank
        chunk = "%d:ncpus=%d:mpiprocs=%d" % (request.nodes, cpus, request.ranks_per_node)
        chunk += ":mem=%dmb" % request.memory_mb if request.memory_mb is not None else ""
        if request.gpus:
            chunk += ":%s=%d" % (word("GPUs", request.gpus.word), request.gpus.per_node)
            chunk += ":gpu_type=" + word("type of GPUs", request.gpus.type) if request.gpus.type else ""
        chunk += "".join(":" + _resource(each) for each in request.constraints)
        lines = [
            "-S /bin/bash",
            "-N " + job_name(request.name)[:15],  # the limit of older versions; 230 characters since 13
            "-j oe",
            "-o " + output_path(self.title, request.folder, self.own_log, ":"),  # qsub would read HOST:PATH
            "-r n",  # a job that starts again over its own output is worse than a failed one
            "-l select=" + chunk,
            "-l place=scatter" + (":excl" if request.exclusive else ""),
            "-l walltime=" + clock(request.seconds),
        ]
        queue = request.reservation or request.queue  # a reservation is a queue
        lines += options(("-q", "queue", queue), ("-A", "account", request.account))
        if request.storage:
            lines.append("-l storage=" + "+".join(word("storage", name) for name in request.storage))
        return [*lines, *request.directives]

    def array(self, group: TaskGroup) -> List[str]:
        return super().array(group) if len(numbers(group.arrays[-1].tasks)) > 1 else []  # it refuses 1-1

    def element(self, array: str, index: int) -> str:
        return array.replace("[]", self.element_end % index)

    def submit(self, script: str, after: Optional[str] = None, array: Sequence[str] = ()) -> List[str]:
        return ["qsub", *(["-W", "depend=afterany:" + after] if after else []), *array, script]

    def queue(self, partition: str) -> List[str]:
        return ["sh", "-c", 'qstat -Qf ${1:+"$1"} && pbsnodes -a', "sh", partition]

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        if "Unknown queue" in err:
            return None
        self.check("qstat", code, err)
        states = [state.replace(" ", "") for state in re.findall(r"^\s+state = (.+)", out, re.MULTILINE)]
        usable = sum(1 for state in states if set(state.split(",")) <= _USABLE)
        return Queue("enabled = True" in out and "started = True" in out, len(states), usable, counted(states))

    def states(self, job_ids: Sequence[str]) -> List[str]:
        # Unless job_history_enable is set, a server forgets jobs that have ended. Then -x finds no job at all, and
        # qstat exits with 0.
        script = 'qstat -x -t -f "$@" 2>/dev/null | grep -a . || qstat -t -f "$@"'  # -t: with the tasks of an array
        return ["sh", "-c", script, "sh", *job_ids]

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        if not out:
            self.check("qstat", code, err, *self.forgotten)
        return {name.rpartition(" ")[2]: _state(fields) for name, fields in records(out).items()}

    def parse_outputs(self, code: int, out: str, err: str) -> Set[str]:
        self.check("qstat", code, err)
        return {fields.get("Output_Path", "").partition(":")[2] for fields in records(out).values()}


def _resource(text: str) -> str:
    """Return a constraint as a resource of a chunk. Raises UsageError."""
    if not _RESOURCE.match(word("constraint", text)):
        raise UsageError(
            f"constraint {text!r} is not a resource of PBS", "write NAME=VALUE, for instance cpu_type=icelake"
        )
    return text


def _state(fields: Dict[str, str]) -> JobState:
    letter = fields.get("job_state") or "-"
    name = next((name for letters, name in _LETTERS if letter in letters), "UNKNOWN")
    if name == "COMPLETED" and fields.get("Exit_status", "0") != "0":
        name = "FAILED"
    hosts = dict.fromkeys(part.partition("/")[0] for part in fields.get("exec_host", "").split("+"))
    elapsed = fields.get("resources_used.walltime", "")
    return JobState(name, fields.get("comment", ""), elapsed, ",".join(hosts), active=name not in _FINAL)


def records(text: str) -> Dict[str, Dict[str, str]]:
    """Return the attributes of each object. Its name is at the start of a line; a tab continues the previous line."""
    objects: Dict[str, Dict[str, str]] = {}
    fields: Dict[str, str] = {}
    for line in text.replace("\n\t", "").splitlines():
        if line and not line[0].isspace():
            fields = objects.setdefault(line.strip(), {})
        elif " = " in line:
            name, _, value = line.strip().partition(" = ")
            fields[name] = value
    return objects


def _admits(name: str, queue: Dict[str, str], tools: Tools) -> bool:
    """Return whether this user may use a queue, by the rules of OpenPBS's acl_check(); note it if not."""
    for kind, option in (("user", "-un"), ("group", "-Gn")):
        if queue.get(f"acl_{kind}_enable") == "True":
            names = printed(tools, "id", option, any_status=True).split()
            listed = queue.get(f"acl_{kind}s", "").split(",")
            decisive = [entry for entry in listed if entry.lstrip("+-").partition("@")[0] in names]
            decisive += [*(entry for entry in listed if entry in ("+", "-")), "-"]
            if decisive[0].startswith("-"):
                tools.note(f"queue {name}: left out: its acl_{kind}s do not list you")
                return False
    return True


def _partitions(
    name: str, queue: Dict[str, str], routes: Dict[str, List[str]], vnodes: Dict[str, Dict[str, str]], tools: Tools
) -> Record:
    """Return a queue's entries: see ``kinds``.

    Args:
        routes: the routing queues and their destinations.
    """
    own_vnodes = [(vnode, fields) for vnode, fields in vnodes.items() if _is_of(name, queue, fields)]
    hosts = grouped((fields.get(_AVAILABLE + "host", vnode), fields) for vnode, fields in own_vnodes)
    words: Record = {}
    if queue.get("from_route_only") == "True":
        leading = [route for route, destinations in routes.items() if name in destinations]
        if not leading:
            tools.note(f"queue {name}: left out: no routing queue leads to it")
            return {}
        words["queue"] = leading[0]
    nodes = [Nodes(1, _shape(own), list(_features(own, queue))) for own in hosts.values()]
    _level([each.shape for each in nodes])
    sharing = [vnode.get("sharing", "") for own in hosts.values() for vnode in own] or [""]
    if "excl" in queue.get(_DEFAULT + "place", "") or all("excl" in each for each in sharing):
        words["exclusive"] = True
    return {
        entry: dict(_partition(entry, queue, own, tools), **dict(selected, **words))
        for entry, selected, own in kinds(name, nodes)
    }


def _partition(name: str, queue: Dict[str, str], nodes: List[Nodes], tools: Tools) -> Record:
    limit = _CLOCK.match(queue.get(_LIMIT + "walltime", ""))
    shape = common(name, [each.shape for each in nodes], tools)
    default = _mebibytes(queue.get(_CHUNK + "mem", ""))
    partition: Record = {
        "nodes": len(nodes) or None,
        "max_time": duration(limit) if limit else None,
        "max_nodes": whole_number(queue.get(_LIMIT + "nodect", "")) or None,
        "gpu_request": words("pbs").gpus if any("gpus" in each.shape for each in nodes) else None,
        "request_memory": 0 < default < ENOUGH * shape.get("memory_mb", 0) or None,
        "node": shape,
    }
    return determined(partition)


def _is_of(name: str, queue: Dict[str, str], node: Dict[str, str]) -> bool:
    """Return whether a queue's jobs run on a vnode: it may belong to one queue, or match its jobs' resources."""
    if ("queue" in node or queue.get("hasnodes") == "True") and node.get("queue") != name:
        return False  # a queue with its own vnodes uses no others
    asked = {key[len(_CHUNK) :]: value for key, value in queue.items() if key.startswith(_CHUNK)}
    return all(
        value in node.get(_AVAILABLE + resource, "").split(",")
        for resource, value in asked.items()
        if not _COUNT.match(value)
    )


def _features(vnodes: List[Dict[str, str]], queue: Dict[str, str]) -> Iterator[str]:
    """Yield the resources with which jobs can request nodes like this host, except those that the queue's jobs have."""
    for key, values in (item for vnode in vnodes for item in vnode.items()):
        resource = key[len(_AVAILABLE) :]
        if key.startswith(_AVAILABLE) and resource not in _OWN and _CHUNK + resource not in queue:
            yield from (f"{resource}={value}" for value in values.split(",") if not _COUNT.match(value))


def _shape(vnodes: List[Dict[str, str]]) -> Record:
    """Return the hardware of a host, which may be divided into vnodes."""
    memory = int(sum(_mebibytes(vnode.get(_AVAILABLE + "mem", "")) for vnode in vnodes))
    cpus, gpus = (
        sum(whole_number(vnode.get(_AVAILABLE + resource, "")) for vnode in vnodes) for resource in ("ncpus", "ngpus")
    )
    return determined({"cpus": cpus or None, "memory_mb": memory or None, "gpus": {"count": gpus} if gpus else None})


def _level(shapes: List[Record]) -> None:
    """Set nearly equal amounts of node memory to the smallest of them."""
    least = 0
    for shape in sorted(shapes, key=lambda shape: shape.get("memory_mb", 0)):
        if shape.get("memory_mb", 0) > least * (1 + _ALIKE):
            least = shape["memory_mb"]
        shape.update({"memory_mb": least} if least else {})


def _mebibytes(text: str) -> float:
    """Return a PBS size in MiB; 0 if the text has none."""
    size = _SIZE.match(text)
    return int(size.group(1)) * _KIB[size.group(2)] / 1024 if size else 0
