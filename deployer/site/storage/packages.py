"""The Python packages in an installed image, found by their folders without starting or importing anything."""

import glob
import os
import re
from typing import Mapping, Optional, Tuple

from deployer.contract.proof.measurements import AMD_GPU, GPU, INTEL_GPU, ITEX
from deployer.contract.site.plan import Plan
from deployer.site.storage.store import InstalledImage
from deployer.system import files

#: Package folders of the Pythons in images: Debian's, a custom build, conda, a virtual environment.
_PLACES = (
    "usr/lib/python3*/dist-packages",
    "usr/lib/python3*/site-packages",
    "usr/lib64/python3*/site-packages",
    "usr/local/lib/python3*/dist-packages",
    "usr/local/lib/python3*/site-packages",
    "opt/*/lib/python3*/site-packages",
)
#: A host file that is in the plans of partitions with NVIDIA's GPUs.
_DRIVER = re.compile(r"/libcuda\.so(\.\d+)*$")
#: Signs of an image for a vendor's GPUs: files, the beginning of a variable, and folders of packages.
_SIGNS: Mapping[str, Tuple[Tuple[str, ...], str, Tuple[str, ...]]] = {
    GPU: (("usr/local/cuda*",), "CUDA_VERSION=", ("nvidia",)),
    AMD_GPU: (("opt/rocm*", "usr/lib/*/libamdhip64.so*"), "ROCM_PATH=", ("torch/lib/rocblas", "jax_rocm7_plugin")),
    INTEL_GPU: (("usr/lib/*/libze_intel_gpu.so*", "opt/intel/oneapi/compiler"), "ONEAPI_ROOT=", ()),
}
#: The variable that selects a vendor's GPUs, which the plans of their partitions pass.
_SELECTED = {AMD_GPU: "ROCR_VISIBLE_DEVICES", INTEL_GPU: "ZE_AFFINITY_MASK"}


def folder(installed: InstalledImage, package: str, abi: Optional[str]) -> Optional[str]:
    """Return the first folder of an import package, in the order variant, wheelhouse, image; or None."""
    places = [os.path.join(installed.variant(abi), "lib")] if abi else []
    places.append(os.path.join(installed.wheels, "lib"))
    for pattern in _PLACES:
        places += sorted(glob.glob(os.path.join(glob.escape(installed.rootfs), pattern)))
    paths = [os.path.join(place, package) for place in places]
    return next((path for path in paths if files.is_folder(path)), None)


def expects(installed: InstalledImage, plan: Plan) -> Tuple[str, ...]:
    """Return what a job with this image at this site must prove besides MPI (``measurements.GPU``)."""
    targets = [bind.target for bind in plan.binds] + [item.target for item in plan.host]
    there = [GPU] if any(map(_DRIVER.search, targets)) else []
    there += [gpu for gpu, name in _SELECTED.items() if name in plan.pass_environment and GPU not in there]
    # An image for none of these GPUs ignores them.
    expected = [gpu for gpu in there if _is_for(gpu, installed, plan)]
    if folder(installed, "intel_extension_for_tensorflow", plan.abi):
        expected.append(ITEX)
    return tuple(expected)


def _is_for(gpu: str, installed: InstalledImage, plan: Plan) -> bool:
    """Return whether an image shows signs that its programs use a vendor's GPUs."""
    paths, variable, packages = _SIGNS[gpu]
    return (
        any(folder(installed, package, plan.abi) for package in packages)
        or any(glob.glob(os.path.join(glob.escape(installed.rootfs), path)) for path in paths)
        or any(entry.startswith(variable) for entry in installed.manifest().image.env)
    )
