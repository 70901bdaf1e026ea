"""Rules for GPUs: that the nodes have enough GPUs of the right vendor, and that the image's libraries work there.

The CUDA runtime needs a driver that is new enough and a GPU that it still supports. ROCm is tested with the kernel
drivers of a few releases before and after it. All of Intel's driver but the kernel's part is in the image.

Sources: NVIDIA, CUDA Compatibility ("Minor Version Compatibility": the oldest driver for each major release); CUDA
release notes (architectures that a release removes; the driver of each release); PTX ISA, "Release Notes" (the release
that introduced each version of PTX). AMD, "User and kernel-space support matrix" of ROCm 6.3, and of the driver
30.30 (amdgpu-docs); pairs of driver and release as ``amd-smi`` printed them in public reports.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from deployer.connected.check.rules.case import CAPTURE, MISSING_FACTS, Case
from deployer.connected.linker.code import fatbin, offload_bundles
from deployer.connected.site_profile.plan import gpus_per_node
from deployer.contract.base.text import counted
from deployer.contract.rules.findings import ERROR, WARNING, Finding

#: For each major release of CUDA: the oldest driver and the lowest compute capability.
_FLOORS = {10: ((410, 48), (3, 0)), 11: ((450, 80), (3, 5)), 12: ((525, 60), (5, 0)), 13: ((580, 65), (7, 5))}
#: For each version of PTX: the first CUDA release that writes it, and the driver of that release. Older drivers cannot
#: compile it, not even drivers of the same major release.
_PTX = {
    (6, 3): ("10.0", (410, 48)), (6, 4): ("10.1", (418, 39)), (6, 5): ("10.2", (440, 33)),
    (7, 0): ("11.0", (450, 36)), (7, 1): ("11.1", (455, 23)), (7, 2): ("11.2", (460, 27)), (7, 3): ("11.3", (465, 19)),
    (7, 4): ("11.4", (470, 42)), (7, 5): ("11.5", (495, 29)), (7, 6): ("11.6", (510, 39)), (7, 7): ("11.7", (515, 43)),
    (7, 8): ("11.8", (520, 61)), (8, 0): ("12.0", (525, 60)), (8, 1): ("12.1", (530, 30)), (8, 2): ("12.2", (535, 54)),
    (8, 3): ("12.3", (545, 23)), (8, 4): ("12.4", (550, 54)), (8, 5): ("12.5", (555, 42)), (8, 6): ("12.7", (565, 57)),
    (8, 7): ("12.8", (570, 26)), (8, 8): ("12.9", (575, 51)), (9, 0): ("13.0", (580, 65)),
}  # fmt: skip
#: NCCL, AMD's RCCL, and the libraries that all of cuDNN needs. Their oldest GPU changes within a major release of CUDA.
_NCCL_CUDNN = re.compile(r"^lib(nccl|rccl|cudnn(_ops(_infer)?)?)\.so")
#: Libraries without which a framework, or its communication between GPUs, does not work on a GPU; and rocBLAS's folder.
_FRAMEWORK = re.compile(
    r"^(libtorch_(cuda|hip)\w*|libtensorflow_cc|libtensorflow_framework|_pywrap_tensorflow_internal|xla_extension|"
    r"xla_(cuda|rocm)_plugin|libmxnet|libonnxruntime_providers_(cuda|rocm)|mpi_lib(_v2)?(\.cpython-\w+(-\w+)*)?)\.so"
    rf"|{_NCCL_CUDNN.pattern}|^rocblas$"
)
#: Libraries that come with CUDA, cuDNN and NCCL. Some also have kernels in other forms (cuFFT), or intentionally
#: support few GPUs (cuSPARSELt).
_NVIDIA = re.compile(r"^lib(cu(da|blas|dnn|fft|rand|solver|sparse|pti|inj|file|tensor|tlass)|np|nv|nccl)\w*[.-]")
#: The same of ROCm. Its rocBLAS and hipBLASLt have their kernels in a folder, in files for one processor each.
_ROCM = re.compile(r"^lib(roc|hip|MIOpen|amd|composable|rpp)\w*[.-]")
_FOLDERS = re.compile(r"^(.*/(?:rocblas|hipblaslt))(?:/[\d.]+)?/library/(?:.*[/_-])?(gfx[0-9a-f]{3,5})\b")
_CUDART = re.compile(r"^libcudart\.so\.(\d+)")
#: The name by which a library is loaded. Packages append the rest of the version (libnccl.so.2.20.5); wheels do not.
_SONAME = re.compile(r".+?\.so(\.\d+)?(?=\.|$)")
_UNKNOWN = ((0, 0), (0, 0))
#: Kinds of GPUs to which the rules for CUDA apply.
_NVIDIA_OR_UNKNOWN = ("nvidia", None)
#: For each vendor: its name, and that of its platform.
_TITLES = {"nvidia": ("NVIDIA", "NVIDIA CUDA"), "amd": ("AMD", "AMD ROCm"), "intel": ("Intel", "Intel SYCL")}
#: For each vendor: libraries of programs for its GPUs. libze_loader and ROCm's SMI are left out, because hwloc's
#: plug-ins bring them in.
_VENDORS = re.compile(
    r"^(?:(?P<nvidia>libcudart|libtorch_cuda|xla_cuda_plugin)"
    r"|(?P<amd>libamdhip64|libhsa-runtime64|librocblas|librccl|libtorch_hip|xla_rocm_plugin)"
    r"|(?P<intel>libsycl|libpi_level_zero|libur_adapter_level_zero|libitex_gpu_xetla|libtorch_xpu))\.so"
)
#: UCX's plug-in for ROCm, and what it brings in (Debian 13): beside it, these do not show what the image is for.
_UCX_FOR_ROCM, _BROUGHT_IN = "/libuct_rocm.so", re.compile(r"/lib(amdhip64|hsa-runtime64)\.so[^/]*$")
_FRAMEWORKS, _OTHERWISE = (("libtorch_", "PyTorch"), ("xla_", "JAX"), ("libitex_", "TensorFlow")), "software"
#: What SYCL opens to find Intel's GPUs: the loader of Level Zero, and the user's part of the driver.
_LEVEL_ZERO = ("libze_loader.so.1", "libze_intel_gpu.so.1")
#: ROCm's releases, and for each version of the kernel module the oldest and newest that were tested with it. Where the
#: matrix ends, two releases after the driver's own.
_ROCM_RELEASES = ("5.3", "5.4", "5.5", "5.6", "5.7", "6.0", "6.1", "6.2", "6.3", "6.4", "7.0", "7.1", "7.2")
_ROCM_SPANS = {
    (6, 0): ("5.3", "5.7"), (6, 1): ("5.4", "6.0"), (6, 2): ("5.5", "6.1"), (6, 3): ("5.6", "6.2"),
    (6, 7): ("5.7", "6.3"), (6, 8): ("6.0", "6.4"), (6, 10): ("6.1", "7.0"), (6, 12): ("6.2", "7.1"),
    (6, 14): ("6.3", "7.2"), (6, 16): ("6.3", "7.2"),
}  # fmt: skip
_ROCM_RELEASE = re.compile(r"/rocm-(\d+\.\d+)|/libamdhip64\.so\.(\d+\.\d+)\.|\+rocm(\d+\.\d+)[\w.]*\.dist-info/")


def requested(case: Case) -> Iterator[Finding]:
    """gpu.none, gpu.count, facts.gpu: a job requests GPUs for each rank, but a node has none or too few."""
    there = gpus_per_node(case.partition)
    for job in case.manifest.jobs:
        if not job.gpus:
            continue
        lacking = job.lacks_gpus(there)
        subject = f"job {job.name}"
        if there is None:
            text = f"it needs {counted(job.gpus, 'GPU')} per rank, and the GPUs of {case.plan.partition} are unknown"
            yield Finding("facts.gpu", MISSING_FACTS, subject, text, CAPTURE, job.name)
        elif lacking:
            text = f"{lacking} of {case.plan.partition}"
            remedy = (
                "choose a partition with more GPUs per node, or fewer ranks per node (--ranks-per-node)"
                if there
                else "choose a partition with GPUs, or use --gpus 0; if it has GPUs, add node.gpus to the profile"
            )
            yield Finding("gpu.count" if there else "gpu.none", ERROR, subject, text, remedy, job.name)


def vendor(case: Case) -> Iterator[Finding]:
    """gpu.vendor: the image's GPU libraries are only for GPUs of other vendors."""
    kind, vendors = _kind(case), _vendors(case)
    if kind is None or not vendors or kind in vendors:
        return
    platforms = " and ".join(_TITLES[name][1] for name in vendors)
    path = next(iter(vendors.values()))
    text = f"this bundle's {_framework(path)} is built for {platforms} ({path}); the GPUs of {case.plan.partition} are "
    text += _model(case)
    makers = " or ".join(_TITLES[name][0] for name in vendors)
    remedy = f"choose a partition with GPUs of {makers}, or build the image for {_TITLES[kind][1]}"
    asking = [job for job in case.manifest.jobs if job.gpus]
    for job in asking:
        yield Finding("gpu.vendor", ERROR, f"job {job.name}", text, remedy, job.name)
    if len(asking) < max(len(case.manifest.jobs), 1):
        yield Finding("gpu.vendor", WARNING, case.plan.partition, f"{text}: it runs on CPUs", remedy)


