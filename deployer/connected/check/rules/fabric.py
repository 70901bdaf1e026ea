"""Rules for the fast network: that MPI finds libfabric, libfabric the provider, and the provider its libraries.

docs/rules.md describes the consequences.
"""

import posixpath
import re
from collections.abc import Iterator

from deployer.connected.check.rules import linking
from deployer.connected.check.rules.case import CAPTURE, MISSING_FACTS, Case
from deployer.connected.linker import plugins
from deployer.connected.linker.process import Process
from deployer.contract.rules.findings import ERROR, WARNING, Finding
from deployer.contract.rules.hostfiles import FILE

#: Slow providers, and the fast providers for each kind of fabric.
_SLOW = {"tcp", "sockets", "udp"}
_FAST = {"omni-path": "psm2 or opx", "infiniband": "verbs or mlx", "slingshot": "cxi"}
#: The library without which no MPI can use a kind of fabric. (Omni-Path's opx needs none.)
_NEEDED = {"infiniband": "libibverbs.so", "slingshot": "libcxi.so"}
#: The file that NCCL (on AMD, RCCL) opens by name, by kind of fabric: libibverbs for its own transport, otherwise a
#: plug-in. RCCL opened NCCL's name before it had its own.
_NCCL = re.compile(r"^lib[nr]ccl\.so")
_VERBS, _PLUGIN, _OF_RCCL = "libibverbs.so.1", "libnccl-net", "librccl-net"
_OF_NCCL = {"infiniband": _VERBS, "omni-path": _PLUGIN, "slingshot": _PLUGIN}
_PACKAGES = {_VERBS: "libibverbs1 and ibverbs-providers", _PLUGIN: "none; the site's or its vendor's"}
#: Providers built into every libfabric except Intel's, whose providers are separate files.
_BUILT_IN = {*_SLOW, "shm", "ofi_rxm", "ofi_rxd", "rxm"}


def library(process: Process) -> Iterator[Finding]:
    """fabric.missing: Intel MPI opens libfabric by name, but none is found."""
    used = process.library
    opens = used is not None and process.users and process.mpi_family == "intel" and process.host_path(used.path)
    if used and opens and process.loader.find(plugins.FABRIC) is None:
        text = f"it opens {plugins.FABRIC} at startup, but no searched folder contains it"
        remedy = "in the profile, add the folder that contains it to the MPI's libraries"
        yield Finding("fabric.missing", ERROR, used.path, text, remedy)


def provider(process: Process) -> Iterator[Finding]:
    """fabric.provider, fabric.library, facts.fabric: the requested provider is missing or incomplete."""
    is_intel = process.mpi_family == "intel"
    there = plugins.providers(process.loader, process.environment, is_intel) if process.users else None
    for variable in ("FI_PROVIDER", "I_MPI_OFI_PROVIDER") if is_intel else ("FI_PROVIDER",):
        asked = process.variable(variable)
        if there is not None and asked and not asked.startswith("^"):
            of_each = [list(_of_one(process, name, there)) for name in asked.split(",")]
            if all(of_each):  # one usable provider is enough
                yield from (finding for findings in of_each for finding in findings)


def slow(case: Case) -> Iterator[Finding]:
    """fabric.tcp: the site has a fast network, but the plan does not use it."""
    fabric, asked = case.partition.fabric, case.plan.environment.get("FI_PROVIDER", "")
    uses_mpi = any(process.users for process in case.processes)
    if fabric is None or fabric.kind not in _FAST or not uses_mpi:
        return
    ranked = {name.partition(";")[0] for name in asked.split(",") if name}
    if (not asked or ranked <= _SLOW) and case.plan.mpi and case.plan.mpi.family == "intel":
        how = f"the plan asks for {asked}" if asked else "the plan names no provider: MPI may fall back to TCP"
        remedy = f"set fabric.provider of the partition in the profile: {_FAST[fabric.kind]}"
        yield Finding("fabric.tcp", WARNING, case.plan.partition, f"its network is {fabric.kind}, and {how}", remedy)
    needed = _NEEDED.get(fabric.kind)
    if case.plan.mpi is None and needed and not any(name.startswith(needed) for name in case.names):
        how = f"neither the image, whose own MPI is used, nor the plan has {needed}: MPI sends between nodes by TCP"
        remedy = "bind the site's own MPI (mpi of the partition in the profile); capture finds what it needs"
        yield Finding("fabric.tcp", WARNING, case.plan.partition, f"its network is {fabric.kind}, and {how}", remedy)


