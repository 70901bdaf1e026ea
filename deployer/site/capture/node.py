"""The hardware of a node according to its kernel: cores, NUMA, instruction sets, memory, GPUs."""

import glob
import os
import re
from collections import Counter
from typing import Dict, List, Optional, Tuple

from deployer.contract.base.json_records import Record
from deployer.site.capture import gpus
from deployer.site.capture.tools import Tools, determined, read_text, read_word

#: The instruction sets that matter to compiled programs, with the kernel's names in /proc/cpuinfo: on x86-64 the flags
#: from which compilers and oneDNN choose code, and that make up the psABI's levels v2 to v4; on AArch64 those beyond
#: ARMv8.0. A profile lists each of them that a node has. A flag that is not listed is missing on the node.
FLAGS = (
    "sse4_1", "sse4_2", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq",
    "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "atomics", "fphp", "asimdhp", "asimdrdm", "asimddp", "asimdfhm", "fcma", "jscvt", "lrcpc", "paca", "sha3", "sve",
    "sve2", "bf16", "i8mm",
)  # fmt: skip
#: PCI's numbers of NVIDIA, AMD and Intel, and of display controllers and processing accelerators (MI300X).
_GPU_VENDORS, _GPU_CLASSES = ("0x10de", "0x1002", "0x8086"), ("0x03", "0x12")


def node(tools: Tools, sys: str = "/sys", proc: str = "/proc") -> Record:
    """Return this node's hardware, with the keys of a profile's ``NodeHardware``."""
    cores = _cores(sys)
    threads, domains, shown = set(cores.values()), _domains(sys), gpus.gpus(tools, sys)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", read_text(os.path.join(proc, "meminfo")), re.MULTILINE)
    return determined(
        {
            "sockets": len({socket for socket, _ in cores}) or None,
            "cores": len(cores) or None,
            "threads_per_core": threads.pop() if len(threads) == 1 else None,
            "numa_domains": len(domains) or None,
            "memory_total_mb": int(memory.group(1)) // 1024 if memory else None,
            "cpu": _cpu(read_text(os.path.join(proc, "cpuinfo")), tools),
            "gpus": shown,
            "affinity": _affinity(sys, domains, shown.get("count") if shown else None),
        }
    )


def _domains(sys: str) -> Dict[int, str]:
    """Return the CPUs of each NUMA domain that has any; the memory of some GPUs and processors is one without."""
    paths = glob.glob(os.path.join(sys, "devices/system/node/node[0-9]*"))
    cpus = {int(path.rpartition("node")[2]): read_word(path, "cpulist") for path in paths}
    return {number: cpus[number] for number in sorted(cpus) if cpus[number]}


def _affinity(sys: str, domains: Dict[int, str], count: Optional[int]) -> List[Record]:
    """Return what is near each NUMA domain; empty unless all ``count`` GPUs of this node are found.

    GPUs are numbered by PCI address, as drivers count them.
    """
    near = [read_word(path, "numa_node") for path in gpu_paths(sys)]
    if len(near) != count or not {*near} <= {*map(str, domains)}:
        return []
    return [
        {"numa_domain": number, "gpus": [at for at, own in enumerate(near) if own == str(number)], "cpus": cpus}
        for number, cpus in domains.items()
    ]


def gpu_paths(sys: str) -> List[str]:
    """Return the PCI devices that are GPUs of NVIDIA, AMD or Intel, as folders below ``sys``."""
    paths = sorted(glob.glob(os.path.join(sys, "bus/pci/devices/*")))
    shown = [path for path in paths if read_word(path, "class").startswith(_GPU_CLASSES)]
    return [path for path in shown if read_word(path, "vendor") in _GPU_VENDORS]


def _cores(sys: str) -> Dict[Tuple[str, ...], int]:
    """Return the number of online threads of each core, by socket and core."""
    names = ("physical_package_id", "core_id")
    paths = glob.glob(os.path.join(sys, "devices/system/cpu/cpu[0-9]*/topology"))
    cores = (tuple(read_word(path, name) for name in names) for path in paths)
    return Counter(core for core in cores if all(core))


def _cpu(text: str, tools: Tools) -> Record:
    """Return the model and instruction sets from /proc/cpuinfo; empty if the architecture does not list them."""
    model = re.search(r"^model name\s*:\s*(.{1,100})$", text, re.MULTILINE)
    flags = [set(line.split()) for line in re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)]
    name = model.group(1).strip() if model else _arm_model(text, tools)
    found: Record = {"model": name} if name else {}
    if flags:
        common = set.intersection(*flags)
        found["flags"] = [flag for flag in FLAGS if flag in common]
    return found


def _arm_model(text: str, tools: Tools) -> Optional[str]:
    """Return the name that lscpu has for an Arm processor, or else its numbers; None if it is not one."""
    numbers = re.findall(r"^CPU (implementer|part)\s*:\s*(0x[0-9a-f]{1,4})$", text, re.MULTILINE)
    if not numbers:
        return None
    answer = tools.ask(["lscpu"], environment={"LC_ALL": "C"})
    name = re.search(r"^\s*Model name:\s*(\S.{0,99})$", answer.out if answer else "", re.MULTILINE)
    known = name.group(1).strip() if name else "-"  # of a processor that is newer than lscpu
    return known if known != "-" else ", ".join(f"{field} {number}" for field, number in dict(numbers).items())
