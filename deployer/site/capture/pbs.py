"""PBS's queues as partitions: not seen here.

By pbs_queue_attributes(7B), pbs_node_attributes(7B), and what prints them: qstat.c and pbsnodes.c of OpenPBS.

Of a node, PBS reports memory and GPUs for sure; what it counts as CPUs may be cores or hardware threads.
"""

import re
from typing import Dict, List, Optional

from deployer.contract.json_records import Record
from deployer.contract.plan import GPU_WORDS
from deployer.site.capture.scheduler import ENOUGH, BatchFacts, common
from deployer.site.capture.tools import Tools

_VERSION = re.compile(r"^pbs_version = (\S+)", re.MULTILINE)
#: Resources that are counted: a queue's default for them selects no nodes.
_COUNTED = ("ncpus", "mem", "vmem", "ngpus", "mpiprocs", "ompthreads", "nodect")
_DEFAULT, _AVAILABLE = "default_chunk.", "resources_available."
_CLOCK = re.compile(r"^(?:(\d+):)?(\d+):(\d\d)$")
_SIZE = re.compile(r"^(\d+)([kmgt]?)b$")
_KIB = {"": 1 / 1024, "k": 1, "m": 1024, "g": 1024**2, "t": 1024**3}


def pbs(tools: Tools) -> Optional[BatchFacts]:
    """Return PBS's facts; None if there is none or it does not answer."""
    about = tools.ask(["qstat", "--version"], any_status=True)
    version = _VERSION.search(about.both) if about else None
    listed = tools.ask(["qstat", "-Qf"]) if version else None
    if version is None or listed is None:
        return None
    nodes = tools.ask(["pbsnodes", "-a"])
    found = records(nodes.out) if nodes else {}
    queues = {name[len("Queue: ") :]: fields for name, fields in records(listed.out).items()}
    server = tools.ask(["qstat", "-Bf"])
    default = re.search(r"^\s+default_queue = (\S+)", server.out, re.MULTILINE) if server else None
    first = default.group(1) if default else None
    partitions = {
        name: _partition(name, queues[name], found, tools)
        for name in sorted(queues, key=lambda name: (name != first, name))
        if queues[name].get("queue_type", "").lower().startswith("e")  # not one that only passes jobs on
    }
    return BatchFacts({"kind": "pbs", "version": version.group(1)}, dict(partitions), None)


def records(text: str) -> Dict[str, Dict[str, str]]:
    """Return the attributes of each object: its name begins a line; a long line continues after a tab."""
    found: Dict[str, Dict[str, str]] = {}
    fields: Dict[str, str] = {}
    for line in text.replace("\n\t", "").splitlines():
        if line and not line[0].isspace():
            fields = found.setdefault(line.strip(), {})
        elif " = " in line:
            name, _, value = line.strip().partition(" = ")
            fields[name] = value
    return found


def _partition(name: str, queue: Dict[str, str], nodes: Dict[str, Dict[str, str]], tools: Tools) -> Record:
    hosts: Dict[str, List[Dict[str, str]]] = {}
    for vnode, fields in nodes.items():
        if _is_of(name, queue, fields):
            hosts.setdefault(fields.get(_AVAILABLE + "host", vnode), []).append(fields)
    own = [_shape(vnodes) for vnodes in hosts.values()]
    found: Record = {"nodes": len(own)} if own else {}
    limit = _CLOCK.match(queue.get("resources_max.walltime", ""))
    if limit:
        hours, minutes, seconds = (int(part or 0) for part in limit.groups())
        found["max_time"] = "%02d:%02d:%02d" % (hours, minutes, seconds)
    most = queue.get("resources_max.nodect", "")
    if most.isdigit() and int(most):
        found["max_nodes"] = int(most)
    shape = common(name, own, tools)
    if any("gpus" in each for each in own):
        found["gpu_request"] = GPU_WORDS["pbs"]
    default = _mebibytes(queue.get(_DEFAULT + "mem", ""))
    if default and default < ENOUGH * shape.get("memory_mb", 0):
        found["request_memory"] = True
    if shape:
        found["node"] = shape
    return found


def _is_of(name: str, queue: Dict[str, str], node: Dict[str, str]) -> bool:
    """Return whether jobs of a queue run on a vnode: it may belong to one queue, or have what the queue's jobs ask."""
    if ("queue" in node or queue.get("hasnodes") == "True") and node.get("queue") != name:
        return False  # a queue with vnodes of its own uses no others
    asked = {key[len(_DEFAULT) :]: value for key, value in queue.items() if key.startswith(_DEFAULT)}
    return all(
        value in node.get(_AVAILABLE + resource, "").split(",")
        for resource, value in asked.items()
        if resource not in _COUNTED
    )


def _shape(vnodes: List[Dict[str, str]]) -> Record:
    """Return the shape of a host, which may be divided into vnodes."""
    shape: Record = {}
    memory = int(sum(_mebibytes(vnode.get(_AVAILABLE + "mem", "")) for vnode in vnodes))
    if memory:
        shape["memory_mb"] = memory
    counts = [vnode.get(_AVAILABLE + "ngpus", "") for vnode in vnodes]
    gpus = sum(int(count) for count in counts if count.isdigit())
    if gpus:
        shape["gpus"] = {"count": gpus}
    return shape


def _mebibytes(text: str) -> float:
    """Return a size of PBS in MiB; 0 if there is none."""
    size = _SIZE.match(text)
    return int(size.group(1)) * _KIB[size.group(2)] / 1024 if size else 0
