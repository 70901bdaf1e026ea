"""Rule of variables that decide how MPI runs: by which network, by which components, and with which library.

``TABLE`` says what each means. Its rows were tried on two nodes without a fast network (Intel MPI 2021.15, MPICH 4.2.3
and 5.0.2, Open MPI 4.1.8 and 5.0.11), or are from the manual that they name. A variable that chooses a network or a
component and has no row is named as unknown; all others only tune.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from deployer.connected.check.rules.case import MISSING_FACTS, Case
from deployer.connected.linker.jobs import LinkedJob
from deployer.connected.linker.process import Process
from deployer.connected.linker.starts.words import UnknownWord
from deployer.contract.findings import ERROR, Finding
from deployer.contract.network import is_local
from deployer.contract.plan import ABIS, MPICH_ABI, OPENMPI

INTEL, MPICH, CRAY, OPEN = "intel", "mpich", "cray", "openmpi"
#: Components of Open MPI, and transports of UCX, that stay in a node; and those for other nodes.
_BTL_LOCAL, _BTL_NETWORK = {"self", "sm", "vader", "smcuda"}, {"tcp", "openib", "ofi", "usnic", "ugni", "uct"}
_UCX_LOCAL = {"self", "sm", "shm", "mm", "posix", "sysv", "cma", "knem", "xpmem", "cuda", "cuda_copy", "cuda_ipc"}
_UCX = "libucp.so.0"
_NAMED_MODULE = re.compile(r"/mpi4py/MPI\.(mpich|openmpi|impi|mpiabi)\.")
_FAST = ("omni-path", "slingshot")


class Use(NamedTuple):
    """A program that calls MPI, in a job.

    Attributes:
        process: the program.
        family: the family of its MPI.
        version: the version of the site's MPI; empty if it is the image's.
        several: whether the job has several nodes.
        network: the kind of network; empty if unknown.
        devices: the network's devices, as far as they are known.
    """

    process: Process
    family: str
    version: str
    several: bool
    network: str
    devices: frozenset[str]

    @property
    def ucx(self) -> bool | None:
        """Return whether MPI sends by UCX, None if that depends on the nodes."""
        linked = self.process.library is not None and _UCX in self.process.library.dynamic.needed
        if self.family == MPICH:
            return linked and self.process.variable("MPIR_CVAR_CH4_NETMOD") != "ofi"
        chosen = self.process.variable("OMPI_MCA_pml")
        return chosen.startswith("ucx") if chosen else None if self.network != "ethernet" else False

    @property
    def ob1(self) -> bool | None:
        """Return whether Open MPI sends by its own components (btl), None if that depends on the nodes."""
        chosen = self.process.variable("OMPI_MCA_pml")
        return chosen == "ob1" if chosen and chosen[0] != "^" else True if self.network == "ethernet" else None


class Problem(NamedTuple):
    """What a value means. ``certain``: whether MPI then cannot run."""

    certain: bool
    text: str


_UNCLEAR = Problem(False, "MPI_Init ends with an error if the library and the nodes do not have what it names")
Meaning = Callable[[str, Use], Problem | None]


class Variable(NamedTuple):
    """A row of the table.

    Attributes:
        name: a pattern for the whole name.
        families: whose MPI reads it.
        means: returns what a value means for a job, None for nothing.
        source: how that is known: tried, or a manual.
    """

    name: str
    families: tuple[str, ...]
    means: Meaning
    source: str


def _nothing(_value: str, _use: Use) -> None:
    """It runs whatever the value is, or the library ignores it."""


def _fabrics(value: str, use: Use) -> Problem | None:
    return _local() if value.lower() == "shm" and use.several else None


def _local(certain: bool = True) -> Problem:
    return Problem(certain, "only memory of a node is used, so ranks on different nodes cannot reach each other")


def _library(value: str, use: Use) -> Problem | None:
    there = not value.startswith("/") or use.process.view.resolve(value)
    return None if there else Problem(True, "the container has no such library, so MPI_Init ends with an error")


def _provider(value: str, use: Use) -> Problem | None:
    if not use.several or (use.family == MPICH and use.ucx):
        return None
    excluded = value.startswith("^") and "tcp" in value and use.network in ("", "ethernet")
    return _local() if value == "shm" else _local(False) if excluded else None


def _interface(value: str, use: Use) -> Problem | None:
    if value != "lo" or not use.several:
        return None
    tcp = use.network == "ethernet" or use.process.variable("FI_PROVIDER").startswith("tcp")
    return Problem(tcp, "this interface leads to no other node: the job hangs if it sends by TCP")


def _netmod(value: str, use: Use) -> Problem | None:
    has_ucx = use.process.library is None or _UCX in use.process.library.dynamic.needed
    if value == "ofi" or (value == "ucx" and has_ucx):
        return None
    return Problem(False, "the library does not show that it has this module: MPI_Init crashes without it")


def _ucx_transports(value: str, use: Use) -> Problem | None:
    if not use.several or use.ucx is False or (use.network == "infiniband" and not _ucx_local(value)):
        return None
    if _ucx_local(value):
        return _local(use.ucx is True)
    names = set(value.lstrip("^").split(","))
    reaches = not {"tcp", "all"} & names if value.startswith("^") else {"tcp", "all"} & names
    return None if reaches or not use.ucx else Problem(False, "the transports that remain need InfiniBand or RoCE")


def _ucx_local(value: str) -> bool:
    return not value.startswith("^") and {name.lstrip("\\") for name in value.split(",")} <= _UCX_LOCAL


def _ucx_devices(value: str, use: Use) -> Problem | None:
    names = {name.partition(":")[0] for name in value.split(",")}
    if not use.several or use.ucx is False or "all" in names or names & use.devices:
        return None
    if names == {"lo"}:
        return Problem(use.ucx is True, "this interface leads to no other node")
    if use.network == "infiniband" and not use.devices:
        return None
    return Problem(False, "it is not known whether the nodes have this device: without it MPI_Init ends with an error")


def _btl(value: str, use: Use) -> Problem | None:
    if use.ob1 is False:
        return None
    names = set(value.lstrip("^").split(","))
    sure = use.ob1 is True
    if value.startswith("^"):
        return _local(sure) if "tcp" in names and use.several else None
    removed = {"openib"} if use.version.startswith("5.") else {"sm"} if use.version[:2] in ("3.", "4.") else set()
    if names & removed:
        return Problem(True, f"Open MPI {use.version} no longer has {', '.join(names & removed)}: MPI_Init fails")
    if "self" not in names:
        return Problem(sure, "a rank cannot send to itself without self, and MPI_Init ends with an error")
    if use.several and names <= _BTL_LOCAL:
        return _local(sure)
    return None if names <= _BTL_LOCAL | {"tcp"} or not names - _BTL_LOCAL - _BTL_NETWORK else _UNCLEAR


def _pml(value: str, use: Use) -> Problem | None:
    first = value.lstrip("^").partition(",")[0]
    if value.startswith("^"):
        only = "ob1" in value.split("^")[1].split(",") and use.network == "ethernet"
        return Problem(True, "no other component sends over Ethernet, so MPI_Init fails") if only else None
    if first == "ucx":
        return _pml_ucx(use)
    if first == "cm" and use.network not in _FAST:
        return Problem(use.network == "ethernet", "it needs a network such as Omni-Path or Slingshot: MPI_Init fails")
    return None if first in ("ob1", "cm") else _UNCLEAR


def _pml_ucx(use: Use) -> Problem | None:
    process = use.process
    library = process.library
    folders = [f"{library.path.rpartition('/')[0]}/{name}" for name in ("openmpi", "openmpi3")] if library else []
    plugins = [name for folder in folders for name in process.view.names(folder)]
    if library is not None and _UCX not in library.dynamic.needed and "mca_pml_ucx.so" not in plugins:
        return Problem(True, f"{library.path} was built without UCX, so MPI_Init fails")
    everywhere = "any" in (process.variable("OMPI_MCA_pml_ucx_tls"), process.variable("OMPI_MCA_opal_common_ucx_tls"))
    if everywhere or use.network == "infiniband" or any(name.startswith("mlx") for name in use.devices):
        return None
    text = "without InfiniBand it is not used unless OMPI_MCA_pml_ucx_tls is any, so MPI_Init fails"
    return Problem(use.network == "ethernet", text)


def _tcp_interfaces(value: str, use: Use) -> Problem | None:
    names = set(value.split(","))
    if use.ob1 is False or not use.several or names & use.devices:
        return None
    if names <= {"lo", "127.0.0.1/8", "127.0.0.0/8"}:
        return Problem(use.ob1 is True, "this interface leads to no other node")
    return Problem(False, "it is not known whether the nodes have this interface: without it they cannot connect")


def _tcp_excluded(value: str, use: Use) -> Problem | None:
    names = {name for name in value.split(",") if not is_local(name) and not name.startswith("127.")}
    if use.ob1 is False or not use.several or not names or use.devices - names:
        return None
    return Problem(False, "it is not known whether the nodes have another network: without one they cannot connect")


def _pmix(value: str, _: Use) -> Problem | None:
    return None if value in ("hash", "native") or value.startswith("^") else _UNCLEAR


def _mpi4py(value: str, use: Use) -> Problem | None:
    names = [*(each.path for each in use.process.users), *use.process.passed_over]
    if not any(map(_NAMED_MODULE.search, names)):  # it was built for one library, and does not read the variable
        return None
    wanted = {"impi": MPICH}.get(value.lower(), value.lower())
    return None if wanted == _ABI.get(use.family) else Problem(True, "mpi4py loads its module for another MPI")


def _libmpi(_: str, use: Use) -> Problem | None:
    return None if "MPI4PY_MPIABI" in use.process.environment else _UNCLEAR


def _horovod(value: str, use: Use) -> Problem | None:
    used = any("/horovod/" in each.path for each in use.process.users)
    return _UNCLEAR if used and value.lower() != "mpi" else None


def _psm2(value: str, use: Use) -> Problem | None:
    asked = use.process.variable("FI_PROVIDER").startswith("psm2") and use.several
    return _local() if asked and set(value.split(",")) <= {"self", "shm"} else None


_ABI = {family: MPICH if abi == MPICH_ABI else OPENMPI for family, abi in ABIS.items()}
_ALL = tuple(ABIS)
_LIKE_MPICH = (MPICH, CRAY, "mvapich")
_OPEN_FAQ = "tried; docs.open-mpi.org, Networking support"

TABLE = (
    Variable("I_MPI_FABRICS", (INTEL,), _fabrics, "tried: shm crashes, removed values (tcp, dapl) are ignored"),
    Variable("I_MPI_OFI_LIBRARY", (INTEL,), _library, "tried: a missing file ends MPI_Init"),
    Variable("I_MPI_OFI_PROVIDER", (INTEL,), _provider, "tried: shm ends MPI_Init; others: fabric.provider"),
    Variable("I_MPI_(PMI|PMI_LIBRARY|OFI_LIBRARY_INTERNAL|DEVICE|FABRICS_LIST|TMI_PROVIDER|HYDRA_.*)", (INTEL,),
             _nothing, "tried: ignored, or of the launcher; I_MPI_PMI_LIBRARY: pmi.unmet"),
    Variable("FI_PROVIDER", (INTEL, MPICH), _provider, "tried: shm hangs; others: fabric.provider"),
    Variable("FI_PROVIDER(_PATH)?", _ALL, _nothing, "fabric.provider; Open MPI 4.1.8 and 5.0.11 were tried with shm"),
    Variable("FI_TCP_IFACE", (INTEL,), _interface, "tried: lo hangs, a name that is missing is ignored"),
    Variable("FI_TCP_IFACE", (MPICH, OPEN), _nothing, "tried with MPICH 4.2.3: lo runs"),
    Variable("(MPIR_CVAR|MPICH)_CH4_NETMOD", (MPICH,), _netmod, "tried: a missing module crashes"),
    Variable("(MPIR_CVAR|MPICH)_(CH4_NETMOD|OFI_USE_PROVIDER)", (INTEL, MPICH), _nothing, "tried: ignored"),
    Variable("UCX_TLS", (MPICH, OPEN), _ucx_transports, "tried; openucx.readthedocs.io, FAQ, Working with transports"),
    Variable("UCX_NET_DEVICES", (MPICH, OPEN), _ucx_devices, "tried: lo, or a device that is missing, ends MPI_Init"),
    Variable("OMPI_MCA_btl", (OPEN,), _btl, _OPEN_FAQ),
    Variable("OMPI_MCA_pml", (OPEN,), _pml, _OPEN_FAQ),
    Variable("OMPI_MCA_btl_tcp_if_include", (OPEN,), _tcp_interfaces, "tried: lo, or a missing one, ends the job"),
    Variable("OMPI_MCA_btl_tcp_if_exclude", (OPEN,), _tcp_excluded, "tried: without any network the job ends"),
    Variable("OMPI_MCA_(mtl|osc|plm|ess|oob|rmaps|topo|smsc|io|op)|PRTE_MCA_.*", (OPEN,), _nothing,
             "tried: components that are missing make a warning at most; of the launcher"),
    Variable("OMPI_MCA_(pmix|coll|shmem)", (OPEN,), _pmix, "tried: a component that is missing ends MPI_Init"),
    Variable("PMIX_MCA_(gds|psec|ptl|bfrops|pcompress)", (OPEN,), _pmix, "tried: hash and native run, munge does not"),
    Variable("MPI4PY_MPIABI", _ALL, _mpi4py, "mpi4py 4.1.2, _mpiabi.py"),
    Variable("MPI4PY_LIBMPI", _ALL, _libmpi, "mpi4py 4.1.2, _mpiabi.py: not read beside MPI4PY_MPIABI"),
    Variable("HOROVOD_(CONTROLLER|CPU_OPERATIONS)", _ALL, _horovod, "horovod.readthedocs.io, Installation Guide"),
    Variable("PSM2_DEVICES", (INTEL, MPICH, OPEN), _psm2, "Intel's PSM2 Programmer's Guide, PSM2_DEVICES"),
)  # fmt: skip

#: How names of variables begin that an MPI reads, by its family; and what names of those contain that choose.
_READS = {
    INTEL: r"I_MPI_|FI_|PSM2_",
    OPEN: r"OMPI_MCA_|PMIX_MCA_|UCX_|FI_|PSM2_",
    **dict.fromkeys(_LIKE_MPICH, r"MPICH_|MPIR_CVAR_|UCX_|FI_|PSM2_|MV2_|MVP_"),
}
_CHOOSES = re.compile(
    r"FABRICS?$|PROVIDER|NETMOD|TRANSPORT|TLS$|DEVICES?$|IFACE|INTERFACE$|_if_(in|ex)clude$|(OMPI|PMIX)_MCA_[a-z]+$"
)


def of_job(linked: LinkedJob, case: Case) -> Iterator[Finding]:
    """mpi.variable: by a variable MPI cannot run in a job, or what it means there is unknown."""
    several = linked.job is None or linked.job.nodes > 1
    fabric = case.partition.fabric
    mpi = case.plan.mpi
    family = mpi.family if mpi else OPEN if case.plan.abi == OPENMPI else MPICH
    place = several, (fabric and fabric.kind) or "", frozenset(fabric.devices if fabric else ())
    for process in [*linked.processes, *linked.conditional]:
        sure = linked.job is not None and any(process is each for each in linked.processes)
        use = Use(process, family, mpi.version if mpi else "", *place)
        for name, value in sorted(process.environment.items()) if process.uses_mpi else ():
            problem = judged(name, value, use) if value else None
            if problem:
                yield Finding(
                    "mpi.variable",
                    ERROR if problem.certain and sure else MISSING_FACTS,
                    process.name,
                    f"{name}={value}: {problem.text}",
                    "remove it from the image's environment (ENV), the job or the script, or set a value for this site",
                )


def judged(name: str, value: str, use: Use) -> Problem | None:
    """Return what a variable means for a job."""
    row = next((each for each in TABLE if use.family in each.families and re.fullmatch(each.name, name)), None)
    if row is None:
        chooses = use.several and re.match(_READS.get(use.family, "$"), name) and _CHOOSES.search(name)
        return Problem(False, "it chooses how MPI sends, in a way that `check` does not know") if chooses else None
    if isinstance(value, UnknownWord):
        matters = row.means is not _nothing and use.several
        return Problem(False, "its value, which decides how MPI runs, is only known when it runs") if matters else None
    return row.means(value, use)
