"""Which Python packages an installed image has, by the folders they stand in; nothing is started or imported."""

import glob
import os
import re
from typing import List, Optional, Tuple

from deployer.contract.measures import GPU, ITEX
from deployer.contract.plan import Plan
from deployer.site.store import Installed

#: Where the Pythons of images keep packages: Debian's, an own build, conda, a virtual environment.
_PLACES = (
    "usr/lib/python3*/dist-packages",
    "usr/lib/python3*/site-packages",
    "usr/lib64/python3*/site-packages",
    "usr/local/lib/python3*/dist-packages",
    "usr/local/lib/python3*/site-packages",
    "opt/*/lib/python3*/site-packages",
)
#: What stands in a plan's binds where its partition has GPUs.
_GPU_TARGET = re.compile(r"/(libcuda\.so(\.\d+)*|nvidia(ctl|\d+))$")


def folder(installed: Installed, package: str, abi: Optional[str]) -> Optional[str]:
    """Return the folder of an import package that the container sees first: variant, wheelhouse, image; or None."""
    found = [os.path.join(place, package) for place in _places(installed, abi)]
    return next((path for path in found if os.path.isdir(path)), None)


def expects(installed: Installed, plan: Plan) -> Tuple[str, ...]:
    """Return what a job of this image at this site has to prove beside MPI (``measures.EXPECTABLE``)."""
    found = []
    if any(_GPU_TARGET.search(bind.target) for bind in plan.binds):
        found.append(GPU)
    if folder(installed, "intel_extension_for_tensorflow", plan.abi):
        found.append(ITEX)
    return tuple(found)


def _places(installed: Installed, abi: Optional[str]) -> List[str]:
    own = [os.path.join(installed.variant(abi), "lib")] if abi else []
    own.append(os.path.join(installed.wheels, "lib"))
    for pattern in _PLACES:
        own += sorted(glob.glob(os.path.join(glob.escape(installed.rootfs), pattern)))
    return own
