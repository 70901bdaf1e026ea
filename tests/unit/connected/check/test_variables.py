"""Variables that decide how MPI runs: each row of the table means what two nodes of the lab, or a manual, showed."""

import re
from typing import Any

import pytest

from deployer.connected.check import check
from deployer.connected.check.rules import fabric, variables
from deployer.connected.check.rules.variables import TABLE, Use
from deployer.connected.linker.process import Process
from deployer.connected.linker.starts.words import UnknownWord
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.rules.verdict import MISSING_FACTS as UNKNOWN
from deployer.contract.site.plan import ABIS, HostMpi, Plan
from tests.running import PREFIX
from tests.unit.connected.check.test_check import (
    CALLS,
    HAS,
    IMAGE_FILES,
    MPICH_5,
    OPENMPI,
    OPENMPI_FILES,
    PLAN,
    UCX_FILES,
    lib,
    started,
)
from tests.unit.connected.check.test_programs import GOOD, job, linked, program
from tests.unit.connected.check.test_rules import case

MPICH_4 = MPICH_5._replace(mpi=HostMpi("mpich", "4.2.3", PREFIX, PREFIX + "/lib/libmpi.so.12", "MPICH 4.2.3"))
OFI_FILES = {PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", exports=HAS)}
OPEN_4 = OPENMPI._replace(mpi=HostMpi("openmpi", "4.1.8", PREFIX, PREFIX + "/lib/libmpi.so.40", "Open MPI v4.1.8"))
UCX_OPEN = {PREFIX + "/lib/libmpi.so.40": lib("libmpi.so.40", "libucp.so.0", exports=HAS)}
TWO = {"kind": "ethernet", "devices": ["eth0"]}


def found(
    plan: Plan, host: Any = None, network: dict[str, Any] | None = TWO, nodes: int = 2, **values: str
) -> list[Finding]:
    """Return the findings on a program in C that calls MPI and sees these variables."""
    needed = "libmpi.so.40" if plan.abi == "openmpi" else "libmpi.so.12"
    image = {**IMAGE_FILES, GOOD: program(needed, imports=CALLS)}
    process = started(image, host, plan, command=GOOD)._replace(environment=values)
    of = linked()._replace(job=job(GOOD)._replace(nodes=nodes), processes=[process])
    return list(variables.of_job(of, case({"fabric": network} if network else {}, plan=plan)))


def severities(*words: Any, **more: Any) -> list[str]:
    seen = found(*words, **more)
    assert {each.code for each in seen} <= {"mpi.variable"}
    return [each.severity for each in seen]


#: As two ranks on two nodes ended, which sent over Ethernet: the MPI, variables, and what was found.
INTEL_15, OPEN_5 = (PLAN, None), (OPENMPI, UCX_OPEN)
SEEN: list[tuple[tuple[Plan, Any], str, list[str]]] = [
    (INTEL_15, "I_MPI_FABRICS=shm", [ERROR]),
    (INTEL_15, "I_MPI_FABRICS=SHM", [ERROR]),
    (INTEL_15, "I_MPI_FABRICS=shm:ofi", []),
    (INTEL_15, "I_MPI_FABRICS=ofi", []),
    (INTEL_15, "I_MPI_FABRICS=shm:tcp", []),
    (INTEL_15, "I_MPI_OFI_PROVIDER=shm", [ERROR]),
    (INTEL_15, "FI_PROVIDER=shm", [ERROR]),
    (INTEL_15, "FI_PROVIDER=tcp", []),
    (INTEL_15, "FI_PROVIDER=^shm", []),
    (INTEL_15, "FI_PROVIDER=^tcp", [UNKNOWN]),
    (INTEL_15, "I_MPI_OFI_LIBRARY=/nonexistent/libfabric.so", [ERROR]),
    (INTEL_15, f"I_MPI_OFI_LIBRARY={PREFIX}/lib/libfabric.so.1", []),
    (INTEL_15, "I_MPI_PMI_LIBRARY=/nonexistent/libpmi.so I_MPI_PMI=pmix I_MPI_DEVICE=shm I_MPI_FABRICS_LIST=tcp", []),
    (INTEL_15, "I_MPI_HYDRA_BOOTSTRAP=ssh MPIR_CVAR_CH4_NETMOD=ucx UCX_TLS=self,sm OMPI_MCA_btl=self", []),
    (INTEL_15, "FI_TCP_IFACE=lo", [ERROR]),
    (INTEL_15, "FI_TCP_IFACE=nosuch", []),
    (INTEL_15, "I_MPI_DEBUG=5 I_MPI_PIN_DOMAIN=core FI_LOG_LEVEL=warn", []),
    ((MPICH_4, OFI_FILES), "FI_PROVIDER=shm", [ERROR]),
    ((MPICH_4, OFI_FILES), "FI_TCP_IFACE=lo UCX_TLS=self,sm UCX_NET_DEVICES=lo", []),
    ((MPICH_4, OFI_FILES), "MPIR_CVAR_CH4_NETMOD=nosuch", [UNKNOWN]),
    ((MPICH_4, OFI_FILES), "MPIR_CVAR_OFI_USE_PROVIDER=psm2 MPICH_CH4_NETMOD=ofi", []),
    ((MPICH_5, UCX_FILES), "UCX_TLS=self,sm", [ERROR]),
    ((MPICH_5, UCX_FILES), "UCX_TLS=posix,sysv,self", [ERROR]),
    ((MPICH_5, UCX_FILES), "UCX_TLS=tcp,self", []),
    ((MPICH_5, UCX_FILES), "UCX_TLS=all", []),
    ((MPICH_5, UCX_FILES), "UCX_TLS=rc,self", [UNKNOWN]),
    ((MPICH_5, UCX_FILES), "UCX_TLS=^tcp", [UNKNOWN]),
    ((MPICH_5, UCX_FILES), "UCX_NET_DEVICES=lo", [ERROR]),
    ((MPICH_5, UCX_FILES), "UCX_NET_DEVICES=eth0", []),
    ((MPICH_5, UCX_FILES), "UCX_NET_DEVICES=mlx5_0:1", [UNKNOWN]),
    ((MPICH_5, UCX_FILES), "FI_PROVIDER=shm", []),
    ((MPICH_5, UCX_FILES), "FI_PROVIDER=shm MPIR_CVAR_CH4_NETMOD=ofi", [ERROR]),
    ((MPICH_5, UCX_FILES), "UCX_TLS=self,sm MPIR_CVAR_CH4_NETMOD=ofi", []),
    (OPEN_5, "OMPI_MCA_btl=self,vader", [ERROR]),
    (OPEN_5, "OMPI_MCA_btl=self", [ERROR]),
    (OPEN_5, "OMPI_MCA_btl=tcp", [ERROR]),
    (OPEN_5, "OMPI_MCA_btl=tcp,self", []),
    (OPEN_5, "OMPI_MCA_btl=self,vader,tcp", []),
    (OPEN_5, "OMPI_MCA_btl=^tcp", [ERROR]),
    (OPEN_5, "OMPI_MCA_btl=^openib", []),
    (OPEN_5, "OMPI_MCA_btl=openib,self", [ERROR]),
    (OPEN_5, "OMPI_MCA_btl=nosuch,tcp,self", [UNKNOWN]),
    ((OPEN_4, UCX_OPEN), "OMPI_MCA_btl=self,sm,tcp", [ERROR]),
    (OPEN_5, "OMPI_MCA_pml=ucx", [ERROR]),
    (OPEN_5, "OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any", []),
    (OPEN_5, "OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_btl=self,vader", []),
    (OPEN_5, "OMPI_MCA_pml=ucx OMPI_MCA_opal_common_ucx_tls=any UCX_TLS=self,sm", [ERROR]),
    ((OPENMPI, OPENMPI_FILES), "OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any", [ERROR]),  # a build without UCX
    (OPEN_5, "OMPI_MCA_pml=ucx,ob1", [ERROR]),
    (OPEN_5, "OMPI_MCA_pml=cm", [ERROR]),
    (OPEN_5, "OMPI_MCA_pml=ob1", []),
    (OPEN_5, "OMPI_MCA_pml=^ucx", []),
    (OPEN_5, "OMPI_MCA_pml=^ob1", [ERROR]),
    (OPEN_5, "OMPI_MCA_pml=nosuch", [UNKNOWN]),
    (OPEN_5, "UCX_TLS=self,sm FI_PROVIDER=shm OMPI_MCA_mtl=psm2 OMPI_MCA_osc=ucx PRTE_MCA_plm=nosuch", []),
    (OPEN_5, "OMPI_MCA_btl_tcp_if_include=lo", [ERROR]),
    (OPEN_5, "OMPI_MCA_btl_tcp_if_include=nosuch", [UNKNOWN]),
    (OPEN_5, "OMPI_MCA_btl_tcp_if_include=eth0", []),
    (OPEN_5, "OMPI_MCA_btl_tcp_if_exclude=eth0", [UNKNOWN]),
    (OPEN_5, "OMPI_MCA_btl_tcp_if_exclude=lo,docker0", []),
    (OPEN_5, "PMIX_MCA_gds=hash PMIX_MCA_psec=native", []),
    (OPEN_5, "PMIX_MCA_psec=munge", [UNKNOWN]),
    (OPEN_5, "OMPI_MCA_coll=basic", [UNKNOWN]),
    (OPEN_5, "OMPI_MCA_coll=^tuned", []),
    (OPEN_5, "OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_abort_print_stack=1 OMPI_MCA_smsc=^cma", []),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("mpi", "words", "expected"), SEEN)
def test_what_was_seen_on_two_nodes_over_ethernet(mpi: tuple[Plan, Any], words: str, expected: list[str]) -> None:
    plan, host = mpi
    assert severities(plan, host, **dict(word.split("=", 1) for word in words.split())) == expected


@pytest.mark.parametrize(("mpi", "words", "expected"), SEEN)
def test_memory_of_a_node_is_enough_for_one(mpi: tuple[Plan, Any], words: str, expected: list[str]) -> None:
    plan, host = mpi
    if any(word in words for word in ("shm", "sm,", "vader", "lo", "^tcp", "eth0", "UCX_", "=self", "posix")):
        words_of_one = dict(word.split("=", 1) for word in words.split())
        fails = {"OMPI_MCA_pml", "OMPI_MCA_coll"} & set(words_of_one) or "self,sm,tcp" in words or "openib" in words
        assert fails or severities(plan, host, nodes=1, **words_of_one) == []


def test_each_row_is_tried_or_is_from_a_manual() -> None:
    """And no row is in vain: what was tried, or what comes from a manual, has a value for it."""
    tried = [word.partition("=") for _, words, _ in SEEN for word in words.split()]
    for row in TABLE:
        assert set(row.families) <= set(ABIS)
        assert set(row.when.split()) <= set(variables._CONDITIONS)
        if row.source == "tried":
            assert any(re.fullmatch(row.name, name) and re.fullmatch(row.value, value) for name, _, value in tried), row


@pytest.mark.parametrize(("plan", "name", "expected"), [
    (PLAN, "I_MPI_NEW_FABRIC", [UNKNOWN]),
    (PLAN, "FI_VERBS_IFACE", [UNKNOWN]),
    (PLAN, "I_MPI_STATS", []),
    (PLAN, "OMPI_MCA_bml", []),
    (OPENMPI, "OMPI_MCA_bml", [UNKNOWN]),
    (OPENMPI, "OMPI_MCA_btl_openib_if_include", [UNKNOWN]),
    (OPENMPI, "OMPI_MCA_btl_base_verbose", []),
    (MPICH_4, "MPIR_CVAR_NEMESIS_NETMOD", [UNKNOWN]),
    (MPICH_4, "MPIR_CVAR_ASYNC_PROGRESS", []),
    (PLAN, "MY_FABRIC", []),
])  # fmt: skip
def test_a_variable_that_the_table_does_not_know(plan: Plan, name: str, expected: list[str]) -> None:
    host = OPENMPI_FILES if plan is OPENMPI else OFI_FILES if plan is MPICH_4 else None
    assert severities(plan, host, **{name: "x"}) == expected
    assert severities(plan, host, nodes=1, **{name: "x"}) == []


def test_a_value_that_is_only_known_when_the_job_runs() -> None:
    assert severities(PLAN, I_MPI_FABRICS=UnknownWord("$FABRICS")) == [UNKNOWN]
    assert severities(PLAN, nodes=1, I_MPI_FABRICS=UnknownWord("$FABRICS")) == []
    assert severities(PLAN, I_MPI_HYDRA_BOOTSTRAP=UnknownWord("$X"), I_MPI_DEBUG=UnknownWord("$Y")) == []
    assert severities(PLAN, I_MPI_FABRICS="") == []


def test_other_networks() -> None:
    """From manuals: on InfiniBand Open MPI takes UCX by itself, and does not look at btl."""
    infiniband, omni_path = {"kind": "infiniband"}, {"kind": "omni-path"}
    assert severities(OPENMPI, UCX_OPEN, infiniband, OMPI_MCA_btl="self,vader") == [UNKNOWN]
    assert severities(OPENMPI, UCX_OPEN, None, OMPI_MCA_btl="self,vader") == [UNKNOWN]
    assert severities(OPENMPI, UCX_OPEN, infiniband, OMPI_MCA_pml="ucx", UCX_TLS="rc,sm,self") == []
    assert severities(OPENMPI, UCX_OPEN, None, OMPI_MCA_pml="ucx") == [UNKNOWN]
    assert severities(OPENMPI, UCX_OPEN, omni_path, OMPI_MCA_pml="cm", OMPI_MCA_mtl="psm2") == []
    assert severities(OPENMPI, UCX_OPEN, {"kind": "ethernet", "devices": ["mlx5_0"]}, OMPI_MCA_pml="ucx") == []
    assert severities(MPICH_5, UCX_FILES, infiniband, UCX_TLS="rc,self", UCX_NET_DEVICES="mlx5_0:1") == []
    assert severities(PLAN, None, omni_path, FI_PROVIDER="psm2", PSM2_DEVICES="self,shm") == [ERROR]
    assert severities(PLAN, None, omni_path, FI_PROVIDER="psm2", PSM2_DEVICES="self,shm,hfi") == []
    assert severities(PLAN, None, omni_path, FI_PROVIDER="psm2", FI_TCP_IFACE="lo") == [UNKNOWN]


def test_the_image_s_own_mpi() -> None:
    own = {PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", exports=HAS)}
    plan = PLAN._replace(mpi=None)
    assert severities(plan, own, FI_PROVIDER="shm") == [UNKNOWN]
    assert severities(plan._replace(abi="none"), own, FI_PROVIDER="shm") == []


def test_only_a_program_that_calls_mpi_and_is_certain() -> None:
    serial = started({**IMAGE_FILES, GOOD: program("libc.so.6")}, command=GOOD)
    one = serial._replace(environment={"I_MPI_FABRICS": "shm"})
    of = linked()._replace(job=job(GOOD)._replace(nodes=2), processes=[one])
    assert list(variables.of_job(of, case())) == []
    image = {**IMAGE_FILES, GOOD: program("libmpi.so.12", imports=CALLS)}
    maybe = started(image, command=GOOD)._replace(environment=one.environment)
    (finding,) = variables.of_job(of._replace(conditional=[maybe]), case())
    assert (finding.severity, finding.subject) == (UNKNOWN, GOOD)

    def severity(decides: bool) -> str:
        (finding,) = variables.of_job(of._replace(processes=[maybe], decides=lambda _: decides), case())
        return finding.severity

    assert [severity(True), severity(False)] == [ERROR, UNKNOWN]  # False: as in `program || true`


def test_mpi4py_is_told_to_take_the_other_family() -> None:
    module = "/usr/lib/python3/dist-packages/mpi4py/MPI.{}.cpython-311-x86_64-linux-gnu.so"
    image = {path: facts for path, facts in IMAGE_FILES.items() if "hvd" not in path}
    both = {module.format("mpich"): lib(None, "libmpi.so.12", imports=CALLS),
            module.format("openmpi"): lib(None, "libmpi.so.40", imports=CALLS)}  # fmt: skip
    own = {"/usr/lib/python3/dist-packages/mpi4py/MPI.cpython-311.so": lib(None, "libmpi.so.12", imports=CALLS)}

    def means(files: Any, value: str) -> bool:
        process: Process = started({**image, **files})
        return variables.judged("MPI4PY_MPIABI", value, Use(process, "intel", "", False, "", frozenset()))[1] != ""

    assert means(both, "openmpi")
    assert not any(means(both, value) for value in ("mpich", "impi"))
    assert not means(own, "openmpi")


def test_intel_s_own_variable_for_the_provider_is_looked_up_too() -> None:
    """Seen: I_MPI_OFI_PROVIDER=psm2 on nodes without it: "No data available"."""
    plan = PLAN._replace(environment={**PLAN.environment, "I_MPI_OFI_PROVIDER": "opx"})
    (finding,) = fabric.provider(started(plan=plan))
    assert (finding.code, finding.severity) == ("fabric.provider", ERROR)


def test_the_rule_is_one_of_check_s() -> None:
    assert variables.of_job in check.JOB_RULES
