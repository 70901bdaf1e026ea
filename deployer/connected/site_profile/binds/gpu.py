"""The GPU driver in the container: NVIDIA's compute libraries, all with the running driver's version.

AMD's and Intel's drivers are in the kernel. For images that lack the user's part of Intel's (``libze_intel_gpu.so.1``),
the site's is bound if the profile lists it. The vendor-neutral libGL and libOpenCL are not bound, because they belong
to the image. Devices need no bind, because the container sees the host's /dev. Each rank sees all GPUs of the job.
Horovod selects one by local rank.
"""

import re

from deployer.connected.site_profile.binds.system import CapturedHost, library
from deployer.connected.site_profile.profile import Driver, Fabric, NodeGpus
from deployer.contract.base.errors import Unknown
from deployer.contract.rules.hostfiles import FILE, LINK, HostFile

#: libcuda opens the others by name: the PTX and NVVM compilers, and debugger support. NCCL uses libnvidia-ml.
_COMPUTE = re.compile(r"^lib(cuda|cudadebugger|nvidia-(ml|ptxjitcompiler|nvvm|gpucomp|cfg))\.so\.[\d.]+$")
_VERSION = re.compile(r"\.so\.(\d{3,}\.[\d.]+)$")

_SMI = "nvidia-smi"
#: Names of network interfaces that are not adapters with verbs.
_INTERFACE = re.compile(r"^(e[nt]|ib|bond|team|br|hs)\w*$")

#: The variable that selects a node's GPUs, by vendor. Schedulers set it, and ranks receive it.
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}

#: How Intel's variable counts: whole GPUs, or their tiles. A site sets it for all jobs.
_HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"

#: The devices that AMD's and Intel's libraries open. NVIDIA's depend on the runtime.
_DEVICES = {"amd": ("/dev/kfd", "/dev/dri"), "intel": ("/dev/dri",)}

#: The variable that also sets the order of GPUs, by vendor. Intel's ignores the order of its words (Level Zero).
ORDER = {vendor: name for vendor, name in _VISIBLE.items() if vendor != "intel"}
#: Fabrics whose adapters NCCL cannot use through verbs: psm2's verbs carry no data, and Slingshot has no verbs.
_WITHOUT_VERBS = ("omni-path", "slingshot")


def devices(gpus: NodeGpus | None) -> tuple[str, ...]:
    """Return the devices that each node must have for its GPUs."""
    return _DEVICES.get((gpus.kind if gpus else None) or "", ())


def passed(gpus: NodeGpus) -> tuple[str, ...]:
    """Return the variables with which the scheduler assigns GPUs; all vendors' if the vendor is unknown.

    HIP_VISIBLE_DEVICES is left out: it counts among the GPUs that ROCR_VISIBLE_DEVICES has selected, so the same list
    in both would select none for most ranks.
    """
    own = (_VISIBLE[gpus.kind],) if gpus.kind else tuple(_VISIBLE.values())
    return own if gpus.kind in ("nvidia", "amd") else (*own, _HIERARCHY)


def libraries(host: CapturedHost, driver: Driver) -> list[HostFile]:
    """Return the driver's compute libraries, under their sonames, with their links.

    Those of other vendors than NVIDIA are for images without them.

    Raises:
        Unknown: libcuda's version differs from the driver's, so the facts mix two drivers.
    """
    if driver.kind != "nvidia":
        return [library(path, "the GPU driver's", name, True) for name, path in sorted(driver.libraries.items())]
    found: list[HostFile] = []
    for name in sorted(filter(_COMPUTE.match, driver.libraries)):
        path = driver.libraries[name]
        version = _VERSION.search(host.view.resolve(path) or path)
        number = version[1] if version else driver.version
        if driver.version not in (None, number):
            if name == "libcuda.so.1":
                text = f"{path} belongs to driver {number}, but the profile's driver is {driver.version}"
                raise Unknown(text, "capture the node again: `python3 deployer.pyz capture --node`")
            continue  # a leftover from another driver, which libcuda rejects
        found.append(library(path, "the GPU driver's", name))
        full = f"{name.partition('.so')[0]}.so.{number}"
        if full != name and number:
            found.append(HostFile(f"lib/{full}", LINK, name, "its name with the driver's version"))
        if name == "libcuda.so.1":
            found.append(HostFile("lib/libcuda.so", LINK, name, "the name that some programs open"))
    if driver.smi:
        found.append(HostFile(f"bin/{_SMI}", FILE, driver.smi, "the GPU driver's"))
    return found


def environment(fabric: Fabric) -> dict[str, str]:
    """Return the variables that select NCCL's network, from the devices in the profile."""
    interfaces = list(filter(_INTERFACE.match, fabric.devices))
    adapters = [name for name in fabric.devices if name not in interfaces]
    if adapters and fabric.kind not in _WITHOUT_VERBS:
        return {"NCCL_IB_HCA": "=" + ",".join(adapters)}
    sockets = {"NCCL_SOCKET_IFNAME": "=" + ",".join(interfaces)} if interfaces else {}
    return {"NCCL_IB_DISABLE": "1", **sockets} if fabric.devices else {}
