"""The site's libraries for communication between GPUs, and the variables that belong to them.

NCCL and RCCL open a network plug-in by name, for the fabrics for which they have no transport of their own; both read
the variables NCCL_*. A plug-in over libfabric uses the site's libfabric. A site's own NCCL, RCCL or oneCCL is bound for
images that have none in a system folder. Cray MPICH needs its GTL library before the program starts, to send from GPUs.

Sources: NERSC's podman-hpc (etc/modules.d/nccl.yaml, cuda-mpich.yaml); CSCS's documents (NCCL; the hook aws_ofi_nccl);
BriCS's guide to NCCL; AMD's "Using the NCCL Net plugin API".
"""

import posixpath
import re
from collections.abc import Iterable

from deployer.connected.site_profile.binds import system
from deployer.connected.site_profile.binds.system import CapturedHost, library
from deployer.connected.site_profile.profile import Fabric
from deployer.contract.rules.hostfiles import LINK, HostFile

#: The libraries for each vendor's GPUs. RCCL opened NCCL's name before it had its own.
_OF_VENDOR = {
    "nvidia": re.compile(r"^lib(nccl(-net)?[\w-]*|gdrapi)\.so"),
    "amd": re.compile(r"^lib(rccl(-net)?[\w-]*|nccl-net[\w-]*)\.so"),
    "intel": re.compile(r"^libccl\.so"),
}
_PLUGIN = re.compile(r"^lib[nr]ccl-net[\w-]*\.so")
_OPENED = {"nvidia": ("libnccl-net.so",), "amd": ("librccl-net.so", "libnccl-net.so")}
#: These belong to a driver of the host's kernel, or to its network.
_HOSTS = re.compile(rf"{_PLUGIN.pattern}|^libgdrapi\.so")
_LIBFABRIC = "libfabric.so.1"

#: With a plug-in over libfabric. NCCL_NET ends a program that would otherwise use sockets, if the plug-in fails.
_WITH_LIBFABRIC = {"NCCL_NET": "AWS Libfabric"}
#: On Slingshot, as three sites set them.
_ON_SLINGSHOT = {
    "NCCL_CROSS_NIC": "1",
    "NCCL_NET_GDR_LEVEL": "PHB",
    "FI_CXI_DISABLE_HOST_REGISTER": "1",
    "FI_MR_CACHE_MONITOR": "userfaultfd",
}

_GPU_SUPPORT = "MPICH_GPU_SUPPORT_ENABLED"
_GTL = {"nvidia": "libmpi_gtl_cuda.so.0", "amd": "libmpi_gtl_hsa.so.0", "intel": "libmpi_gtl_ze.so.0"}


def libraries(fabric: Fabric, vendor: str | None) -> list[HostFile]:
    """Return the libraries for a vendor's GPUs, under their names, and the names by which a plug-in is opened."""
    pattern = _OF_VENDOR.get(vendor or "")
    own = {name: path for name, path in sorted(fabric.libraries.items()) if pattern and pattern.match(name)}
    found = [
        library(path, "for communication between GPUs", name, not _HOSTS.match(name)) for name, path in own.items()
    ]
    plugin = next(filter(_PLUGIN.match, own), None)
    names = [name for name in _OPENED.get(vendor or "", ()) if plugin and name not in own]
    return found + [HostFile(f"lib/{name}", LINK, plugin or "", "the name by which it is opened") for name in names]


def environment(host: CapturedHost, fabric: Fabric, files: Iterable[HostFile]) -> dict[str, str]:
    """Return the variables for the libraries that are bound: for the plug-in, then the site's own."""
    bound = [item.source for item in files if item.kind != LINK]
    plugins = (host.facts(path) for path in bound if _PLUGIN.match(posixpath.basename(path)))
    over_libfabric = any(facts and _LIBFABRIC in facts.dynamic.needed for facts in plugins)
    found = {**_WITH_LIBFABRIC, **(_ON_SLINGSHOT if fabric.kind == "slingshot" else {})} if over_libfabric else {}
    return found | (fabric.environment if bound else {})


def gtl(host: CapturedHost, vendor: str | None, environment: dict[str, str]) -> list[HostFile]:
    """Return Cray MPICH's library for a vendor's GPUs, if jobs are set to send from them.

    Args:
        environment: receives LD_PRELOAD, unless the site sets it.
    """
    name = _GTL.get(vendor or "", "")
    path = host.outside.get(name)
    if environment.get(_GPU_SUPPORT) != "1" or path is None:
        return []
    found = library(path, "Cray MPICH's, to send from GPUs", name)
    environment.setdefault("LD_PRELOAD", found.target)
    return [found, *system.libraries(system.needs(host, [path]), "Cray MPICH's GTL needs it")]
