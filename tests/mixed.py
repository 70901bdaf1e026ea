"""Sites of several kinds of nodes and partitions: what a batch system is told, and what a capture must find.

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
        "NodeName={} NodeAddr={} {}{}".format(
            node, address[node], kind.hardware, " Gres=" + kind.gres if kind.gres else ""
        )
        for kind in KINDS
        for node in kind.nodes
    )


def gres_conf() -> str:
    """Return gres.conf: a daemon counts devices, so some of all Linuxes pretend to be GPUs."""
    return "".join(
        "NodeName={} Name={} Type={} File={}\n".format(node, *kind.gres.split(":")[:2], DEVICES)
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

#: What qmgr is told of a site of PBS: queues with limits, with nodes of their own, behind routes and for some users.
PBS = """\
create resource Qlist type=string_array,flag=h
create resource cpu_type type=string,flag=h
create resource gpu_model type=string,flag=h
set server resources_max.walltime = 48:00:00
set server default_chunk.mem = 500mb
create queue batch queue_type=execution,resources_max.walltime=24:00:00,resources_max.nodect=1,default_chunk.Qlist=batch
create queue large queue_type=execution,default_chunk.mem=30gb
create queue accelerated queue_type=execution,resources_max.walltime=12:00:00,default_chunk.Qlist=accelerated
set queue accelerated resources_default.place = scatter:excl
create queue short queue_type=execution,resources_max.walltime=00:30:00,default_chunk.Qlist=short
create queue wide queue_type=execution,resources_max.walltime=01:00:00,default_chunk.Qlist=short,from_route_only=True
create queue orphan queue_type=execution,from_route_only=True
create queue project queue_type=execution,acl_group_enable=True,acl_groups=alice,default_chunk.Qlist=batch
set queue project acl_user_enable = True
set queue project acl_users = "-root@*,+"
create queue closed queue_type=execution,acl_user_enable=True,acl_users=root
create queue staff queue_type=execution,acl_group_enable=True,acl_groups=root
create queue intake queue_type=route,route_destinations=batch
create queue members queue_type=route,route_destinations=wide,acl_user_enable=True,acl_users=root
create queue public queue_type=route,route_destinations=wide
set queue @default resources_default.walltime = 00:10:00
set queue @default enabled = True
set queue @default started = True
set server default_queue = intake
delete queue workq
set node cn1,cn2 resources_available.ncpus = 4
set node cn1,cn2 resources_available.mem = 8000mb
set node cn1,cn2 resources_available.ngpus = 0
set node cn1,cn2 resources_available.cpu_type = thin
set node cn1,cn2 resources_available.Qlist = "batch,short"
set node cn3,cn3[0],cn3[1] resources_available.cpu_type = fat
set node cn3,cn3[0],cn3[1] queue = large
set node cn4,cn5 resources_available.ncpus = 6
set node cn4,cn5 resources_available.mem = 16gb
set node cn4,cn5 resources_available.ngpus = 4
set node cn4,cn5 resources_available.cpu_type = gpu
set node cn4,cn5 resources_available.gpu_model = a100
set node cn4,cn5 resources_available.Qlist = "accelerated,short"
"""
#: A host that its MoM divides into two vnodes, as those of NUMA domains.
DIVIDED = "cn3"
VNODES = """\
$configversion 2
cn3: resources_available.ncpus=0
cn3: resources_available.mem=0
cn3[0]: resources_available.ncpus=8
cn3[0]: resources_available.mem=16gb
cn3[1]: resources_available.ncpus=8
cn3[1]: resources_available.mem=16gb
"""
_OF_PBS_THIN = {"cpus": 4, "memory_mb": 8000}
_OF_PBS_FAT = {"cpus": 16, "memory_mb": 32768}
_OF_PBS_GPUS = {"cpus": 6, "memory_mb": 16384, "gpus": {"count": 4}}
_OF_PBS_SHORT = {"nodes": 2, "max_time": "00:30:00", "queue": "short", "request_memory": True}
_OF_PBS_WIDE = {"nodes": 2, "max_time": "01:00:00", "queue": "public", "request_memory": True}
OF_PBS: Dict[str, Dict[str, Any]] = {
    "batch": {"nodes": 2, "max_nodes": 1, "max_time": "24:00:00", "request_memory": True, "node": _OF_PBS_THIN},
    "accelerated": {
        "nodes": 2,
        "max_time": "12:00:00",
        "exclusive": True,
        "request_memory": True,
        "gpu_request": "ngpus",
        "node": _OF_PBS_GPUS,
    },
    "large": {"nodes": 1, "max_time": "48:00:00", "node": _OF_PBS_FAT},
    "project": {"nodes": 2, "max_time": "48:00:00", "request_memory": True, "node": _OF_PBS_THIN},
    "short-thin": dict(_OF_PBS_SHORT, constraint="cpu_type=thin", node=_OF_PBS_THIN),
    "short-gpu": dict(_OF_PBS_SHORT, constraint="cpu_type=gpu", gpu_request="ngpus", node=_OF_PBS_GPUS),
    "wide-thin": dict(_OF_PBS_WIDE, constraint="cpu_type=thin", node=_OF_PBS_THIN),
    "wide-gpu": dict(_OF_PBS_WIDE, constraint="cpu_type=gpu", gpu_request="ngpus", node=_OF_PBS_GPUS),
}
#: The notes about queues that the user may not use.
PBS_CLOSED = [
    "queue closed: left out: its acl_users do not list you",
    "queue staff: left out: its acl_groups do not list you",
    "queue members: left out: its acl_users do not list you",
    "queue orphan: left out: no routing queue leads to it",
]
