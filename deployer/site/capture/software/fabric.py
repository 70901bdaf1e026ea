"""The fabric and the GPU driver: devices, libfabric's providers, and the user-space libraries of each."""

import glob
import os
import re
import shutil
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base.json_records import Record
from deployer.site.capture import gpus
from deployer.site.capture.software.libraries import Libraries, LibraryTree
from deployer.site.capture.software.module_command import Module
from deployer.site.capture.tools import Tools, determined, read_word

#: The libraries that MPI and libfabric's providers load for a fabric: Omni-Path, verbs, UCX, EFA, Slingshot; XPMEM.
_FABRIC = ("libpsm2.so.2", "libpsm_infinipath.so.1", "libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libefa.so.1",
           "libucp.so.0", "libuct.so.0", "libucs.so.0", "libucm.so.0", "libfabric.so.1", "libcxi.so.1",
           "libnuma.so.1", "libxpmem.so.0", "libgdrapi.so.2")  # fmt: skip
#: Libraries for communication between GPUs that programs open by name, and where sites have them besides their modules.
_BETWEEN_GPUS = ("libnccl-net*.so", "librccl-net*.so", "libgdrapi.so.2")
_USUAL = ("/opt/aws-ofi-*/lib", "/opt/amazon/*ofi-nccl/lib*", "/opt/*/*ofi-[nr]ccl*/lib", "/usr/local/lib")
_OF_MODULE = re.compile(r"^(NCCL|RCCL|FI|UCX|HSA)_\w+$")
#: Network interfaces that are not part of a fabric.
_LOCAL = re.compile(r"^(lo|docker|virbr|veth|br-|cni|tun|tap|bonding_masters|dummy|ip6?tnl|sit|gre|erspan|teql)")
#: The kernel's type for InfiniBand interfaces (ARPHRD_INFINIBAND).
_INFINIBAND = "32"
_PROVIDER = re.compile(r"^([a-z0-9_;]+):$", re.MULTILINE)


class FabricFacts(NamedTuple):
    """The fabric and the GPU driver of a machine.

    Attributes:
        fabric: a profile's ``fabric``.
        driver: a profile's ``driver``, or None.
        system: the facts of their libraries.
    """

    fabric: Record
    driver: Optional[Record]
    system: LibraryTree


def find(
    tools: Tools, libraries: Libraries, sys: str = "/sys", dev: str = "/dev", modules: Sequence[Module] = ()
) -> FabricFacts:
    """Return this machine's fabric and GPU driver; ``modules`` are of libraries for communication between GPUs."""
    tree = LibraryTree({}, {})
    verbs = _names(os.path.join(sys, "class/infiniband"))
    omni_path = [name for name in verbs if name.startswith("hfi1")] or _names(dev, "hfi1_[0-9]*")
    wires = [name for name in _names(os.path.join(sys, "class/net")) if not _LOCAL.match(name)]
    infiniband = [name for name in verbs if _link_layer(sys, name) == "InfiniBand"]
    slingshot = _names(os.path.join(sys, "class/cxi")) or _names(dev, "cxi[0-9]*")
    fast = "slingshot" if slingshot else "omni-path" if omni_path else "infiniband" if infiniband else None
    fabric: Record = {}
    if fast or wires:
        fabric["kind"] = fast or "ethernet"
        hsn = [name for name in wires if slingshot and name.startswith("hsn")]  # for programs without a provider
        # IP over InfiniBand or Omni-Path, for programs that use neither MPI nor verbs.
        over = [name for name in wires if fast and read_word(sys, "class/net", name, "type") == _INFINIBAND]
        fabric["devices"] = sorted({*slingshot, *hsn, *omni_path, *verbs, *over}) or wires
    known = libraries.system(_FABRIC)
    between, folders, variables = _between_gpus(tools, modules)
    known.update({name: path for name, path in between.items() if name not in known})
    fabric.update(determined({"providers": _providers(tools), "libraries": known, "environment": variables}))
    driver = gpus.driver(tools, libraries, sys)
    paths = [*known.values(), *_plugins(known), *(driver or {}).get("libraries", {}).values()]
    tree.update(libraries.closure([libraries.add(tree, path) for path in paths], folders))
    return FabricFacts(fabric, driver, tree)


def _names(folder: str, pattern: str = "*") -> List[str]:
    return sorted(os.path.basename(path) for path in glob.glob(os.path.join(glob.escape(folder), pattern)))


def _link_layer(sys: str, device: str) -> str:
    ports = glob.glob(os.path.join(sys, "class/infiniband", device, "ports/*/link_layer"))
    return next(filter(None, map(read_word, ports)), "")


def _between_gpus(tools: Tools, modules: Sequence[Module]) -> Tuple[Dict[str, str], List[str], Dict[str, str]]:
    """Return libraries for communication between GPUs by name, the folders of their modules, and these' variables.

    The folders are those that this shell searches, those of modules, and the usual ones. The first library of a name
    counts.
    """
    shell = tools.environment.get("LD_LIBRARY_PATH", "").split(":")
    own = [(folder, module) for module in modules for folder in module.added("LD_LIBRARY_PATH")]
    usual = [folder for pattern in _USUAL for folder in sorted(glob.glob(pattern))]
    found: Dict[str, str] = {}
    variables: Dict[str, str] = {}
    for folder, module in [*((folder, None) for folder in shell), *own, *((folder, None) for folder in usual)]:
        paths = [
            path for pattern in _BETWEEN_GPUS for path in sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
        ]
        new = {os.path.basename(path): path for path in paths if folder and os.path.basename(path) not in found}
        found.update(new)
        if module and new:
            variables.update({name: value for name, value in sorted(module.sets.items()) if _OF_MODULE.match(name)})
    return found, [*filter(None, shell), *(folder for folder, _ in own)], variables


def _providers(tools: Tools) -> List[str]:
    """Return the providers of the system's own libfabric."""
    answer = tools.ask(["fi_info", "--list"]) if shutil.which("fi_info") else None
    return _PROVIDER.findall(answer.out) if answer else []


def _plugins(known: Record) -> List[str]:
    """Return the libraries that verbs, UCX and libfabric load on their own: device drivers, transports, providers.

    A verbs driver may be a link to a library next to its folder. It is loaded under the link's name.
    """
    found: List[str] = []
    for name, pattern in (
        ("libibverbs.so.1", "libibverbs/*.so"),
        ("libucp.so.0", "ucx/*.so*"),
        ("libfabric.so.1", "libfabric/*-fi.so"),
    ):
        if name in known:
            for folder in {os.path.dirname(known[name]), os.path.dirname(os.path.realpath(known[name]))}:
                found += sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
    return list({os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)): None for path in found})
