"""What the captures of all batch systems share: facts, and the kinds of nodes in a partition."""

import re
from typing import Any, Dict, List, Match, NamedTuple, Optional, Tuple

from deployer.contract.base.json_records import Record
from deployer.contract.bundle.job import clock
from deployer.site.capture.tools import Tools

GPUS = "gpus"
#: The keys that make up a layout; their values belong together.
CPUS = "cpus"
_LAYOUT = ("sockets", "cores", "threads_per_core", CPUS)
MEMORY = "memory_mb"
#: A feature that can be part of a partition's name, and the maximum number of node kinds with an entry of their own.
_FEATURE = re.compile(r"([A-Za-z]\w*=)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,24}$")
_MAX_KINDS = 8
#: A job without a memory request has enough if it gets this fraction of the node's memory.
ENOUGH = 0.9


class Nodes(NamedTuple):
    """Identical nodes of a partition.

    Attributes:
        number: how many nodes.
        shape: a profile's ``node``.
        features: the words that jobs use to request them.
        cpus: the number of CPUs that the batch system counts; 0 if unknown.
    """

    number: int
    shape: Record
    features: List[str]
    cpus: int = 0


class BatchFacts(NamedTuple):
    """The facts of a batch system.

    Attributes:
        scheduler: a profile's ``scheduler``.
        partitions: a profile's ``partitions``, with the default one first.
        cluster: the cluster's name, or None.
        spool: the folder of its daemon on nodes, in which ranks of Cray MPICH exchange files; None if unknown.
    """

    scheduler: Record
    partitions: Record
    cluster: Optional[str]
    spool: Optional[str] = None


class BatchSystem:
    """The queries of a capture to a batch system."""

    #: Prefixes of the variables through which its commands find their servers.
    settings: Tuple[str, ...] = ()
    #: The variable of a job that contains the host of its submission.
    submit_host = ""
    #: The variables of a job with its partition and with the batch system's name for the node.
    job_partition, node_name = "", ""

    def facts(self, _: Tools) -> Optional[BatchFacts]:
        """Return the batch system's facts; None if there is none or it does not answer."""
        return None

    def own_node(self, _: Tools, _name: str) -> Record:
        """Return the hardware of the node with this name as the batch system reports it; empty if it does not."""
        return {}


def kinds(name: str, nodes: List[Nodes]) -> List[Tuple[str, Record, List[Nodes]]]:
    """Return a partition's entries, one or one per kind of nodes, with the words that select their nodes.

    A kind is identified by a feature that all its nodes have and no others; the largest kind comes first. If features
    cannot identify every kind, there is a single entry.
    """
    found: Dict[str, Tuple[str, Record, List[Nodes]]] = {}
    for shape in [each.shape for each in nodes]:
        own = [each for each in nodes if each.shape == shape]
        others = {word for each in nodes if each.shape != shape for word in each.features}
        shared = set.intersection(*(set(each.features) for each in own)) - others
        telling = [word for word in own[0].features if word in shared and _FEATURE.match(word)]
        if len(own) == len(nodes) or not telling:
            return [(name, {}, nodes)]
        entry = "{}-{}".format(name, telling[0].rpartition("=")[2])
        found[entry] = entry, {"queue": name, "constraint": telling[0]}, own
    largest = sorted(found.values(), key=lambda kind: -sum(each.number for each in kind[2]))
    whole = 0 < sum(len(own) for _, _, own in largest) == len(nodes)  # no two kinds share a name
    return largest if whole and len(largest) <= _MAX_KINDS else [(name, {}, nodes)]


def duration(limit: "Match[str]") -> str:
    """Return a time limit, matched as hours, minutes and seconds, as ``[D-]HH:MM:SS``."""
    hours, minutes, seconds = (int(part or 0) for part in limit.groups())
    return clock(hours * 3600 + minutes * 60 + seconds)


def common(name: str, shapes: List[Record], tools: Tools) -> Record:
    """Return the hardware of a partition's nodes, and note the keys in which they differ.

    If the nodes differ, the smallest values count, so that jobs fit on every node. If the numbers of GPUs differ, the
    GPU record is empty: it is only known that some nodes have GPUs.
    """
    keys = sorted({key for shape in shapes for key in shape})
    differing = [key for key in keys if any(shape.get(key) != shapes[0].get(key) for shape in shapes)]
    found: Dict[str, Any] = {key: shapes[0][key] for key in shapes[0] if key not in differing} if shapes else {}
    if not differing:
        return found
    if all("cores" in shape for shape in shapes) and set(_LAYOUT).intersection(differing):
        least = min(shapes, key=lambda shape: (shape["cores"], shape.get("threads_per_core", 1)))
        found.update({key: least[key] for key in _LAYOUT if key in least})
    for key in (MEMORY, CPUS):
        if key in differing and key not in found and all(key in shape for shape in shapes):
            found[key] = min(shape[key] for shape in shapes)
    if GPUS in differing:
        counts = sorted({shape.get(GPUS, {}).get("count", 0) for shape in shapes})
        found[GPUS] = {"count": counts[0]} if len(counts) == 1 else {}
        what = "{} per node".format(" or ".join(map(str, counts))) if len(counts) > 1 else "type"
        differing[differing.index(GPUS)] += f" ({what})"
    advice = "write an entry for each kind, with the same queue and its own constraint"
    tools.note("partition {}: its nodes differ in {}: {}".format(name, ", ".join(differing), advice))
    return found
