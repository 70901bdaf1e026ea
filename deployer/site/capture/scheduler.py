"""The scheduler and its partitions: what Slurm tells any user. Nothing is submitted."""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.json_records import Record
from deployer.site.capture.tools import Tools

#: One line per kind of node of a partition: name (* for the default), nodes, sockets, cores per socket, threads per
#: core, memory in MiB, GPUs, longest time, sizes of jobs, CPUs as Slurm counts them, features, names.
_FORMAT = "%P|%D|%X|%Y|%Z|%m|%G|%l|%s|%c|%f|%N"
#: The question about all partitions.
SINFO = ["sinfo", "--noheader", "--exact", "--format=" + _FORMAT]
#: GPUs among a node's generic resources: gpu:TYPE:COUNT; a list of sockets in brackets may follow.
_GPU = re.compile(r"(?:^|,)gpu(?::([\w.-]+))??(?::no_consume)?:(\d+)(?=[,(]|$)")
_GPUS = "gpus"
_GRES = "gres"
#: What a layout is made of: these values belong together.
_CPUS = "cpus"
_LAYOUT = ("sockets", "cores", "threads_per_core", _CPUS)
_MEMORY = "memory_mb"
#: A feature that can be part of a partition's name, and the most kinds of nodes that are entries of their own.
_FEATURE = re.compile(r"([A-Za-z]\w*=)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,24}$")
_MAX_KINDS = 8
#: A job without a request has enough memory if it gets this part of its nodes'.
ENOUGH = 0.9
_PMI = re.compile(r"^[a-z][a-z0-9_]{0,30}$")


class Nodes(NamedTuple):
    """Equal nodes of a partition.

    Attributes:
        number: how many there are.
        shape: a profile's ``node``.
        features: the words with which jobs request them.
        cpus: the CPUs that the batch system counts; 0: unknown.
    """

    number: int
    shape: Record
    features: List[str]
    cpus: int = 0


class BatchFacts(NamedTuple):
    """The facts of a batch system.

    Attributes:
        scheduler: a profile's ``scheduler``.
        partitions: a profile's ``partitions``, the default one first.
        cluster: the cluster's name, or None.
        spool: the folder of its daemon on nodes, with which ranks of Cray MPICH exchange files; None if unknown.
    """

    scheduler: Record
    partitions: Record
    cluster: Optional[str]
    spool: Optional[str] = None


class BatchSystem(object):
    """What a capture asks of a batch system."""

    #: Beginnings of the variables by which its commands find their servers.
    settings: Tuple[str, ...] = ()
    #: The variable of a job with the host from which it was submitted.
    submit_host = ""
    #: The variables of a job with its partition, and with the name of the node in the batch system's words.
    job_partition, node_name = "", ""

    def facts(self, tools: Tools) -> Optional[BatchFacts]:
        """Return the batch system's facts; None if there is none or it does not answer."""
        del tools
        return None

    def own_node(self, tools: Tools, name: str) -> Record:
        """Return the hardware of the node ``name`` according to the batch system; empty if it does not report it."""
        del tools, name
        return {}


def slurm(tools: Tools) -> Optional[BatchFacts]:
    """Return Slurm's facts; None if there is no Slurm or it does not answer."""
    said = tools.ask(["sinfo", "--version"])
    version = re.search(r"\d+\.\d+[\w.-]*", said.out) if said else None
    if version is None:
        return None
    scheduler: Record = {"kind": "slurm", "version": version.group()}
    pmi = _pmi_types(tools)
    if pmi:
        scheduler["pmi"] = pmi
    settings = _settings(tools)
    # If the controller did not answer, it will not answer now.
    rows = _rows(tools) if settings else []
    details = _details(tools) if rows else {}
    partitions = _partitions(rows, tools, details, settings)
    _note_closed(details, list(partitions), tools)
    spool = settings.get("SlurmdSpoolDir", "")
    known = spool.startswith("/") and "%" not in spool  # %n and %h are of each node
    return BatchFacts(scheduler, partitions, settings.get("ClusterName"), spool if known else None)


def own_node(tools: Tools, name: str) -> Record:
    """Return the hardware of the node ``name`` according to Slurm; empty if Slurm does not report it."""
    rows = _rows(tools, "--nodes=" + name)
    return _shape(rows[0]) if rows else {}


def _pmi_types(tools: Tools) -> List[str]:
    """Return the list of ``srun --mpi=list``: one per line below a heading, on either stream, after "srun: "."""
    said = tools.ask(["srun", "--mpi=list"])
    found: List[str] = []
    for line in said.both.splitlines() if said else ():
        words = line.replace("srun:", "").split()
        if len(words) == 1 and _PMI.match(words[0]):
            found.append(words[0])
        _, _, plugins = line.partition("plugin versions available:")
        found += [word for word in plugins.replace(",", " ").split() if _PMI.match(word)]
    return sorted(set(found))


