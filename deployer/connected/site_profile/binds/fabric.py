"""The fabric's user-space libraries and variables: Omni-Path (psm2, opx), InfiniBand (verbs, UCX), Slingshot (cxi).

Devices (/dev/hfi1_*, /dev/infiniband, /dev/cxi*) need no bind, because all runtimes show the host's /dev.
"""

import posixpath
import re
from collections.abc import Collection
from typing import NamedTuple

from deployer.connected.site_profile.binds.system import CapturedHost, library, needs
from deployer.connected.site_profile.profile import Fabric, Mpi
from deployer.contract.rules.hostfiles import DIRECTORY, FOLDER, HostFile
from deployer.contract.site.plan import ABIS, MPICH_ABI, Bind

#: The libraries of each kind of fabric. MPI plugins that need libraries of another kind are not bound.
_OF_KIND = {
    "omni-path": re.compile(r"^libpsm(2|_infinipath)\.so"),
    "slingshot": re.compile(r"^libcxi\.so"),
    "infiniband": re.compile(r"^lib(ibverbs|rdmacm|ibumad|ibmad|mlx[45]|hns|mana|efa|uc[pstm])\.so"),
}
#: Kernel names of adapters with verbs: InfiniBand, and RDMA over Ethernet.
_VERBS = re.compile(r"^(mlx\d|hns|mana|efa|bnxt_re|irdma|qedr|rxe|siw)")
#: File names of the verbs drivers that libibverbs opens.
_VERBS_DRIVER = re.compile(r"^lib[a-z0-9_]+-rdmav\d+\.so$")
#: Network interfaces over InfiniBand or Omni-Path, and Slingshot interfaces.
_OVER_FABRIC = re.compile(r"^(ib[a-z]*\d|hsn\d|ib[ps]\d)\w*$")
_VERBS_FOLDER = "/etc/libibverbs.d"

#: libfabric's providers for each kind of fabric, best first, each with its plugin. Intel MPI 2021.19 dropped psm2; its
#: opx supports the same adapters.
_PROVIDERS = {
    "omni-path": (("psm2", "libpsmx2-fi.so"), ("opx", "libopx-fi.so")),
    "slingshot": (("cxi", "libcxi-fi.so"),),
    "infiniband": (("mlx", "libmlx-fi.so"), ("verbs", "libverbs-fi.so")),
    "ethernet": (("tcp", "libtcp-fi.so"),),
}
_LIBFABRIC = "libfabric.so.1"
_PROVIDER_FOLDER = "lib/libfabric"
_PLUGIN = re.compile(r"^lib\w+-fi\.so$")


def kind(fabric: Fabric | None) -> str | None:
    """Return the kind of libraries that a fabric needs. Ethernet adapters with verbs need InfiniBand's."""
    if fabric and fabric.kind == "ethernet" and any(_VERBS.match(name) for name in fabric.devices):
        return "infiniband"
    return fabric.kind if fabric else None


def foreign(name: str, fabric: str | None) -> bool:
    """Return whether a library is for another kind of fabric. Always False if the site's fabric is unknown."""
    return fabric is not None and any(pattern.match(name) for other, pattern in _OF_KIND.items() if other != fabric)


class Parts(NamedTuple):
    """The libraries of a fabric.

    Attributes:
        roots: files whose dependencies must be found too.
        host: single host files.
        binds: folders bound on their own path.
    """

    roots: list[str]
    host: list[HostFile]
    binds: list[Bind]


