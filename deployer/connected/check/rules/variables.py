"""Rule for variables that decide how MPI runs: with which network, components and library.

``TABLE`` states what their values mean. It was tested on two nodes without a fast network (Intel MPI 2021.15, MPICH
4.2.3 and 5.0.2, Open MPI 4.1.8 and 5.0.11), except for rows whose source is a manual. A variable that selects a network
or a component but has no row is reported as unknown; all other variables only tune performance.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.check.rules.case import MISSING_FACTS, Case
from deployer.connected.ground import own_data
from deployer.connected.linker.jobs import LinkedJob
from deployer.connected.linker.process import Process
from deployer.connected.linker.starts.words import UnknownWord
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.site.plan import ABIS, NO_MPI, OPENMPI

_UCX = "libucp.so.0"
#: mpi4py's modules, and its other names for MPI implementations.
_OF_MPI4PY, _ALIASES = re.compile(r"/mpi4py/MPI\.(mpich|openmpi)\."), {"mpich": "impi"}


class Use(NamedTuple):
    """An MPI program in a job: the family and version of its MPI, and the hardware of the nodes."""

    process: Process
    family: str
    version: str
    several: bool
    network: str
    devices: frozenset[str]


class Meaning(NamedTuple):
    """The meaning of values of a variable.

    Attributes:
        name: a pattern for the whole name.
        families: the MPI families that read it.
        value: a pattern for the whole value.
        when: words of ``_CONDITIONS`` that must hold; if one is unknown, the meaning is unknown too.
        text: why MPI cannot run then; empty: the value has no such effect.
        source: how this is known.
    """

    name: str
    families: Sequence[str]
    value: str
    when: str = ""
    text: str = ""
    source: str = "tried"


def _sends_by_ucx(_: str, use: Use) -> bool | None:
    if use.family != "openmpi":
        return use.family == "mpich" and _needs_ucx(use) and use.process.variable("MPIR_CVAR_CH4_NETMOD") != "ofi"
    chosen = use.process.variable("OMPI_MCA_pml")
    return chosen.startswith("ucx") if chosen else False if use.network == "ethernet" else None


def _sends_by_btl(_: str, use: Use) -> bool | None:
    """Return whether Open MPI sends with its own components rather than a library for a fast network."""
    chosen = use.process.variable("OMPI_MCA_pml")
    return chosen == "ob1" if chosen and chosen[0] != "^" else True if use.network == "ethernet" else None


def _needs_ucx(use: Use) -> bool:
    return use.process.library is not None and _UCX in use.process.library.dynamic.needed


def _lacks_ucx(_: str, use: Use) -> bool:
    library, view = use.process.library, use.process.view
    folder = posixpath.dirname(library.path) if library else "/"
    modules = [*view.names(f"{folder}/openmpi"), *view.names(f"{folder}/openmpi3")]
    return library is not None and not _needs_ucx(use) and "mca_pml_ucx.so" not in modules


def _without_ucx_network(_: str, use: Use) -> bool | None:
    everywhere = (use.process.variable(f"OMPI_MCA_{name}_ucx_tls") == "any" for name in ("pml", "opal_common"))
    if any(everywhere) or use.network == "infiniband" or any(name.startswith("mlx") for name in use.devices):
        return False
    return True if use.network == "ethernet" else None


def _unlisted(value: str, use: Use) -> bool | None:
    names = {name.partition(":")[0] for name in value.split(",")}
    return False if names & use.devices or (use.network == "infiniband" and not use.devices) else None


def _for_another_mpi(value: str, use: Use) -> bool:
    paths = [*(user.path for user in use.process.users), *use.process.passed_over]
    own = "openmpi" if ABIS.get(use.family) == OPENMPI else "mpich"
    return value.lower() not in (own, _ALIASES.get(own)) and any(map(_OF_MPI4PY.search, paths))


#: Functions of a value and a use that return True, False, or None for unknown.
_CONDITIONS: Mapping[str, Callable[[str, Use], bool | None]] = {
    "maybe": lambda *_: None,
    "several": lambda _, use: use.several,
    "slow": lambda _, use: {"": None, "ethernet": True, "infiniband": None}.get(use.network, False),
    "tcp": lambda _, use: use.network == "ethernet" or use.process.variable("FI_PROVIDER").startswith("tcp") or None,
    "psm2": lambda _, use: use.process.variable("FI_PROVIDER").startswith("psm2"),
    "absent": lambda value, use: use.process.view.resolve(value) is None,
    "ofi": lambda value, use: _sends_by_ucx(value, use) is False,
    "ucx": _sends_by_ucx,
    "no-infiniband": lambda _, use: use.network != "infiniband",
    "no-module": lambda value, use: None if value != "ucx" or not _needs_ucx(use) else False,
    "no-ucx": _lacks_ucx,
    "no-ucx-network": _without_ucx_network,
    "btl": _sends_by_btl,
    "4": lambda _, use: use.version[:2] in ("3.", "4."),
    "5": lambda _, use: use.version.startswith("5."),
    "unlisted": _unlisted,
    "other-family": _for_another_mpi,
    "no-abi": lambda _, use: "MPI4PY_MPIABI" not in use.process.environment,
    "horovod": lambda _, use: any("/horovod/" in user.path for user in use.process.users),
}
#: The first row whose name, family, value and conditions match applies.
TABLE = tuple(Meaning(**row) for row in own_data.load_yaml(Path(__file__).with_suffix(".yaml"))["rows"])

#: For each family: the prefixes of variables that its MPI reads; then the parts of names that select something.
_READS = {"intel": r"I_MPI_|FI_|PSM2_", "openmpi": r"(OMPI|PMIX)_MCA_|UCX_|FI_|PSM2_"}
_LIKE_MPICH = r"MPICH_|MPIR_CVAR_|UCX_|FI_|PSM2_|MV2_|MVP_"
_CHOOSES = re.compile(
    r"FABRICS?$|PROVIDER|NETMOD|TRANSPORT|TLS$|DEVICES?$|IFACE|INTERFACE$|_if_(in|ex)clude$|(OMPI|PMIX)_MCA_[a-z]+$"
)


def of_job(linked: LinkedJob, case: Case) -> Iterator[Finding]:
    """mpi.variable: because of a variable, MPI cannot run in a job, or the variable's meaning is unknown."""
    several = linked.job is None or linked.job.nodes > 1
    fabric, mpi = case.partition.fabric, case.plan.mpi
    family = mpi.family if mpi else "openmpi" if case.plan.abi == OPENMPI else "mpich"
    known = mpi is not None or family == "openmpi"  # the image's may be another family with MPICH's ABI
    kind, devices = (fabric and fabric.kind) or "", frozenset(fabric.devices if fabric else ())
    for process in linked.possible if case.plan.abi != NO_MPI else ():
        sure = linked.job is not None and known and linked.needs(process)
        use = Use(process, family, mpi.version if mpi else "", several, kind, devices)
        for name, value in sorted(process.environment.items()) if process.uses_mpi else ():
            certain, text = judged(name, value, use) if value else (False, "")
            if text:
                text = f"{name}={value}: {text}"
                remedy = (
                    "remove it from the image's environment (ENV), the job or the script, or set a value for this site"
                )
                yield Finding("mpi.variable", ERROR if certain and sure else MISSING_FACTS, process.name, text, remedy)


def judged(name: str, value: str, use: Use) -> tuple[bool, str]:
    """Return why MPI cannot run because of a variable, and whether that is certain; an empty text: it can run."""
    rows = [row for row in TABLE if use.family in row.families and re.fullmatch(row.name, name)]
    if isinstance(value, UnknownWord):
        matters = use.several and any(row.text for row in rows)
        return False, "its value, which decides how MPI runs, is only known when it runs" if matters else ""
    for row in rows:
        if re.fullmatch(row.value, value):
            conditions = [_CONDITIONS[word](value, use) for word in row.when.split()]
            if False not in conditions:
                return None not in conditions, row.text
    reads = re.match(_READS.get(use.family, _LIKE_MPICH), name)
    chooses = not rows and use.several and reads and _CHOOSES.search(name)
    return False, "it chooses how MPI sends, in a way that `check` does not know" if chooses else ""
