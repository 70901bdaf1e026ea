"""One capture: of the login node on which this runs or, in a job, of a compute node for its partition."""

import os
import re
import shutil
import socket
import time
from typing import Collection, NamedTuple, Optional, Sequence

from deployer import __version__
from deployer.contract.base.errors import UsageError
from deployer.contract.base.json_records import Record
from deployer.contract.site import facts
from deployer.site.capture import filesystems, machine, node
from deployer.site.capture.capture_files import SiteCapture
from deployer.site.capture.scheduler import BatchFacts, BatchSystem
from deployer.site.capture.software import fabric, modules, mpi
from deployer.site.capture.software.libraries import Libraries
from deployer.site.capture.started import TrialWords
from deployer.site.capture.tools import TOGETHER, Tools, determined

#: The format of profiles.
_FORMAT = 1


class CaptureRequest(NamedTuple):
    """What to capture.

    Attributes:
        node: capture this compute node instead of the site.
        partition: the node's partition, if the scheduler does not report it.
        mpi: prefixes of installations that the search would miss.
        name: the site's name, if the scheduler has none.
        seconds: the time for all tools together.
        words: returns the command that starts a test container of a runtime; None: not all runtimes are tested.
    """

    node: bool = False
    partition: Optional[str] = None
    mpi: Sequence[str] = ()
    name: Optional[str] = None
    seconds: float = TOGETHER
    words: Optional[TrialWords] = None


def capture(request: CaptureRequest, systems: Collection[BatchSystem]) -> SiteCapture:
    """Return the facts of this machine. Raises UsageError for a node whose partition is unknown.

    Args:
        systems: the batch systems to try; the first one that answers provides the facts.
    """
    partition = request.partition or _of_job(systems, "job_partition")
    if request.node and not partition:
        raise UsageError(
            "cannot determine this node's partition", "give --partition NAME; only in a job of Slurm is it known"
        )
    tools = Tools(request.seconds, [each for system in systems for each in system.settings])
    source = {"kind": "captured", "where": socket.gethostname(), "date": time.strftime("%Y-%m-%d")}
    answers = ((system, system.facts(tools)) for system in systems)
    answering, batch = next((each for each in answers if each[1]), (BatchSystem(), None))
    libraries = Libraries(tools)
    available = modules.find(tools)
    mpis = mpi.find(tools, libraries, available.mpi, list(request.mpi), source)
    if batch and batch.spool:
        for found in mpis.mpi.values():
            if found["family"] == "cray":  # Cray's PMI reads the list of ranks there
                found["binds"] = sorted({*found.get("binds", ()), batch.spool})
    network = fabric.find(tools, libraries, modules=available.communication)
    this = machine.machine(tools, request.words)
    for name, (module, version) in modules.runtimes(available.chains).items():
        loads = available.chains[module]
        own = {"module": list(loads) if len(loads) > 1 else module, "version": version}
        this["runtimes"].setdefault(name, determined(own))
    this.update(determined({"fabric": network.fabric, "driver": network.driver}), filesystems=filesystems.find(tools))
    system = mpis.system
    system.update(network.system)
    trees = {name: tree.record() for name, tree in mpis.trees.items()}
    if request.node and partition:
        name = _of_job(systems, "node_name") or socket.gethostname().partition(".")[0]
        parts = _of_node(tools, batch, answering.own_node(tools, name), partition, this, source)
        host = _of_job(systems, "submit_host")
        parts.update({"login": {"host": host}} if host else {})
        record = facts.record(None, {partition: system.record()}, trees)
    else:
        parts = _of_login(batch, this, source)
        record = facts.record(system.record(), {}, trees)
    ends = determined({"partitions": parts.pop("partitions", None), "notes": tools.notes})
    profile = {
        "format": _FORMAT,
        "name": _name(request.name or (batch.cluster if batch else None)),
        "description": f"Captured by deployer {__version__}.",
        "source": source,
        **parts,
        "mpi": mpis.mpi,
        **ends,
    }
    return SiteCapture(profile, record)


def _of_login(batch: Optional[BatchFacts], this: Record, source: Record) -> Record:
    login = {"host": socket.gethostname(), "mksquashfs": shutil.which("mksquashfs") is not None}
    parts: Record = {"login": dict(login, **dict(this, source=source))}
    if batch:
        parts["scheduler"] = dict(batch.scheduler, source=source)
        if batch.partitions:
            parts["partitions"] = {name: dict(value, source=source) for name, value in batch.partitions.items()}
    return parts


def _of_node(
    tools: Tools, batch: Optional[BatchFacts], own: Record, partition: str, this: Record, source: Record
) -> Record:
    """Return the facts of a compute node: its hardware as the kernel and the batch system (``own``) report it."""
    kernel = node.node(tools)
    for key in ("sockets", "cores", "threads_per_core"):
        if key in own and key in kernel and own[key] != kernel[key]:
            tools.note("partition %s: Slurm reports %s %d, the kernel %d" % (partition, key, own[key], kernel[key]))
    # Other nodes of the partition may differ from this one, and the job may see fewer GPUs than its node has.
    dealt = dict(own, **(batch.partitions.get(partition, {}).get("node", {}) if batch else {}))
    known_gpus = dealt.pop("gpus", None)
    gpus = dict(kernel.get("gpus") or {}, **(known_gpus or {}))
    if known_gpus == {}:  # the partition's nodes have different numbers of GPUs
        gpus.pop("count", None)
    shape = {**kernel, **dealt, **({"gpus": gpus} if gpus else {})}
    return {"partitions": {partition: dict(this, node=shape, source=source)}}


def _of_job(systems: Collection[BatchSystem], name: str) -> Optional[str]:
    """Return the value of the variable that a batch system sets in its jobs."""
    return next(filter(None, (os.environ.get(getattr(system, name)) for system in systems)), None)


def _name(text: Optional[str]) -> str:
    """Return a valid name for a profile, without any invalid characters."""
    return re.sub(r"^[^a-z0-9]+", "", re.sub(r"[^a-z0-9._-]+", "-", (text or "").lower())) or "site"
