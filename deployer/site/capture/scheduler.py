"""What captures of all batch systems have in common: facts, and the kinds of nodes of a partition."""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from deployer.contract.json_records import Record
from deployer.site.capture.tools import Tools

GPUS = "gpus"
#: What a layout is made of: these values belong together.
CPUS = "cpus"
_LAYOUT = ("sockets", "cores", "threads_per_core", CPUS)
MEMORY = "memory_mb"
#: A feature that can be part of a partition's name, and the most kinds of nodes that are entries of their own.
_FEATURE = re.compile(r"([A-Za-z]\w*=)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,24}$")
_MAX_KINDS = 8
#: A job without a request has enough memory if it gets this part of its nodes'.
ENOUGH = 0.9


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
    for key in (MEMORY, CPUS):
        if key in differing and key not in found and all(key in shape for shape in shapes):
            found[key] = min(shape[key] for shape in shapes)
    if GPUS in differing:
        counts = sorted({shape.get(GPUS, {}).get("count", 0) for shape in shapes})
        found[GPUS] = {"count": counts[0]} if len(counts) == 1 else {}
        what = "%s per node" % " or ".join(map(str, counts)) if len(counts) > 1 else "type"
        differing[differing.index(GPUS)] += " (%s)" % what
    advice = "write an entry for each kind, with the same queue and its own constraint"
    tools.note("partition %s: its nodes differ in %s: %s" % (name, ", ".join(differing), advice))
    return found