def parts(host: CapturedHost, fabric: Fabric | None) -> Parts:
    """Return the fabric's libraries, and the plugins of verbs and UCX, which no file lists as dependencies.

    If the MPI has no libfabric, the system's libfabric and its providers are included. Otherwise the MPI would open
    the image's libfabric by name.
    """
    wanted = kind(fabric)
    pattern = _OF_KIND.get(wanted or "")
    found = Parts([], [], [])
    if fabric and _LIBFABRIC in fabric.libraries and _LIBFABRIC not in host.inside:
        found.host.append(library(fabric.libraries[_LIBFABRIC], "libfabric, which the MPI may open", _LIBFABRIC))
        found.roots.append(fabric.libraries[_LIBFABRIC])
        providers = sorted(path for name, path in host.outside.items() if _PLUGIN.match(name))
        if providers:
            folder = posixpath.dirname(providers[0])
            found.host.append(HostFile(_PROVIDER_FOLDER, DIRECTORY, folder, "libfabric's providers"))
            found.roots.extend(path for path in providers if not _foreign_needs(host, path, wanted))
    if fabric is None or pattern is None:
        return found
    own = {name: path for name, path in sorted(fabric.libraries.items()) if pattern.match(name)}
    drivers = {name: path for name, path in sorted(host.outside.items()) if _VERBS_DRIVER.match(name)}
    if drivers and "libibverbs.so.1" in own:
        # libibverbs searches for its drivers in its compiled-in folder, then in the loader's search path.
        own.update(drivers)
        found.binds.append(Bind(_VERBS_FOLDER, _VERBS_FOLDER, "which drivers libibverbs has"))
    found.host.extend(library(path, f"for {fabric.kind}", name) for name, path in own.items())
    found.roots.extend(own.values())
    transports = sorted(path for path in host.outside.values() if posixpath.dirname(path).endswith("/ucx"))
    if transports and "libucp.so.0" in own:
        folder = posixpath.dirname(transports[0])
        # libucs searches beside itself. A variable instead would also affect an image's own UCX.
        found.host.append(HostFile("lib/ucx", DIRECTORY, folder, "UCX's transports, beside its libraries"))
        found.roots.extend(path for path in transports if not _foreign_needs(host, path, wanted))
    return found


def _foreign_needs(host: CapturedHost, path: str, fabric: str | None) -> bool:
    return any(foreign(name, fabric) for name in needs(host, [path]))


def wanted_plugins(host: CapturedHost, core: Collection[str], fabric: str | None) -> list[str]:
    """Return the MPI's own plugins, except those for another kind of fabric than the site's."""
    return [path for path in host.tree if path not in core and not _foreign_needs(host, path, fabric)]


def sockets(fabric: Fabric | None) -> dict[str, str]:
    """Return the variables that let Gloo, TensorPipe and NCCL use the fast fabric's network interface.

    Without a fast fabric, the job chooses a network that all its nodes have, because a profile also lists interfaces
    without a connection.
    """
    found = [name for name in (fabric.devices if fabric else []) if _OVER_FABRIC.match(name)]
    if not found or fabric is None or fabric.kind in (None, "ethernet"):
        return {}
    return {"GLOO_SOCKET_IFNAME": found[0], "TP_SOCKET_IFNAME": found[0], "NCCL_SOCKET_IFNAME": "=" + ",".join(found)}


def environment(host: CapturedHost, mpi: Mpi, fabric: Fabric | None, own: Parts) -> dict[str, str]:
    """Return the variables that select the site's libfabric and its provider for the fabric.

    The provider is the one in the profile, or the best for the fabric among those that were captured with the MPI.

    Args:
        own: the fabric's libraries.
    """
    found: dict[str, str] = {}
    plugins = {name: path for name, path in sorted(host.inside.items()) if _PLUGIN.match(name)}
    if mpi.providers and not mpi.in_system:
        found["FI_PROVIDER_PATH"] = f"{mpi.prefix}/{mpi.providers}"
    elif plugins:
        found["FI_PROVIDER_PATH"] = posixpath.dirname(next(iter(plugins.values())))
    elif any(item.name == _PROVIDER_FOLDER for item in own.host):
        found["FI_PROVIDER_PATH"] = f"{FOLDER}/{_PROVIDER_FOLDER}"
    known = _PROVIDERS.get(kind(fabric) or "", ()) if ABIS.get(mpi.family) == MPICH_ABI else ()
    captured = (provider for provider, plugin in known if plugin in plugins)
    provider = (fabric and fabric.provider) or next(captured, None)
    return {**found, "FI_PROVIDER": provider} if provider else found