def _vendors(case: Case) -> dict[str, str]:
    """Return the vendors whose GPU libraries are in the bundle, each with a file, of a framework if it has one."""
    vendors: dict[str, str] = {}
    for path in _files(case):
        match = _VENDORS.match(posixpath.basename(path))
        if match and match.lastgroup and (match.lastgroup not in vendors or _framework(path) != _OTHERWISE):
            vendors[match.lastgroup] = path
    return vendors


def _files(case: Case) -> list[str]:
    """Return the paths of the bundle's files, without what UCX brings in."""
    paths = case.paths
    has_ucx = any(_UCX_FOR_ROCM in path for path in paths)
    return [path for path in paths if not (has_ucx and _BROUGHT_IN.search(path))]


def _framework(path: str) -> str:
    name = posixpath.basename(path)
    return next((title for start, title in _FRAMEWORKS if name.startswith(start)), _OTHERWISE)


def _model(case: Case) -> str:
    """Return the vendor and, if known, the model of the nodes' GPUs: ``AMD Instinct MI250X``."""
    title, model = _TITLES[_kind(case) or "nvidia"][0], (case.gpus.model if case.gpus else None) or ""
    return model if model.startswith(title) else f"{title} {model}".strip()


def _kind(case: Case) -> str | None:
    """Return the vendor of the nodes' GPUs; None if it is unknown."""
    driver = case.partition.driver
    return (case.gpus.kind if case.gpus else None) or (driver.kind if driver else None)


