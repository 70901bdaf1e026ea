"""The fabric's user-space libraries and variables: Omni-Path (psm2, opx), InfiniBand (verbs, UCX), Slingshot (cxi).

Devices (/dev/hfi1_*, /dev/infiniband, /dev/cxi*) need no bind, because all runtimes show the host's /dev.
"""

import posixpath
import re
from collections.abc import Iterable
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


def kind(fabric: Fabric) -> str | None:
    """Return the kind of libraries that a fabric needs. Ethernet adapters with verbs need InfiniBand's."""
    if fabric.kind == "ethernet" and any(map(_VERBS.match, fabric.devices)):
        return "infiniband"
    return fabric.kind


def fitting(host: CapturedHost, paths: Iterable[str], fabric: str | None) -> list[str]:
    """Return those files that need no library for another kind of fabric; all if the site's fabric is unknown."""
    others = [pattern for other, pattern in _OF_KIND.items() if fabric not in (None, other)]
    return [path for path in paths if not any(each.match(name) for name in needs(host, [path]) for each in others)]


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


def parts(host: CapturedHost, fabric: Fabric) -> Parts:
    """Return the fabric's libraries, and the plugins of verbs and UCX, which no file lists as dependencies.

    If the MPI has no libfabric, the system's libfabric and its providers are included. Otherwise the MPI would open
    the image's libfabric by name.
    """
    wanted = kind(fabric)
    pattern = _OF_KIND.get(wanted or "")
    found = Parts([], [], [])
    if _LIBFABRIC in fabric.libraries and _LIBFABRIC not in host.inside:
        found.host.append(library(fabric.libraries[_LIBFABRIC], "libfabric, which the MPI may open", _LIBFABRIC))
        found.roots.append(fabric.libraries[_LIBFABRIC])
        providers = sorted(path for name, path in host.outside.items() if _PLUGIN.match(name))
        if providers:
            folder = posixpath.dirname(providers[0])
            found.host.append(HostFile(_PROVIDER_FOLDER, DIRECTORY, folder, "libfabric's providers"))
            found.roots.extend(fitting(host, providers, wanted))
    if pattern is None:
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
        found.roots.extend(fitting(host, transports, wanted))
    return found


def sockets(fabric: Fabric) -> dict[str, str]:
    """Return the variables that let Gloo, TensorPipe and NCCL use the fast fabric's network interface.

    Without a fast fabric, the job chooses a network that all its nodes have, because a profile also lists interfaces
    without a connection.
    """
    fast = list(filter(_OVER_FABRIC.match, fabric.devices))
    if not fast or fabric.kind in (None, "ethernet"):
        return {}
    return {"GLOO_SOCKET_IFNAME": fast[0], "TP_SOCKET_IFNAME": fast[0], "NCCL_SOCKET_IFNAME": "=" + ",".join(fast)}


def providers(own: Parts) -> dict[str, str]:
    """Return the variable that leads to the providers of the system's libfabric, if they are bound."""
    bound = any(item.name == _PROVIDER_FOLDER for item in own.host)
    return {"FI_PROVIDER_PATH": f"{FOLDER}/{_PROVIDER_FOLDER}"} if bound else {}


def environment(host: CapturedHost, mpi: Mpi, fabric: Fabric, own: Parts) -> dict[str, str]:
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
    else:
        found.update(providers(own))
    known = _PROVIDERS.get(kind(fabric) or "", ()) if ABIS.get(mpi.family) == MPICH_ABI else ()
    captured = (provider for provider, plugin in known if plugin in plugins)
    provider = fabric.provider or next(captured, None)
    return {**found, "FI_PROVIDER": provider} if provider else found