def _settings(tools: Tools) -> Dict[str, str]:
    said = tools.ask(["scontrol", "show", "config"])
    pairs = re.findall(r"^(\w+)\s*= (.*)$", said.out, re.MULTILINE) if said else []
    return {name: value.strip() for name, value in pairs}


def _details(tools: Tools) -> Dict[str, Dict[str, str]]:
    """Return the settings of each partition, also of those that this user may not use."""
    said = tools.ask(["scontrol", "--oneliner", "--all", "show", "partition"])
    rows = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in said.out.splitlines()] if said else []
    return {row["PartitionName"]: row for row in rows if "PartitionName" in row}


def _note_closed(details: Dict[str, Dict[str, str]], usable: Sequence[str], tools: Tools) -> None:
    """Note the partitions that only some groups, accounts or qualities of service may use."""
    for name, row in sorted(details.items()):
        if name not in usable:
            if row.get("AllowGroups", "ALL") != "ALL":
                tools.note("partition %s: left out: only groups %s may use it" % (name, row["AllowGroups"]))
            continue
        for setting, what in (("AllowAccounts", "accounts"), ("AllowQos", "qualities of service")):
            if row.get(setting, "ALL") != "ALL":
                tools.note("partition %s: only for %s %s" % (name, what, row[setting]))


def _rows(tools: Tools, *more: str) -> List[List[str]]:
    """Return sinfo's rows, with the memory that is not kept for the system (MemSpecLimit).

    It also prints partitions without any of the nodes that were asked for, which are left out.
    """
    said = tools.ask([*SINFO, *more])
    rows = [line.strip().split("|") for line in said.out.splitlines()] if said else []
    rows = [row for row in rows if len(row) == _FORMAT.count("|") + 1 and row[1].isdigit() and int(row[1])]
    firsts = [re.sub(r"\[(\w+)[^\]]*\]", r"\1", row[-1]).partition(",")[0] for row in rows]
    asked = ["scontrol", "--oneliner", "show", "node", ",".join(sorted(set(firsts)))]
    about = tools.ask(asked) if rows else None
    kept = dict(re.findall(r"^NodeName=(\S+) .* MemSpecLimit=(\d+)", about.out, re.MULTILINE)) if about else {}
    for row, first in zip(rows, firsts):
        row[5] = str(int(row[5]) - int(kept.get(first, 0))) if row[5].isdigit() else row[5]
    return rows


def _partitions(
    found: List[List[str]], tools: Tools, details: Dict[str, Dict[str, str]], settings: Dict[str, str]
) -> Record:
    """Return partitions from sinfo's rows.

    Args:
        details: the settings of each partition.
        settings: those of the cluster.
    """
    rows: Dict[str, List[List[str]]] = {}
    default = None
    for row in found:
        name = row[0].rstrip("*")
        if row[0].endswith("*"):
            default = name
        rows.setdefault(name, []).append(row)
    partitions: Record = {}
    for name in sorted(rows, key=lambda name: (name != default, name)):
        own = details.get(name, {})
        for entry, words, nodes in kinds(name, [_nodes(row) for row in rows[name]]):
            partitions[entry] = dict(_partition(entry, rows[name][0], nodes, tools, own, settings), **words)
    return partitions


def kinds(name: str, nodes: List[Nodes]) -> List[Tuple[str, Record, List[Nodes]]]:
    """Return the entries of a partition with the words that select their nodes: one, or one for each kind of nodes.

    A feature that all nodes of a kind have, and no others, tells it apart; the largest kind is first. If features do
    not tell all kinds apart, there is one entry.
    """
    found: Dict[str, Tuple[str, Record, List[Nodes]]] = {}
    for shape in [each.shape for each in nodes]:
        own = [each for each in nodes if each.shape == shape]
        others = {word for each in nodes if each.shape != shape for word in each.features}
        shared = set.intersection(*(set(each.features) for each in own)) - others
        telling = [word for word in own[0].features if word in shared and _FEATURE.match(word)]
        if len(own) == len(nodes) or not telling:
            return [(name, {}, nodes)]
        entry = "%s-%s" % (name, telling[0].rpartition("=")[2])
        found[entry] = entry, {"queue": name, "constraint": telling[0]}, own
    largest = sorted(found.values(), key=lambda kind: -sum(each.number for each in kind[2]))
    whole = 0 < sum(len(own) for _, _, own in largest) == len(nodes)  # no two kinds have one name
    return largest if whole and len(largest) <= _MAX_KINDS else [(name, {}, nodes)]


