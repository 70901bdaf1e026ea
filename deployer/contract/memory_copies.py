"""Copies between the memories of a node's ranks, which the kernel allows only within one user namespace (CMA). Pure.

If a runtime gives each rank a user namespace of its own, MPICH 5 does not start and Open MPI prints errors until they
are told to copy through shared memory instead.
"""

from typing import Dict

from deployer.contract.plan import MPICH_ABI, OPENMPI

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


def switched_off(abi: str) -> Dict[str, str]:
    """Return the environment variables that switch these copies off for an MPI family; all of them if it is unknown."""
    if abi in _OFF:
        return dict(_OFF[abi])
    return {name: value for each in _OFF.values() for name, value in each.items()}
