"""The scheduler and its partitions: what Slurm tells any user. Nothing is submitted."""

import os
import re
from typing import Any, Dict, List, NamedTuple, Optional

from deployer.contract.json_records import Record
from deployer.site.capture.tools import Tools

#: One line per kind of node of a partition: name (* for the default), nodes, sockets, cores per socket, threads per
#: core, memory in MiB, GPUs, longest time, sizes of jobs, CPUs as Slurm counts them.
_FORMAT = "%P|%D|%X|%Y|%Z|%m|%G|%l|%s|%c"
_GPU = re.compile(r"^gpu:(?:([\w.-]+):)?(\d+)")
_GPUS = "gpus"
_PMI = re.compile(r"^[a-z][a-z0-9_]{0,30}$")


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
    listed = tools.ask(["sinfo", "--noheader", "--exact", "--format=" + _FORMAT]) if settings else None
    partitions = parse_partitions(listed.out, tools) if listed else {}
    spool = settings.get("SlurmdSpoolDir", "")
    known = spool.startswith("/") and "%" not in spool  # %n and %h are of each node
    return BatchFacts(scheduler, partitions, settings.get("ClusterName"), spool if known else None)


def own_node(tools: Tools, name: Optional[str]) -> Record:
    """Return the hardware of the node ``name`` according to Slurm; empty if Slurm does not report it."""
    said = tools.ask(["sinfo", "--noheader", "--exact", "--nodes=" + name, "--format=" + _FORMAT]) if name else None
    rows = _rows(said.out) if said else []
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


def _rows(text: str) -> List[List[str]]:
    rows = [line.strip().split("|") for line in text.splitlines()]
    return [row for row in rows if len(row) == _FORMAT.count("|") + 1 and row[1].isdigit()]


def parse_partitions(text: str, tools: Tools) -> Record:
    """Return partitions from sinfo's lines; if the nodes of one differ, only their common values are kept."""
    rows: Dict[str, List[List[str]]] = {}
    default = None
    for row in _rows(text):
        name = row[0].rstrip("*")
        if row[0].endswith("*"):
            default = name
        rows.setdefault(name, []).append(row)
    found = {
        name: _partition(name, rows[name], tools) for name in sorted(rows, key=lambda name: (name != default, name))
    }
    return dict(found)


def _partition(name: str, rows: List[List[str]], tools: Tools) -> Record:
    found: Record = {"nodes": sum(int(row[1]) for row in rows)}
    sizes = re.match(r"^\d+-(\d+)$", rows[0][8])
    if sizes:
        found["max_nodes"] = int(sizes.group(1))
    if rows[0][7] not in ("infinite", "n/a", ""):
        found["max_time"] = rows[0][7]
    shape = common(name, [_shape(row) for row in rows], tools)
    if shape:
        found["node"] = shape
    return found


def _shape(row: List[str]) -> Record:
    found: Record = {}
    sockets, cores, threads, memory = row[2:6]
    if sockets.isdigit() and cores.isdigit() and int(sockets) * int(cores):
        found["sockets"] = int(sockets)
        found["cores"] = int(sockets) * int(cores)
    if threads.isdigit() and int(threads):
        found["threads_per_core"] = int(threads)
        if row[9].isdigit() and found.get("cores", 0) * int(threads) != int(row[9]):
            found["cpus"] = int(row[9])
    if memory.isdigit() and int(memory) > 1:  # 1 is Slurm's default if the memory is not configured
        found["memory_mb"] = int(memory)
    gpu = _GPU.match(row[6])
    if gpu:
        found[_GPUS] = {"count": int(gpu.group(2))}
    return found


def clock(seconds: int) -> str:
    """Return a time limit as a profile has it."""
    return "%02d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)


def common(name: str, shapes: List[Record], tools: Tools) -> Record:
    """Return what the shapes of a partition's nodes have in common, and note the keys in which they differ.

    If GPUs differ, the shape has an empty record of them: that some nodes have GPUs is known, and nothing else.
    """
    keys = {key for shape in shapes for key in shape}
    same = {key for key in keys if all(shape.get(key) == shapes[0].get(key) for shape in shapes)}
    found: Dict[str, Any] = {key: value for key, value in shapes[0].items() if key in same} if shapes else {}
    differing = sorted(keys - same)
    more = ""
    if _GPUS in differing:
        found[_GPUS] = {}
        counts = sorted({shape.get(_GPUS, {}).get("count", 0) for shape in shapes})
        differing[differing.index(_GPUS)] += " (%s per node)" % " or ".join(map(str, counts))
        more = ": write an entry for each kind, with the same queue and its own constraint"
    if differing:
        tools.note("partition %s: its nodes differ in %s%s" % (name, ", ".join(differing), more))
    return found


def submit_host() -> Optional[str]:
    """Return the login node from which this job was submitted, as the batch system reports it in a job."""
    names = ("SLURM_SUBMIT_HOST", "SGE_O_HOST", "PBS_O_HOST", "LSB_SUB_HOST")
    return next(filter(None, map(os.environ.get, names)), None)
