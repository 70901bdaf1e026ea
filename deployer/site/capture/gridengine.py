"""Grid Engine's queues as partitions: what qconf and qhost tell any user (8.1.9 was seen). Nothing is submitted."""

import re
from typing import Dict, List, NamedTuple, Optional

from deployer.contract.json_records import Record
from deployer.site.capture.scheduler import BatchFacts, clock, common
from deployer.site.capture.tools import Tools

_VERSION = re.compile(r"^\S*GE\S* (\d+\.\d[\w.]*)")
#: A host in qhost's XML, a value of it, and a queue that has an instance on it.
_HOST = re.compile(r"<host name='([^']+)'>(.*?)</host>", re.DOTALL)
_VALUE = re.compile(r"<hostvalue name='(\w+)'>([^<]*)<")
_QUEUE = re.compile(r"<queue name='([^']+)'>")
#: Rules of parallel environments by which a job's slots are dealt evenly to whole nodes, the best first.
_RULES = ("$round_robin", "$fill_up")
#: The names that sites give to the resource that counts GPUs. Each slot of a job gets what the job requests of it.
_GPUS = re.compile(r"^(n?gpus?|gpu_?(count|card|num)s?|cuda)$", re.IGNORECASE)
#: HH:MM:SS, of which hours and minutes may be empty, or seconds: sge_types(1).
_LIMIT = re.compile(r"^(?:(\d*):(\d*):)?(\d+)$")


class _Environment(NamedTuple):
    """A parallel environment in which deployer's jobs can run, with the place of its rule among the best ones."""

    place: int
    name: str
    rule: str


def gridengine(tools: Tools) -> Optional[BatchFacts]:
    """Return Grid Engine's facts; None if there is none or it does not answer."""
    said = tools.ask(["qconf", "-sql"])
    if said is None:
        return None
    queues = said.out.split()
    about = tools.ask(["qstat", "-help"], any_status=True)
    version = _VERSION.match(about.out) if about else None
    scheduler: Record = {"kind": "gridengine", **({"version": version.group(1)} if version else {})}
    word = _gpu_word(tools)
    scheduler.update({"gpu_request": word} if word else {})
    hosts = tools.ask(["qhost", "-q", *(["-F", word] if word else []), "-xml"])
    nodes = _nodes(hosts.out, word, tools) if hosts else {}
    environments = _environments(tools)
    partitions = {name: _partition(name, nodes.get(name, []), environments, tools) for name in queues}
    return BatchFacts(scheduler, dict(partitions), None)


def _gpu_word(tools: Tools) -> Optional[str]:
    """Return the name of the resource that counts GPUs per slot, as complex(5) lists it; None if there is none."""
    said = tools.ask(["qconf", "-sc"])
    rows = [line.split() for line in said.out.splitlines()] if said else []
    found = [row for row in rows if len(row) == 8 and _GPUS.match(row[0])]
    for row in found:
        if row[4] in ("YES", "FORCED") and row[5] == "YES":
            return row[0]
        tools.note("the resource %s is not counted per slot: jobs request it with directives" % row[0])
    return None


def _nodes(text: str, word: Optional[str], tools: Tools) -> Dict[str, List[Record]]:
    """Return the shapes of each queue's nodes."""
    found: Dict[str, List[Record]] = {}
    for host, inner in _HOST.findall(text):
        shape = _shape(dict(_VALUE.findall(inner)))
        queues = _QUEUE.findall(inner)
        if word and queues and "<resourcevalue name='%s'" % word in inner:
            count = _gpus(host, word, tools)
            shape.update({"gpus": {"count": count}} if count else {})
        for queue in queues:
            found.setdefault(queue, []).append(shape)
    return found


def _gpus(host: str, word: str, tools: Tools) -> int:
    """Return the GPUs of a host; qhost prints only those that are free."""
    said = tools.ask(["qconf", "-se", host])
    values = _fields(said.out).get("complex_values", "") if said else ""
    match = re.search(r"(?:^|,)%s=(\d+)(?:\.0*)?(?:,|$)" % re.escape(word), values.replace(" ", ""))
    return int(match.group(1)) if match else 0


def _shape(values: Dict[str, str]) -> Record:
    sockets, cores, threads = (values.get(name, "") for name in ("m_socket", "m_core", "m_thread"))
    if not (sockets.isdigit() and cores.isdigit() and int(sockets) * int(cores)):
        return {}
    shape: Record = {"sockets": int(sockets), "cores": int(cores)}
    if threads.isdigit() and int(threads) and int(threads) % int(cores) == 0:
        shape["threads_per_core"] = int(threads) // int(cores)
    return shape


def _partition(name: str, nodes: List[Record], environments: Dict[str, _Environment], tools: Tools) -> Record:
    said = tools.ask(["qconf", "-sq", name])
    fields = _fields(said.out) if said else {}
    found: Record = {"nodes": len(nodes)} if nodes else {}
    limit = _LIMIT.match(fields.get("h_rt", ""))
    if limit:
        hours, minutes, seconds = (int(part or 0) for part in limit.groups())
        found["max_time"] = clock(hours * 3600 + minutes * 60 + seconds)
    shape = common(name, nodes, tools)
    if shape:
        found["node"] = shape
    usable = sorted(environments[each] for each in _words(fields.get("pe_list", "")) if each in environments)
    if usable:
        found["parallel_environment"] = usable[0].name
    if len(usable) > 1:
        others = ", ".join("%s (%s)" % (each.name, each.rule) for each in usable[1:])
        tools.note("partition %s: parallel environment %s was chosen; others: %s" % (name, usable[0].name, others))
    elif not usable:
        tools.note("partition %s: no parallel environment deals slots to several nodes and has control_slaves" % name)
    return found


def _environments(tools: Tools) -> Dict[str, _Environment]:
    """Return the parallel environments that deal slots to several nodes and let jobs start processes there."""
    said = tools.ask(["qconf", "-spl"])
    found = {}
    for name in said.out.split() if said else ():
        shown = tools.ask(["qconf", "-sp", name])
        fields = _fields(shown.out) if shown else {}
        rule = fields.get("allocation_rule", "")
        if fields.get("control_slaves", "").upper() == "TRUE" and (rule in _RULES or rule.isdigit()):
            found[name] = _Environment(_RULES.index(rule) if rule in _RULES else len(_RULES), name, rule)
    return found


def _fields(text: str) -> Dict[str, str]:
    """Return the fields of qconf's output; a long line continues after a backslash."""
    pairs = (line.partition(" ") for line in re.sub(r"\\\n\s*", "", text).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _words(text: str) -> List[str]:
    """Return the words of a list, without values of single hosts: ``mpi smp,[cn1=gpu]``."""
    return re.sub(r"\[[^\]]*\]", "", text).replace(",", " ").split()
