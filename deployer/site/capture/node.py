"""The hardware of a node according to its kernel: cores, NUMA, instruction sets, memory, GPUs."""

import glob
import os
import re
from typing import Dict, List, Optional, Set, Tuple

from deployer.contract.base.json_records import Record
from deployer.site.capture import cpu
from deployer.site.capture.tools import Tools

_GPU_FIELDS = ("name,memory.total,compute_cap", "name,memory.total")


def node(tools: Tools, sys: str = "/sys", proc: str = "/proc") -> Record:
    """Return this node's hardware, with the keys of a profile's ``NodeHardware``."""
    cores = _cores(sys)
    found: Record = {}
    if cores:
        found["sockets"] = len({socket for socket, _ in cores})
        found["cores"] = len(cores)
        if len(set(cores.values())) == 1:
            found["threads_per_core"] = next(iter(cores.values()))
    domains = glob.glob(os.path.join(sys, "devices/system/node/node[0-9]*"))
    if domains:
        found["numa_domains"] = len(domains)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _text(os.path.join(proc, "meminfo")), re.MULTILINE)
    if memory:
        found["memory_total_mb"] = int(memory.group(1)) // 1024
    processor = _cpu(_text(os.path.join(proc, "cpuinfo")))
    if processor:
        found["cpu"] = processor
    gpus = _gpus(tools)
    if gpus:
        found["gpus"] = gpus
    return found


def _cores(sys: str) -> Dict[Tuple[str, str], int]:
    """Return the number of online threads of each core, by socket and core."""
    found: Dict[Tuple[str, str], int] = {}
    for path in glob.glob(os.path.join(sys, "devices/system/cpu/cpu[0-9]*/topology")):
        socket = _text(os.path.join(path, "physical_package_id")).strip()
        core = _text(os.path.join(path, "core_id")).strip()
        if socket and core:
            found[socket, core] = found.get((socket, core), 0) + 1
    return found


def _cpu(text: str) -> Record:
    """Return the model and instruction sets from /proc/cpuinfo; empty if the architecture does not list them."""
    found: Record = {}
    model = re.search(r"^model name\s*:\s*(.{1,100})$", text, re.MULTILINE)
    if model:
        found["model"] = model.group(1).strip()
    flags: List[Set[str]] = [set(line.split()) for line in re.findall(r"^flags\s*:(.*)$", text, re.MULTILINE)]
    if flags:
        common = set.intersection(*flags)
        found["flags"] = [flag for flag in cpu.FLAGS if flag in common]
    return found


def _gpus(tools: Tools) -> Optional[Record]:
    for fields in _GPU_FIELDS:  # drivers before 510 do not know compute_cap
        said = tools.ask(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"], any_status=True)
        if said is None:
            return None
        if said.status == 0:
            return _parse_gpus(said.out, tools)
    return None


def _parse_gpus(text: str, tools: Tools) -> Optional[Record]:
    rows = [[word.strip() for word in line.split(",")] for line in text.splitlines() if line.strip()]
    if not rows or any(len(row) not in (2, 3) or not row[1].isdigit() for row in rows):
        tools.note(f"nvidia-smi: no list of GPUs: {text[:100]}")
        return None
    if len({tuple(row) for row in rows}) > 1:
        tools.note("the node's GPUs differ: {}".format("; ".join(sorted({row[0] for row in rows}))))
        return {"kind": "nvidia", "count": len(rows)}
    found = {"kind": "nvidia", "model": rows[0][0], "count": len(rows), "memory_mb": int(rows[0][1])}
    if len(rows[0]) == 3:
        found["capability"] = rows[0][2]
    return found


def _text(path: str) -> str:
    """Return the text of a kernel file; empty if it does not exist."""
    try:
        with open(path, "rb") as stream:
            return stream.read(16 * 1024 * 1024).decode("utf-8", "replace")
    except OSError:
        return ""