def nccl(case: Case) -> Iterator[Finding]:
    """fabric.nccl: the file that NCCL opens for the fast network is missing or cannot be loaded."""
    fabric = case.partition.fabric
    wanted = _OF_NCCL.get(fabric.kind or "") if fabric else None
    names = case.names
    used = next((f"{name[3].upper()}CCL" for name in sorted(names) if _NCCL.match(name)), None)
    if fabric is None or case.gpus is None or used is None:
        return
    if wanted and not any(name.startswith((wanted, _OF_RCCL) if wanted == _PLUGIN else wanted) for name in names):
        text = f"its network is {fabric.kind}, for which {used} opens {wanted}; neither the image nor the plan has it: "
        text += f"{used} sends between nodes through sockets"
        remedy = f"add {wanted} to the image (Debian: {_PACKAGES[wanted]}), or bind the site's: list it in "
        yield Finding("fabric.nccl", WARNING, case.plan.partition, text, f"{remedy}fabric.libraries of the profile")
    files = [item.target for item in case.plan.host if item.kind == FILE]
    plugins = [path for path in files if posixpath.basename(path).startswith((_PLUGIN, _OF_RCCL))]
    pairs = [(path, process.loader.attempt(path)) for path in plugins for process in case.processes]
    forced = "NCCL_NET" in case.plan.environment
    for path, lacking in dict.fromkeys((path, tuple(words)) for path, words in pairs if words):
        consequence = "ends with `network not found`" if forced else "sends between nodes through sockets"
        text = f"the site's plug-in needs {', '.join(lacking)}, which the container does not have: {used} {consequence}"
        remedy = "use a base whose C library is as new as the site's, or an image with a plug-in of its own"
        if not any(word.startswith("GLIBC_") for word in lacking):
            remedy = "capture the site with this version of deployer, or add the library to the image"
        yield Finding("fabric.nccl", ERROR if forced else WARNING, path, text, remedy)


def _of_one(process: Process, asked: str, there: dict[str, list[str]]) -> Iterator[Finding]:
    """Yield the findings on one provider (``verbs;ofi_rxm``: verbs with a layer over it)."""
    name = asked.partition(";")[0].strip()
    fabric = process.loader.find(plugins.FABRIC)
    where = fabric.path if fabric else plugins.FABRIC
    by_files = process.mpi_family == "intel" and fabric is not None and process.host_path(fabric.path)
    # Tested with Open MPI and MPICH 5: they use another network if libfabric offers none.
    old = process.plan.mpi is not None and process.plan.mpi.version.startswith(("3.", "4."))
    falls_back = process.mpi_family == "openmpi" or (process.mpi_family == "mpich" and not old)
    severity, consequence = ERROR, "MPI_Init ends with an error"
    if falls_back:
        severity, consequence = WARNING, "MPI uses a different network, at worst TCP"
    if name not in there:
        if name in _BUILT_IN and not by_files:
            return
        if not there and not by_files:
            text = f"cannot determine whether {where} has the provider {name} built in"
            yield Finding("facts.fabric", MISSING_FACTS, process.plan.site, text, CAPTURE)
            return
        known = ", ".join(sorted(there)) or "none"
        text = f"it has no provider {name}, only: {known}; {consequence}"
        remedy = "set fabric.provider of the partition to one that is there, or providers of the MPI to its folder"
        yield Finding("fabric.provider", severity, where, text, remedy)
        return
    reported = linking.reported(process)
    lacking = [[word for word in process.loader.attempt(path) if word not in reported] for path in there[name]]
    if all(lacking):  # one version of a provider is enough
        text = f"the provider {name} needs {', '.join(lacking[-1])}, which the container does not have; {consequence}"
        remedy = (
            "bind the library: the site's capture finds it in the profile's fabric.libraries; or add it to the image"
        )
        yield Finding("fabric.library", severity, there[name][-1], text, remedy)