def _capability(case: Case) -> tuple[int, int] | None:
    return _pair(case.gpus.capability) if case.gpus and case.gpus.capability else None


def _driver(case: Case) -> tuple[tuple[int, int] | None, str]:
    """Return the driver's version, to compare and to show; None if it is unknown."""
    version = (case.partition.driver.version if case.partition.driver else None) or ""
    return _pair(version), version


def usable(case: Case) -> Iterator[Finding]:
    """gpu.none, gpu.driver, gpu.capability, facts.gpu: the image is for GPUs, but the nodes do not support it."""
    partition = case.plan.partition
    if case.gpus is None and case.partition.driver is None:
        # If a job requests GPUs, `requested` reports an error.
        for name, path in {} if any(job.gpus for job in case.manifest.jobs) else _vendors(case).items():
            platform = _TITLES[name][1]
            text = f"the image has {platform} ({path}), but the profile lists no GPU there: it runs on CPUs"
            remedy = f"choose a partition with GPUs, or an image without {platform}, which is smaller"
            yield Finding("gpu.none", WARNING, partition, text, remedy)
        return
    yield from _OF_VENDOR[_kind(case) or "nvidia"](case)


def _usable_cuda(case: Case) -> Iterator[Finding]:
    runtimes, partition = _cuda(case), case.plan.partition
    if not runtimes:
        return
    path, release = max(runtimes, key=lambda runtime: runtime[1])
    floor, _ = _FLOORS.get(release, _UNKNOWN)
    driver, version = _driver(case)
    if driver is None:
        text = f"the GPU driver is unknown, and the image's CUDA {release} needs {floor[0]} or newer"
        yield Finding("facts.gpu", MISSING_FACTS, partition, text, CAPTURE)
    elif driver < floor:
        text = f"its driver is {version}, and CUDA {release} ({path}) needs {_dotted(floor)} or newer"
        remedy = "build the image with an older CUDA: only the site can update the driver"
        yield Finding("gpu.driver", ERROR, partition, text, remedy)
    capability = _capability(case)
    release = min(number for _, number in runtimes)
    _, lowest = _FLOORS.get(release, _UNKNOWN)
    if capability and capability < lowest:
        text = (
            f"its GPUs have compute capability {_dotted(capability)}, and CUDA {release} starts at {_dotted(lowest)}: "
            "frameworks ignore such a GPU and use CPUs"
        )
        yield Finding("gpu.capability", ERROR, partition, text, "build the image with an older CUDA")


