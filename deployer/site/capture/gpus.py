"""The GPUs of a node and their driver: NVIDIA's from nvidia-smi, AMD's and Intel's as their kernel drivers list them.

Only the product's name comes from a program of these vendors, if there is one. Sources: Linux, amdgpu (driver-misc.rst,
``mem_info_vram_total``) and kfd_topology.c (``gfx_target_version``); amd-smi, rocm-smi and xpu-smi as public reports
show their output.
"""

import glob
import os
import re
import shutil
from typing import Iterator, List, NamedTuple, Optional

from deployer.contract.base.json_records import Record
from deployer.site.capture.software.libraries import Libraries
from deployer.site.capture.tools import Tools, determined, read_text, read_word

_FIELDS = ("name,memory.total,compute_cap", "name,memory.total")
#: The compute libraries of NVIDIA's driver; the vendor-neutral libGL and libOpenCL do not belong to the driver.
_NVIDIA = ("libcuda.so.1", "libcudadebugger.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1",
           "libnvidia-nvvm.so.4", "libnvidia-cfg.so.1")  # fmt: skip
#: The user's part of Intel's driver, and Level Zero's loader, for images that lack them.
_INTEL_LIBRARIES = ("libze_loader.so.1", "libze_intel_gpu.so.1")
_GPUCOMP = re.compile(r"^libnvidia-gpucomp\.so\.[\d.]+$")
#: By vendor: its kernel drivers, and its programs that print the names of products.
_MODULES = {"amd": ("amdgpu",), "intel": ("xe", "i915")}
_NAMES = {
    "amd": (["amd-smi", "static", "--asic"], ["rocm-smi", "--showproductname"]),
    "intel": (["xpu-smi", "discovery"],),
}
_NAME = re.compile(r"(?:MARKET_NAME|Card [Ss]eries|Device Name):\s*(\S.{0,99}?)[\s|]*$", re.MULTILINE)
_KFD = "class/kfd/kfd/topology/nodes/*/properties"
#: PCI's numbers for Intel, and for a display controller, as its data center GPUs are; graphics in a processor are 0x03.
_INTEL, _DISPLAY = "0x8086", "0x0380"


class KernelGpu(NamedTuple):
    """A GPU that a kernel driver lists.

    Attributes:
        render: the name of its device below /dev/dri.
        target: AMD's name of its architecture, or None.
    """

    render: str
    target: Optional[str] = None


def listed(kind: str, sys: str = "/sys") -> List[KernelGpu]:
    """Return the GPUs of AMD or Intel that their drivers list."""
    return list(_of_amd(sys) if kind == "amd" else _of_intel(sys))


def driver_version(kind: str, sys: str = "/sys") -> Optional[str]:
    """Return the version of AMD's or Intel's kernel driver; None if it is part of the kernel, or not loaded."""
    texts = (read_word(sys, "module", name, "version") for name in _MODULES[kind])
    return next(filter(None, texts), None)


def _of_amd(sys: str) -> Iterator[KernelGpu]:
    for path in sorted(glob.glob(os.path.join(glob.escape(sys), _KFD))):
        facts = dict(re.findall(r"^(gfx_target_version|drm_render_minor) (\d{1,9})$", read_text(path), re.MULTILINE))
        version = int(facts.get("gfx_target_version", 0))
        if version:  # 0: a processor; 90010: 9.0.10
            target = "gfx%d%x%x" % (version // 10000, version // 100 % 100, version % 100)
            yield KernelGpu("renderD" + facts.get("drm_render_minor", ""), target)


def _of_intel(sys: str) -> Iterator[KernelGpu]:
    for folder in sorted(glob.glob(os.path.join(glob.escape(sys), "class/drm/renderD*"))):
        vendor, kind = (read_word(folder, "device", name) for name in ("vendor", "class"))
        if vendor == _INTEL and kind.startswith(_DISPLAY):
            yield KernelGpu(os.path.basename(folder))


def gpus(tools: Tools, sys: str = "/sys") -> Optional[Record]:
    """Return the GPUs of this node, with the keys of a profile's ``NodeGpus``; None if it has none."""
    found = _nvidia(tools)
    for kind in () if found else _MODULES:
        own = listed(kind, sys)
        if own:
            size = read_word(sys, "class/drm", own[0].render, "device/mem_info_vram_total")
            names = (tools.ask(argv) for argv in _NAMES[kind] if shutil.which(argv[0]))
            models = (_NAME.search(answer.out) for answer in names if answer)
            targets = {each.target for each in own}
            if len(targets) > 1:
                tools.note("the node's GPUs differ: {}".format("; ".join(sorted(filter(None, targets)))))
            return determined(
                {
                    "kind": kind,
                    "model": next((match.group(1) for match in models if match), None),
                    "count": len(own),
                    "memory_mb": int(size) // 1048576 if size.isdigit() else None,
                    "target": targets.pop() if len(targets) == 1 else None,
                }
            )
    return found


def _nvidia(tools: Tools) -> Optional[Record]:
    for fields in _FIELDS:  # drivers before 510 do not know compute_cap
        answer = tools.ask(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"], any_status=True)
        if answer is None:
            return None
        if answer.status == 0:
            return _parse(answer.out, tools)
    return None


def _parse(text: str, tools: Tools) -> Optional[Record]:
    rows = [[word.strip() for word in line.split(",")] for line in text.splitlines() if line.strip()]
    if not rows or any(len(row) not in (2, 3) or not row[1].isdigit() for row in rows):
        tools.note(f"nvidia-smi: no list of GPUs: {text[:100]}")
        return None
    if len({tuple(row) for row in rows}) > 1:
        tools.note("the node's GPUs differ: {}".format("; ".join(sorted({row[0] for row in rows}))))
        return {"kind": "nvidia", "count": len(rows)}
    capability = dict(zip(["capability"], rows[0][2:]))
    return {"kind": "nvidia", "model": rows[0][0], "count": len(rows), "memory_mb": int(rows[0][1]), **capability}


def driver(tools: Tools, libraries: Libraries, sys: str = "/sys") -> Optional[Record]:
    """Return a profile's ``driver``; None if the machine has none."""
    known = libraries.system([*_NVIDIA, *filter(_GPUCOMP.match, libraries.cached)])
    version = None
    answer = tools.ask(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], any_status=True)
    match = re.match(r"^(\d+\.[\d.]+)\s", answer.out) if answer and answer.status == 0 else None
    if match:
        version = match.group(1)
    elif "libcuda.so.1" in known:
        named = re.search(r"\.so\.(\d+\.[\d.]+)$", os.path.realpath(known["libcuda.so.1"]))
        version = named.group(1) if named else None
    if known or version:
        smi = shutil.which("nvidia-smi")
        return {"kind": "nvidia", "libraries": known, **determined({"version": version, "smi": smi})}
    kind = next((kind for kind in _MODULES if listed(kind, sys)), None)
    if kind is None:
        return None
    own = libraries.system(_INTEL_LIBRARIES) if kind == "intel" else {}
    return {"kind": kind, **determined({"version": driver_version(kind, sys), "libraries": own})}
