"""LSF's queues as partitions, from lsid and bqueues -l: not seen here.

IBM's command reference for 10.1 names the fields; their layout is by examples, and as XSEDE's ipf reads it.

The hosts of a queue are groups, exceptions and preferences, so they are not counted: its job shows what a node is.
"""

import re
from typing import Optional

from deployer.contract.json_records import Record
from deployer.contract.plan import GPU_WORDS
from deployer.site.capture.scheduler import BatchFacts, clock
from deployer.site.capture.tools import Tools

_VERSION = re.compile(r"\bLSF\b.*?(\d+\.\d[\d.]*)")
_CLUSTER = re.compile(r"^My cluster name is (\S+)", re.MULTILINE)
_QUEUE = re.compile(r"^QUEUE: (\S+)", re.MULTILINE)
_DEFAULT = "This is the default queue."
#: The run limit in minutes. With default limits, those come first under a title of their own, and then the largest.
_LIMIT = re.compile(r"^\s*RUNLIMIT\s*\n\s*(\d+(?:\.\d+)?) min", re.MULTILINE)
_LARGEST = "MAXIMUM LIMITS:"
#: The title of the list of GPUs, and a first one.
_GPUS = re.compile(r"^HOST_NAME +gpu_id .*\n\S+ +\d", re.MULTILINE | re.IGNORECASE)


def lsf(tools: Tools) -> Optional[BatchFacts]:
    """Return LSF's facts; None if there is none or it does not answer."""
    about = tools.ask(["lsid"])
    version = _VERSION.search(about.out) if about else None
    listed = tools.ask(["bqueues", "-l"]) if version else None
    if about is None or version is None or listed is None:
        return None
    parts = _QUEUE.split(listed.out)[1:]
    queues = sorted(zip(parts[::2], parts[1::2]), key=lambda queue: _DEFAULT not in queue[1])
    cluster = _CLUSTER.search(about.out)
    scheduler: Record = {"kind": "lsf", "version": version.group(1).rstrip(".")}
    gpus = tools.ask(["lshosts", "-gpu"], any_status=True)
    # Which queues have them is unknown: a job without a request sees none.
    word: Record = {"gpu_request": GPU_WORDS["lsf"]} if gpus and _GPUS.search(gpus.out) else {}
    return BatchFacts(
        scheduler, {name: dict(_partition(text), **word) for name, text in queues}, cluster and cluster.group(1)
    )


def _partition(text: str) -> Record:
    limit = _LIMIT.search(text.partition(_LARGEST)[2] or text)
    if not limit or not float(limit.group(1)):
        return {}
    return {"max_time": clock(int(float(limit.group(1)) * 60))}
