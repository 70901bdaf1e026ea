"""A site of three kinds of nodes and five partitions: what Slurm is told, and what a capture must find.

The truth is written by hand beside the configuration. Recordings of real Slurms of this site are replayed by the tests
of ``capture``; a lab of it is captured as a whole.
"""

from typing import Any, Dict, NamedTuple, Tuple

#: The group of a partition that the user may not use.
CLOSED = "partition closed: left out: only groups root may use it"


class Kind(NamedTuple):
    """A kind of nodes, as slurm.conf has it."""

    nodes: Tuple[str, ...]
    hardware: str
    gres: str = ""


THIN = Kind(
    ("cn1", "cn2"),
    "CPUs=4 Boards=1 SocketsPerBoard=2 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=8000 Feature=thin,opa",
)
FAT = Kind(
    ("cn3",),
    "CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=32000 MemSpecLimit=1000"
    " Feature=fat,opa",
)
ACCELERATED = Kind(
    ("cn4", "cn5"),
    "CPUs=6 Boards=1 SocketsPerBoard=2 CoresPerSocket=3 ThreadsPerCore=1 RealMemory=16000 Feature=accelerated",
    "gpu:a100:4",
)
#: As many as the node with GPUs has.
DEVICES = "/dev/null,/dev/zero,/dev/full,/dev/random"
KINDS = (THIN, FAT, ACCELERATED)
NODES = tuple(node for kind in KINDS for node in kind.nodes)

SETTINGS = """\
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
"""
PARTITIONS = """\
PartitionName=batch Nodes=cn[1-2] Default=YES MaxTime=1-00:00:00 MaxNodes=1 State=UP
PartitionName=large Nodes=cn3 MaxTime=INFINITE DefMemPerNode=30000 State=UP
PartitionName=accelerated Nodes=cn[4-5] MaxTime=12:00:00 OverSubscribe=EXCLUSIVE MaxMemPerNode=15000 State=UP
PartitionName=short Nodes=cn[1-2],cn[4-5] MaxTime=30 DefMemPerCPU=2000 State=UP
PartitionName=all Nodes=ALL MaxTime=60 State=UP
PartitionName=closed Nodes=cn1 AllowGroups=root State=UP
PartitionName=empty State=UP
"""

_THIN = {"sockets": 2, "cores": 4, "threads_per_core": 1, "memory_mb": 8000}
_FAT = {"sockets": 1, "cores": 4, "threads_per_core": 2, "memory_mb": 31000}
_GPUS = {"sockets": 2, "cores": 6, "threads_per_core": 1, "memory_mb": 16000, "gpus": {"type": "a100", "count": 4}}
_SHORT = {"nodes": 2, "max_time": "30:00", "queue": "short"}
_ALL = {"nodes": 2, "max_time": "1:00:00", "queue": "all", "request_memory": True}
#: What a profile has: an entry for each partition, or for each kind of its nodes.
TRUTH: Dict[str, Dict[str, Any]] = {
    "batch": {"nodes": 2, "max_nodes": 1, "max_time": "1-00:00:00", "request_memory": True, "node": _THIN},
    "accelerated": {
        "nodes": 2,
        "max_time": "12:00:00",
        "exclusive": True,
        "request_memory": True,
        "gpu_request": "gres",
        "node": dict(_GPUS, memory_mb=15000),
    },
    "large": {"nodes": 1, "node": _FAT},
    "short-thin": dict(_SHORT, constraint="thin", node=_THIN),
    "short-accelerated": dict(_SHORT, constraint="accelerated", gpu_request="gres", request_memory=True, node=_GPUS),
    "all-thin": dict(_ALL, constraint="thin", node=_THIN),
    "all-fat": dict(_ALL, nodes=1, constraint="fat", node=_FAT),
    "all-accelerated": dict(_ALL, constraint="accelerated", gpu_request="gres", node=_GPUS),
}


def slurm_nodes(address: Dict[str, str]) -> str:
    """Return the lines of slurm.conf about nodes, with the addresses of their daemons."""
    return "\n".join(
        "NodeName=%s NodeAddr=%s %s%s" % (node, address[node], kind.hardware, " Gres=" + kind.gres if kind.gres else "")
        for kind in KINDS
        for node in kind.nodes
    )


def gres_conf() -> str:
    """Return gres.conf: a daemon counts devices, so some of all Linuxes pretend to be GPUs."""
    return "".join(
        "NodeName=%s Name=%s Type=%s File=%s\n" % (node, *kind.gres.split(":")[:2], DEVICES)
        for kind in KINDS
        if kind.gres
        for node in kind.nodes
    )


#: The truth of the recording of Grid Engine: two nodes of 2 cores, of which one has GPUs and a queue of its own.
OF_GRID_ENGINE: Dict[str, Dict[str, Any]] = {
    "batch": {
        "nodes": 2,
        "node": {"sockets": 1, "cores": 2, "threads_per_core": 1, "gpus": {}},
        "parallel_environment": "mpi",
    },
    "fast": {
        "nodes": 1,
        "max_time": "12:00:00",
        "node": {"sockets": 1, "cores": 2, "threads_per_core": 1, "gpus": {"count": 4}},
        "parallel_environment": "mpi",
    },
}
