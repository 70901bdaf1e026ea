"""Rules of GPUs: that CUDA's run time, which the image brings, finds a driver that is new enough and a GPU that it
still knows.

Sources: NVIDIA, CUDA Compatibility ("Minor Version Compatibility": the oldest driver of each major release); CUDA
release notes (architectures that a release takes out).
"""

import posixpath
import re
from collections.abc import Iterator, Sequence

from deployer.connected.check.rules.case import CAPTURE, MISSING_FACTS, Case
from deployer.connected.linker import fatbin
from deployer.contract.findings import ERROR, WARNING, Finding

#: By major release of CUDA: the oldest driver, and the lowest compute capability.
_FLOORS = {10: ((410, 48), (3, 0)), 11: ((450, 80), (3, 5)), 12: ((525, 60), (5, 0)), 13: ((580, 65), (7, 5))}
#: Libraries of frameworks, without which nothing is computed on a GPU.
_FRAMEWORK = re.compile(
    r"^(libtorch_cuda\w*|libtensorflow_cc|libtensorflow_framework|_pywrap_tensorflow_internal|xla_extension|"
    r"xla_cuda_plugin|libmxnet|libonnxruntime_providers_cuda)\.so"
)
#: What comes with CUDA, cuDNN and NCCL.
_NVIDIA = re.compile(r"^lib(cu(da|blas|dnn|fft|rand|solver|sparse|pti|inj|file|tensor|tlass)|np|nv|nccl)\w*[.-]")
_CUDART = re.compile(r"^libcudart\.so\.(\d+)")


def usable(case: Case) -> Iterator[Finding]:
    """gpu.none, gpu.driver, gpu.capability, facts.gpu: CUDA is in the image, and the nodes cannot serve it."""
    found = cuda(case)
    if found is None:
        return
    path, release = found
    node, driver, partition = case.partition.node, case.partition.driver, case.plan.partition
    gpus = node.gpus if node else None
    if gpus is None and driver is None:
        yield Finding(
            "gpu.none",
            WARNING,
            partition,
            f"the image has CUDA {release} ({path}), but the profile lists no GPU there: it runs on CPUs",
            "choose a partition with GPUs, or an image without CUDA, which is smaller",
        )
        return
    floor, lowest = _FLOORS.get(release, ((0, 0), (0, 0)))
    has = _pair(driver.version) if driver and driver.version else None
    if has is None:
        text = f"the GPU driver is unknown, and the image's CUDA {release} needs {floor[0]} or newer"
        yield Finding("facts.gpu", MISSING_FACTS, partition, text, CAPTURE)
    elif has < floor:
        yield Finding(
            "gpu.driver",
            ERROR,
            partition,
            f"its driver is {driver.version if driver else ''}, and CUDA {release} ({path}) needs {_dotted(floor)} "
            "or newer",
            "build the image with an older CUDA: only the site can update the driver",
        )
    capability = _pair(gpus.capability) if gpus and gpus.capability else None
    if capability and capability < lowest:
        yield Finding(
            "gpu.capability",
            ERROR,
            partition,
            f"its GPUs have compute capability {_dotted(capability)}, and CUDA {release} starts at {_dotted(lowest)}: "
            "frameworks ignore such a GPU and use CPUs",
            "build the image with an older CUDA",
        )


def kernels(case: Case) -> Iterator[Finding]:
    """gpu.kernels, facts.gpu: the bundle's own kernels are for other GPUs than the nodes'.

    An error where nothing could be computed: of a framework's library, of what a job's program maps, or of all files.
    Other files may never be used. NVIDIA's own libraries come with CUDA, whose floor is ``gpu.capability``.
    """
    gpus, partition = case.partition.node.gpus if case.partition.node else None, case.plan.partition
    found = {
        target + path: entry.kernels
        for target, index in [("", case.image), *((overlay.target, overlay.files) for overlay in case.overlays)]
        for path, entry in index.entries.items()
        if entry.kernels and not _NVIDIA.match(posixpath.basename(path))
    }
    if gpus is None or not found:
        return
    capability = _pair(gpus.capability) if gpus.capability else None
    if capability is None:
        path, has = next(iter(found.items()))
        text = f"the compute capability of its GPUs is unknown, and {path} has kernels for {_shown(has)}"
        yield Finding("facts.gpu", MISSING_FACTS, partition, text, CAPTURE)
        return
    unserved = {path: has for path, has in found.items() if not fatbin.serve(has, capability)}
    mapped = {each.path for process in case.processes for each in process.loader.objects}
    for path, has in unserved.items():
        needed = path in mapped or _FRAMEWORK.match(posixpath.basename(path)) or len(unserved) == len(found)
        yield Finding(
            "gpu.kernels",
            ERROR if needed else WARNING,
            path,
            f"its kernels are for {_shown(has)}, and the GPUs of {partition} have compute capability "
            f"{_dotted(capability)}: no kernel image is available for execution on them",
            f"choose a partition with newer GPUs, or a build that has kernels or PTX for {_dotted(capability)}",
        )


def _shown(found: Sequence[str]) -> str:
    return ", ".join(found)


def cuda(case: Case) -> tuple[str, int] | None:
    """Return the run time of CUDA that the bundle brings: its path, and its major release."""
    for index in (*(overlay.files for overlay in case.overlays), case.image):
        for path in index.entries:
            match = _CUDART.match(path.rpartition("/")[2])
            if match:
                return path, int(match[1])
    return None


def _pair(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d{1,6})(?:\.(\d{1,6}))?", text)
    return (int(match[1]), int(match[2] or 0)) if match else None


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]:02}" if pair[0] > 99 else f"{pair[0]}.{pair[1]}"