def _usable_rocm(case: Case) -> Iterator[Finding]:
    """Yield a warning if AMD tested the kernel's driver with other releases of ROCm than the image's."""
    driver, version = _driver(case)
    oldest, newest = _ROCM_SPANS.get(driver or (0, 0), ("", ""))
    matches = ((path, match) for path in _files(case) if (match := _ROCM_RELEASE.search(path)))
    releases = {next(filter(None, match.groups())): path for path, match in matches}
    for release, path in releases.items() if oldest else ():
        known = _ROCM_RELEASES.index(release) if release in _ROCM_RELEASES else None
        if known is not None and not _ROCM_RELEASES.index(oldest) <= known <= _ROCM_RELEASES.index(newest):
            text = f"its driver (amdgpu) is {version}, which AMD tested with ROCm {oldest} to {newest}; the image has "
            remedy = f"build the image with ROCm {oldest} to {newest}: only the site can update the driver"
            yield Finding("gpu.driver", WARNING, case.plan.partition, f"{text}ROCm {release} ({path})", remedy)


def _usable_level_zero(case: Case) -> Iterator[Finding]:
    path = _vendors(case).get("intel")
    names = case.names
    lacking = [name for name in _LEVEL_ZERO if name not in names]
    if path and lacking:
        text = f"the image has SYCL ({path}), but not {' and '.join(lacking)}, with which it finds Intel's GPUs"
        remedy = "add Level Zero and the user's part of Intel's driver to the image (Debian: libze1, "
        remedy += "libze-intel-gpu1), or capture a node that has them"
        yield Finding("gpu.driver", ERROR, case.plan.partition, text, remedy)


_OF_VENDOR: dict[str, Callable[[Case], Iterator[Finding]]] = {
    "nvidia": _usable_cuda, "amd": _usable_rocm, "intel": _usable_level_zero,
}  # fmt: skip


def kernels(case: Case) -> Iterator[Finding]:
    """gpu.kernels, facts.gpu: the bundle's own kernels do not support the nodes' GPUs.

    It is an error if no computation is possible. This is the case for a framework's library, NCCL or cuDNN, for a file
    that a job's program maps, or if all files are affected. Other files, and second copies of a library, may never be
    used. The rest of NVIDIA's libraries comes with CUDA, whose minimum ``gpu.capability`` checks.
    """
    partition, kind, capability = case.plan.partition, _kind(case), _capability(case)
    targets = _kernels(case, kind)
    if case.gpus is None or not targets:
        return
    if kind == "amd":
        gpu, fact, consequence = case.gpus.target, "architecture (gfx)", "HIP finds no code object for them"
        wanted = f"choose a partition with other GPUs, or a build that has kernels for {gpu}"
        unserved = {path: has for path, has in targets.items() if not offload_bundles.serve(has, gpu or "")}
        they_are = f"are {gpu} ({_model(case)})"
    else:
        gpu = _dotted(capability) if capability else None
        fact, consequence = "compute capability", "no kernel image is available for execution on them"
        wanted = f"choose a partition with newer GPUs, or a build that has kernels or PTX for {gpu}"
        unserved = {path: has for path, has in targets.items() if not (capability and fatbin.serve(has, capability))}
        they_are = f"have compute capability {gpu}"
    if gpu is None:
        path, has = next(iter(targets.items()))
        text = f"the {fact} of its GPUs is unknown, and {path} has kernels for {_shown(has)}"
        yield Finding("facts.gpu", MISSING_FACTS, partition, text, CAPTURE)
        return
    served = {_soname(path) for path in targets if path not in unserved}
    nothing = all(map(_NCCL_CUDNN.match, served))
    mapped = _mapped(case)
    for path, has in unserved.items():
        needed = _is_needed(path, mapped, served)
        text = f"its kernels are for {_shown(has)}, and the GPUs of {partition} {they_are}: {consequence}"
        yield Finding("gpu.kernels", ERROR if needed or nothing else WARNING, path, text, wanted)


