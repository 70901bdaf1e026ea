"""The GPUs that a process in the container can use on this node, according to their devices and the vendor's library.

The library is called in a separate process, because an incompatible driver may crash it and a lost GPU may hang it.
AMD's and Intel's libraries are the image's. If the loader does not find them, because they are in the folder of a
package, only the devices are opened.

Sources: cuda.h (cuInit, cuDriverGetVersion, cuDeviceGetCount, cuGetErrorString); hip_runtime_api.h (the same
functions); ze_api.h (zeInit, zeDriverGet, zeDeviceGet).
"""

import os
import re
import sys
from typing import NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base.errors import DeployerError
from deployer.contract.proof.measurements import AMD_GPU, GPU, INTEL_GPU, GpuMeasurement
from deployer.site.capture import gpus
from deployer.site.capture.tools import refused
from deployer.site.rank.observed.mapped_mpi import kernel_text
from deployer.system import process

#: The file with the version of NVIDIA's kernel module.
MODULE = "/proc/driver/nvidia/version"
#: Seconds; without persistence mode, each GPU takes one or two seconds to start.
_PATIENCE = 30.0

_CALL = """
import ctypes, sys
for name in sys.argv[1:]:
    try:
        library = ctypes.CDLL(name)
        break
    except OSError as error:
        lost = error
else:
    raise lost
def call(name, *words):
    code = getattr(library, name)(*words)
    if code:
        text = ctypes.c_char_p()
        if name.startswith("cu"):
            library.cuGetErrorString(code, ctypes.byref(text))
        elif name.startswith("hip"):
            library.hipGetErrorString.restype = ctypes.c_char_p
            text.value = library.hipGetErrorString(code)
        raise SystemExit("%s: error %d, %s" % (name, code, (text.value or b"unknown").decode()))
version, count = ctypes.c_int(), ctypes.c_int()
"""
_COUNT = """
call("{0}DriverGetVersion", ctypes.byref(version))
print("version", version.value, flush=True)
call("{0}Init", 0)
call("{0}{1}", ctypes.byref(count))
print("devices", count.value)
"""
_COUNT_ZE = """
call("zeInit", 0)
call("zeDriverGet", ctypes.byref(count), None)
drivers, devices = (ctypes.c_void_p * count.value)(), 0
call("zeDriverGet", ctypes.byref(count), drivers)
for driver in drivers:
    count = ctypes.c_int()
    call("zeDeviceGet", ctypes.c_void_p(driver), ctypes.byref(count), None)
    devices += count.value
print("devices", devices)
"""


class _Vendor(NamedTuple):
    """How to ask about a vendor's GPUs: its name, the library's title and file names, and what to run with it."""

    kind: str
    name: str
    title: str
    files: Sequence[str]
    script: str


_HIP = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")
_VENDORS = {
    GPU: _Vendor("nvidia", "NVIDIA", "CUDA", ["libcuda.so.1"], _CALL + _COUNT.format("cu", "DeviceGetCount")),
    AMD_GPU: _Vendor("amd", "AMD", "HIP", _HIP, _CALL + _COUNT.format("hip", "GetDeviceCount")),
    INTEL_GPU: _Vendor("intel", "Intel", "Level Zero", ["libze_loader.so.1"], _CALL + _COUNT_ZE),
}


def look(expected: str = GPU, module: str = MODULE, sys_folder: str = "/sys", dev: str = "/dev") -> GpuMeasurement:
    """Return what the kernel and the vendor's library report about the GPUs of this node; ``expected``: whose."""
    vendor = _VENDORS[expected]
    if expected == GPU:
        match = re.search(r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)", kernel_text(module))
        driver = match.group(1) if match else None
        version, devices, reason = _ask(vendor)
        if reason and driver is None:
            reason += f"; the node has no NVIDIA kernel module ({module})"
        cuda = "%d.%d" % (version // 1000, version % 1000 // 10) if version else None
        return GpuMeasurement(driver, cuda, devices, reason)
    devices, reason = _opened(vendor, sys_folder, dev)
    if reason is None:
        _, seen, reason = _ask(vendor)
        if reason and "cannot open shared object file" in reason:
            reason = None  # it is in the folder of a package
        else:
            devices = seen
    return GpuMeasurement(gpus.driver_version(vendor.kind, sys_folder), None, devices, reason)


def _ask(vendor: _Vendor) -> Tuple[Optional[int], Optional[int], Optional[str]]:
    """Return the version and the number of devices according to the library, and why they cannot be used."""
    reason: Optional[str] = None
    answer = ""
    try:
        # The environment is unchanged: the variables that select GPUs and LD_LIBRARY_PATH are part of what is tested.
        argv = [sys.executable, "-I", "-S", "-c", vendor.script, *vendor.files]
        done = process.glance(argv, _PATIENCE, env=dict(os.environ))
        answer = done.stdout
        if done.returncode:
            ended = "%s ended the process (%d)" % (vendor.files[0].partition(".")[0], done.returncode)
            reason = done.last_words(1) if done.stderr.strip() else ended
    except DeployerError as error:
        reason = "{} did not answer: {}".format(vendor.title, error.message.partition(":")[2].strip())
    version, devices = _number("version", answer), _number("devices", answer)
    return version, devices, reason or (None if devices else f"{vendor.title} sees no device")


def _opened(vendor: _Vendor, sys_folder: str, dev: str) -> Tuple[Optional[int], Optional[str]]:
    """Return the number of a vendor's devices that this process can open, and why it can use none."""
    listed = gpus.listed(vendor.kind, sys_folder)
    if not listed:
        return 0, f"the node's kernel lists no GPU of {vendor.name}"
    own = [refused(os.path.join(dev, "dri", each.render)) for each in listed]
    shared = refused(os.path.join(dev, "kfd")) if vendor.kind == "amd" else None
    return own.count(None), shared or (None if None in own else own[0])


def _number(word: str, answer: str) -> Optional[int]:
    number = re.search(rf"^{word} (\d+)$", answer, re.MULTILINE)
    return int(number.group(1)) if number else None
