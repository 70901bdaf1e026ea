"""The Python packages in an installed image, found by their folders without starting or importing anything."""

import glob
import os
import re
from typing import Optional, Tuple

from deployer.contract.proof.measurements import GPU, ITEX
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
#: A host file that is in the plans of partitions with GPUs.
_DRIVER = re.compile(r"/libcuda\.so(\.\d+)*$")
#: Signs of an image for GPUs: CUDA's folder, its variable, or the packages from NVIDIA's wheels.
_CUDA_FOLDERS, _CUDA_VARIABLE, _CUDA_PACKAGE = "usr/local/cuda*", "CUDA_VERSION=", "nvidia"


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
    expected = []
    targets = [bind.target for bind in plan.binds] + [item.target for item in plan.host]
    # An image without CUDA ignores a node's GPUs.
    if any(map(_DRIVER.search, targets)) and (
        folder(installed, _CUDA_PACKAGE, plan.abi)
        or glob.glob(os.path.join(glob.escape(installed.rootfs), _CUDA_FOLDERS))
        or any(entry.startswith(_CUDA_VARIABLE) for entry in installed.manifest().image.env)
    ):
        expected.append(GPU)
    if folder(installed, "intel_extension_for_tensorflow", plan.abi):
        expected.append(ITEX)
    return tuple(expected)
