"""PBS's queues as partitions, from what qstat and pbsnodes print for any user (OpenPBS 23.06). No job is submitted.

The attributes are those of pbs_queue_attributes(7B), pbs_server_attributes(7B) and pbs_node_attributes(7B).
"""

import re
from typing import Dict, Iterator, List, Optional

from deployer.contract.json_records import Record
from deployer.contract.plan import GPU_WORDS
from deployer.site.capture.scheduler import ENOUGH, BatchFacts, Nodes, clock, common, kinds
from deployer.site.capture.tools import Tools

_VERSION = re.compile(r"^pbs_version = (\S+)", re.MULTILINE)
#: What a queue takes from the server unless it has its own.
_LIMIT, _DEFAULT, _CHUNK = "resources_max.", "resources_default.", "default_chunk."
_AVAILABLE = "resources_available."
#: A resource that is counted: a default for it selects no nodes. Those that name a single node are no features either.
_COUNT = re.compile(r"^\d+([kmgtp]?[bw])?$")
_OWN = ("host", "vnode")
#: Equal nodes report memory that differs by less than this part: that is what their kernels left.
_ALIKE = 0.02
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
    nodes = tools.ask(["pbsnodes", "-av"])
    vnodes = records(nodes.out) if nodes else {}
    about_server = tools.ask(["qstat", "-Bf"])
    server = next(iter(records(about_server.out).values()), {}) if about_server else {}
    shared = {key: value for key, value in server.items() if key.startswith((_LIMIT, _DEFAULT, _CHUNK))}
    queues = {name[len("Queue: ") :]: dict(shared, **fields) for name, fields in records(listed.out).items()}
    usable = {name: queue for name, queue in queues.items() if _admits(name, queue, tools)}
    routes = {
        name: [each.partition("@")[0] for each in queue.get("route_destinations", "").split(",")]
        for name, queue in usable.items()
        if not queue.get("queue_type", "").lower().startswith("e")  # it only passes jobs on
    }
    default = server.get("default_queue", "")
    first = routes.get(default, [default])
    partitions: Record = {}
    for name in sorted(set(usable) - set(routes), key=lambda name: (name not in first, name)):
        partitions.update(_partitions(name, usable[name], routes, vnodes, tools))
    return BatchFacts({"kind": "pbs", "version": version.group(1)}, partitions, None)


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


def _admits(name: str, queue: Dict[str, str], tools: Tools) -> bool:
    """Return whether this user may use a queue, as acl_check() of OpenPBS decides, and note it if not."""
    for kind, option in (("user", "-un"), ("group", "-Gn")):
        if queue.get("acl_%s_enable" % kind) == "True":
            own = tools.ask(["id", option], any_status=True)
            names = own.out.split() if own else []
            listed = queue.get("acl_%ss" % kind, "").split(",")
            decisive = [each for each in listed if each.lstrip("+-").partition("@")[0] in names]
            if not decisive:
                decisive = [each for each in listed if each in ("+", "-")] or ["-"]
            if decisive[0].startswith("-"):
                tools.note("queue %s: left out: its acl_%ss do not list you" % (name, kind))
                return False
    return True


def _partitions(
    name: str, queue: Dict[str, str], routes: Dict[str, List[str]], vnodes: Dict[str, Dict[str, str]], tools: Tools
) -> Record:
    """Return a queue's entries: see ``kinds``.

    Args:
        routes: the queues that pass jobs on, and their destinations.
    """
    hosts: Dict[str, List[Dict[str, str]]] = {}
    for vnode, fields in vnodes.items():
        if _is_of(name, queue, fields):
            hosts.setdefault(fields.get(_AVAILABLE + "host", vnode), []).append(fields)
    words: Record = {}
    if queue.get("from_route_only") == "True":
        leading = [route for route, destinations in routes.items() if name in destinations]
        if not leading:
            tools.note("queue %s: left out: no routing queue leads to it" % name)
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
    found: Record = {"nodes": len(nodes)} if nodes else {}
    limit = _CLOCK.match(queue.get(_LIMIT + "walltime", ""))
    if limit:
        hours, minutes, seconds = (int(part or 0) for part in limit.groups())
        found["max_time"] = clock(hours * 3600 + minutes * 60 + seconds)
    most = queue.get(_LIMIT + "nodect", "")
    if most.isdigit() and int(most):
        found["max_nodes"] = int(most)
    shape = common(name, [each.shape for each in nodes], tools)
    if any("gpus" in each.shape for each in nodes):
        found["gpu_request"] = GPU_WORDS["pbs"]
    default = _mebibytes(queue.get(_CHUNK + "mem", ""))
    if default and default < ENOUGH * shape.get("memory_mb", 0):
        found["request_memory"] = True
    if shape:
        found["node"] = shape
    return found


def _is_of(name: str, queue: Dict[str, str], node: Dict[str, str]) -> bool:
    """Return whether jobs of a queue run on a vnode: it may belong to one queue, or have what the queue's jobs ask."""
    if ("queue" in node or queue.get("hasnodes") == "True") and node.get("queue") != name:
        return False  # a queue with vnodes of its own uses no others
    asked = {key[len(_CHUNK) :]: value for key, value in queue.items() if key.startswith(_CHUNK)}
    return all(
        value in node.get(_AVAILABLE + resource, "").split(",")
        for resource, value in asked.items()
        if not _COUNT.match(value)
    )


def _features(vnodes: List[Dict[str, str]], queue: Dict[str, str]) -> Iterator[str]:
    """Yield the resources of a host with which jobs can request nodes like it, besides those of the queue's jobs."""
    for key, values in (item for vnode in vnodes for item in vnode.items()):
        resource = key[len(_AVAILABLE) :]
        if key.startswith(_AVAILABLE) and resource not in _OWN and _CHUNK + resource not in queue:
            yield from ("%s=%s" % (resource, value) for value in values.split(",") if not _COUNT.match(value))


def _shape(vnodes: List[Dict[str, str]]) -> Record:
    """Return the shape of a host, which may be divided into vnodes."""
    memory = int(sum(_mebibytes(vnode.get(_AVAILABLE + "mem", "")) for vnode in vnodes))
    cpus, gpus = (_sum(vnodes, resource) for resource in ("ncpus", "ngpus"))
    shape: Record = {"cpus": cpus, "memory_mb": memory, "gpus": {"count": gpus} if gpus else 0}
    return {key: value for key, value in shape.items() if value}


def _sum(vnodes: List[Dict[str, str]], resource: str) -> int:
    counts = [vnode.get(_AVAILABLE + resource, "") for vnode in vnodes]
    return sum(int(count) for count in counts if count.isdigit())


def _level(shapes: List[Record]) -> None:
    """Give nodes with nearly equal memory the smallest of it."""
    least = 0
    for shape in sorted(shapes, key=lambda shape: shape.get("memory_mb", 0)):
        if shape.get("memory_mb", 0) > least * (1 + _ALIKE):
            least = shape["memory_mb"]
        shape.update({"memory_mb": least} if least else {})


def _mebibytes(text: str) -> float:
    """Return a size of PBS in MiB; 0 if there is none."""
    size = _SIZE.match(text)
    return int(size.group(1)) * _KIB[size.group(2)] / 1024 if size else 0
