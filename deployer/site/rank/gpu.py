"""The GPUs that a process in the container can use on this node, according to CUDA's driver alone.

The driver is called in a separate process, because an incompatible driver may crash it and a lost GPU may hang it.
Source: cuda.h (cuInit, cuDriverGetVersion, cuDeviceGetCount, cuGetErrorString).
"""

import os
import re
import sys
from typing import Optional

from deployer.contract.base.errors import DeployerError
from deployer.contract.proof.measurements import GpuMeasurement
from deployer.site.rank.observed.mapped_mpi import kernel_text
from deployer.system import process

#: The file with the version of the kernel module.
MODULE = "/proc/driver/nvidia/version"
#: Seconds; without persistence mode, each GPU takes one or two seconds to start.
_PATIENCE = 30.0

_ASK = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *words):
    code = getattr(cuda, name)(*words)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        raise SystemExit("%s: error %d, %s" % (name, code, (text.value or b"unknown").decode()))
version, count = ctypes.c_int(), ctypes.c_int()
call("cuDriverGetVersion", ctypes.byref(version))
print("version", version.value, flush=True)
call("cuInit", 0)
call("cuDeviceGetCount", ctypes.byref(count))
print("devices", count.value)
"""


def look(module: str = MODULE) -> GpuMeasurement:
    """Return what CUDA's driver reports about the GPUs of this node."""
    match = re.search(r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)", kernel_text(module))
    driver = match.group(1) if match else None
    reason: Optional[str] = None
    answer = ""
    try:
        # The environment is unchanged: CUDA_VISIBLE_DEVICES and LD_LIBRARY_PATH are part of what is tested.
        done = process.glance([sys.executable, "-I", "-S", "-c", _ASK], _PATIENCE, env=dict(os.environ))
        answer = done.stdout
        if done.returncode:
            reason = done.last_words(1) if done.stderr.strip() else "libcuda ended the process (%d)" % done.returncode
    except DeployerError as error:
        reason = "CUDA did not answer: {}".format(error.message.partition(":")[2].strip())
    version, devices = _number("version", answer), _number("devices", answer)
    if reason is None and not devices:
        reason = "CUDA sees no device"
    if reason and driver is None:
        reason += f"; the node has no NVIDIA kernel module ({module})"
    cuda = "%d.%d" % (version // 1000, version % 1000 // 10) if version else None
    return GpuMeasurement(driver, cuda, devices, reason)


def _number(word: str, answer: str) -> Optional[int]:
    number = re.search(rf"^{word} (\d+)$", answer, re.MULTILINE)
    return int(number.group(1)) if number else None