def _partition(
    name: str, row: List[str], nodes: List[Nodes], tools: Tools, own: Dict[str, str], settings: Dict[str, str]
) -> Record:
    found: Record = {"nodes": sum(each.number for each in nodes)}
    sizes = re.match(r"^(?:\d+-)?(\d+)$", row[8])  # only one number if both are the same
    if sizes:
        found["max_nodes"] = int(sizes.group(1))
    if row[7] not in ("infinite", "n/a", ""):
        found["max_time"] = row[7]
    shapes = [each.shape for each in nodes]
    shape = common(name, shapes, tools)
    if any(_GPUS in each for each in shapes):
        found["gpu_request"] = _GRES
    if own.get("OverSubscribe") == "EXCLUSIVE" or own.get("Exclusive") == "NODE":  # the latter since 25
        found["exclusive"] = True
    cpus = [each.cpus for each in nodes if each.cpus]
    if _MEMORY in shape and cpus and _limit_memory(shape, min(cpus), own, settings):
        found["request_memory"] = True
    if shape:
        found["node"] = shape
    return found


def _limit_memory(shape: Record, cpus: int, own: Dict[str, str], settings: Dict[str, str]) -> bool:
    """Limit a node's memory to what a job may have. Return whether one that requests none has too little of it.

    Args:
        own: the settings of the partition, which count before those of the cluster.
    """
    most = _per_node("MaxMem", cpus, own) or _per_node("MaxMem", cpus, settings)
    shape[_MEMORY] = min(shape[_MEMORY], most or shape[_MEMORY])
    default = _per_node("DefMem", cpus, own) or _per_node("DefMem", cpus, settings)
    select = "SelectTypeParameters"
    consumed = own.get(select, "NONE") if own.get(select, "NONE") != "NONE" else settings.get(select, "")
    return "MEMORY" in consumed.upper() and default is not None and default < ENOUGH * shape[_MEMORY]


def _per_node(limit: str, cpus: int, settings: Dict[str, str]) -> Optional[int]:
    """Return a limit of memory for a whole node; None if there is none."""
    for name, times in (("PerNode", 1), ("PerCPU", cpus)):
        value = settings.get(limit + name, "")
        if value.isdigit() and int(value):
            return int(value) * times
    return None


def _nodes(row: List[str]) -> Nodes:
    return Nodes(int(row[1]), _shape(row), row[10].split(","), int(row[9]) if row[9].isdigit() else 0)


def _shape(row: List[str]) -> Record:
    found: Record = {}
    sockets, cores, threads, memory = row[2:6]
    if sockets.isdigit() and cores.isdigit() and int(sockets) * int(cores):
        found["sockets"] = int(sockets)
        found["cores"] = int(sockets) * int(cores)
    if threads.isdigit() and int(threads):
        found["threads_per_core"] = int(threads)
        if row[9].isdigit() and found.get("cores", 0) * int(threads) != int(row[9]):
            found[_CPUS] = int(row[9])
    if memory.isdigit() and int(memory) > 1:  # 1 is Slurm's default if the memory is not configured
        found[_MEMORY] = int(memory)
    gpus = _GPU.findall(row[6])
    if gpus:
        kinds = {kind for kind, _ in gpus if kind}
        one = {"type": kinds.pop()} if len(gpus) == 1 and kinds else {}  # without a type, Slurm gives GPUs of any
        found[_GPUS] = dict(one, count=sum(int(count) for _, count in gpus))
    return found


def common(name: str, shapes: List[Record], tools: Tools) -> Record:
    """Return the shape of a partition's nodes, and note the keys in which they differ.

    Of different nodes, it is the smallest, on which all jobs fit. If they have different numbers of GPUs, the shape has
    an empty record of them: that some nodes have GPUs is known, and nothing else.
    """
    keys = sorted({key for shape in shapes for key in shape})
    differing = [key for key in keys if any(shape.get(key) != shapes[0].get(key) for shape in shapes)]
    found: Dict[str, Any] = {key: shapes[0][key] for key in shapes[0] if key not in differing} if shapes else {}
    if not differing:
        return found
    if all("cores" in shape for shape in shapes) and set(_LAYOUT).intersection(differing):
        least = min(shapes, key=lambda shape: (shape["cores"], shape.get("threads_per_core", 1)))
        found.update({key: least[key] for key in _LAYOUT if key in least})
    for key in (_MEMORY, _CPUS):
        if key in differing and key not in found and all(key in shape for shape in shapes):
            found[key] = min(shape[key] for shape in shapes)
    if _GPUS in differing:
        counts = sorted({shape.get(_GPUS, {}).get("count", 0) for shape in shapes})
        found[_GPUS] = {"count": counts[0]} if len(counts) == 1 else {}
        what = "%s per node" % " or ".join(map(str, counts)) if len(counts) > 1 else "type"
        differing[differing.index(_GPUS)] += " (%s)" % what
    advice = "write an entry for each kind, with the same queue and its own constraint"
    tools.note("partition %s: its nodes differ in %s: %s" % (name, ", ".join(differing), advice))
    return found
