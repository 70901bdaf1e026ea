"""Memory copies between a node's ranks, which the kernel allows only within one user namespace (CMA). Pure.

If a runtime gives each rank its own user namespace, MPICH 5 does not start and Open MPI prints errors unless they are
configured to copy through shared memory instead.
"""

from typing import Dict, List

from deployer.contract.site.plan import MPICH_ABI, OPENMPI, Plan, StartOption
from deployer.contract.site.runtime_table import RUNTIMES

_OFF: Dict[str, Dict[str, str]] = {
    MPICH_ABI: {
        "MPIR_CVAR_CH4_CMA_ENABLE": "0",  # MPICH 5
        "MPICH_SMP_SINGLE_COPY_MODE": "NONE",  # Cray's
        "MV2_SMP_USE_CMA": "0",  # MVAPICH
    },
    OPENMPI: {
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",  # Open MPI 3 and 4
        "OMPI_MCA_smsc": "^cma",  # Open MPI 5
    },
}


def prevented(option: StartOption) -> bool:
    """Return whether the plan requires these copies but the start option's runtime prevents them."""
    known = RUNTIMES.get(option.runtime)  # a plan from another version may have an unknown runtime
    return option.join and known is not None and not known.shares_memory


def reason(runtime: str) -> str:
    """Return why a runtime prevents these copies."""
    return (
        f"the ranks of a node copy through shared memory, not from each other's memory (CMA): {runtime} gives each of "
        "them a user namespace of its own"
    )


def reasons(plan: Plan) -> List[str]:
    """Return why ranks do not read each other's memory, with a sentence for each runtime that prevents it."""
    return [reason(name) for name in dict.fromkeys(each.runtime for each in plan.containers if prevented(each))]


def switched_off(abi: str) -> Dict[str, str]:
    """Return the environment variables that switch these copies off for an MPI family; all of them if it is unknown."""
    if abi in _OFF:
        return dict(_OFF[abi])
    return {name: value for each in _OFF.values() for name, value in each.items()}