def toolkit(case: Case) -> Iterator[Finding]:
    """gpu.driver: kernels were compiled with a CUDA release that is too new for the driver.

    The CUDA runtime may be linked into the file itself, which then needs a driver for that major release. If a GPU can
    only use PTX, the driver must be at least as new as the one of that CUDA release.
    """
    capability, (driver, version) = _capability(case), _driver(case)
    if driver is None or _kind(case) not in _NVIDIA_OR_UNKNOWN:
        return
    mapped = _mapped(case)
    usable, refused = set(), []
    for path, targets in _kernels(case, None).items():
        release, own = _PTX.get(fatbin.ptx_version(targets) or (0, 0), ("", (0, 0)))
        floor, _ = _FLOORS.get(int(release.partition(".")[0] or 0), _UNKNOWN)
        why = f"CUDA {release} compiled it"
        serves = capability is None or fatbin.serve(targets, capability)
        if serves and capability and not fatbin.serve(fatbin.machine_code(targets), capability):
            floor, why = max(floor, own), f"it has only PTX of CUDA {release} for {_dotted(capability)}"
        if driver < floor:
            refused.append((path, why, floor))
        elif serves:
            usable.add(_soname(path))
    for path, why, floor in refused:
        severity = ERROR if _is_needed(path, mapped, usable) else WARNING
        text = f"{why}, which needs driver {_dotted(floor)} or newer, and {case.plan.partition} has {version}"
        remedy = "build it with an older CUDA, or with machine code for these GPUs: only the site can update the driver"
        yield Finding("gpu.driver", severity, path, text, remedy)


def _shown(kernels: Sequence[str]) -> str:
    return ", ".join(fatbin.architectures(kernels))


def _kernels(case: Case, kind: str | None) -> dict[str, Sequence[str]]:
    """Return the kernel targets of the bundle's files for a vendor's GPUs, by path in the job.

    Of NVIDIA's own libraries, only NCCL and cuDNN are included; of AMD's, RCCL and the folders of rocBLAS and
    hipBLASLt.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for target, files in case.layers:
        for path, entry in files.entries.items():
            name = posixpath.basename(path)
            folder = _FOLDERS.match(path) if kind == "amd" else None
            if folder:
                found[target + folder[1]].append(folder[2])
            elif entry.kernels and kind == "amd" and not _ROCM.match(name):
                found[target + path] += offload_bundles.of_amd(entry.kernels)
            elif entry.kernels and kind in _NVIDIA_OR_UNKNOWN and (not _NVIDIA.match(name) or _NCCL_CUDNN.match(name)):
                found[target + path] += [each for each in entry.kernels if not offload_bundles.of_amd([each])]
    return {path: list(dict.fromkeys(targets)) for path, targets in found.items() if targets}


def _soname(path: str) -> str:
    """Return the name that all copies of a library share: the part up to its major version."""
    name = posixpath.basename(path)
    match = _SONAME.match(name)
    return match[0] if match else name


def _mapped(case: Case) -> set[str]:
    return {mapped.path for process in case.processes for mapped in process.loader.objects}


def _is_needed(path: str, mapped: Collection[str], usable: Collection[str]) -> bool:
    """Return whether a job's program maps a file, or no computation on a GPU is possible without it.

    ``usable`` are the sonames of libraries that work, of which a file may be another copy.
    """
    is_framework = _FRAMEWORK.match(posixpath.basename(path)) is not None
    return path in mapped or (is_framework and _soname(path) not in usable)


def _cuda(case: Case) -> list[tuple[str, int]]:
    """Return the CUDA runtimes in the bundle: paths and major releases."""
    matches = ((path, _CUDART.match(posixpath.basename(path))) for path in case.paths)
    return [(path, int(match[1])) for path, match in matches if match]


def _pair(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d{1,6})(?:\.(\d{1,6}))?", text)
    return (int(match[1]), int(match[2] or 0)) if match else None


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]:02}" if pair[0] > 99 else f"{pair[0]}.{pair[1]}"
