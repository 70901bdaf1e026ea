"""The variables, for one rank, with which the processes of a framework without MPI find each other.

These programs read them: torch.distributed (``env://``), Gloo, NCCL and TensorPipe (``*_SOCKET_IFNAME``), torchrun
(``PET_*``), and ``jax.distributed.initialize()``. The latter reads JAX_COORDINATOR_ADDRESS, and takes the numbers from
Slurm's variables, which below mpiexec and mpirun have a daemon's values. This module imports as little as ``rank``.
"""

#: Launchers' variables with a process's number on its node; as in ``launched.TASK``, Slurm's is last.
LOCAL_TASK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMIX_LOCAL_RANK", "PMI_LOCAL_RANK",
              "PALS_LOCAL_RANKID", "JSM_NAMESPACE_LOCAL_RANK", "SLURM_LOCALID")  # fmt: skip
#: The variables that a rank sets unless they are already set.
NAMES = (
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK",
    "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT",
)  # fmt: skip
#: NCCL's log file, in the folder of the rank's record. NCCL replaces ``%p`` with the process's number: below torchrun,
#: several processes inherit this name from one rank.
NCCL_LOG = "nccl-%d.%%p.log"
#: Slurm's variables that JAX and others read.
_SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS")


def variables(meet: str, task: int, environment: "dict[str, str]") -> "dict[str, str]":
    """Return the environment of the payload of rank ``task``, in which variables that are already set stay.

    Args:
        meet: NODES,RANKS_PER_NODE,ADDRESS,PORT,INTERFACE, from ``site.jobs.rendezvous``; address, port and interface
            may be empty.
        environment: the rank's environment, with the variables of its launcher.
    """
    nodes, per_node, address, port, interface = (meet.split(",") + [""] * 5)[:5]
    if not (nodes.isdigit() and per_node.isdigit() and int(per_node)):
        return dict(environment)
    size, node = int(nodes) * int(per_node), task // int(per_node)
    below_another = _other_than_slurm(environment)
    names = LOCAL_TASK[:-1] if below_another else LOCAL_TASK
    numbers = [environment[name] for name in names if environment.get(name, "").isdigit()]
    own = int(numbers[0]) if numbers else task % int(per_node)
    own_variables = {
        "RANK": str(task),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(own),
        "LOCAL_WORLD_SIZE": per_node,
        "NODE_RANK": str(node),
        "PET_NODE_RANK": str(node),
        "JAX_NUM_PROCESSES": str(size),
        "JAX_PROCESS_ID": str(task),
    }
    if address and port:
        own_variables.update(MASTER_ADDR=address, MASTER_PORT=port, JAX_COORDINATOR_ADDRESS=f"{address}:{port}")
        own_variables.update(PET_MASTER_ADDR=address, PET_MASTER_PORT=port)
    if interface:
        own_variables.update(
            GLOO_SOCKET_IFNAME=interface, TP_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME="=" + interface
        )
    own_variables.update(environment)
    if below_another:
        values = (task, own, node, size, size, size)
        own_variables.update((name, str(value)) for name, value in zip(_SLURM, values) if name in environment)
    return own_variables


def talking(environment: "dict[str, str]", log: str) -> "dict[str, str]":
    """Return the environment of a rank whose NCCL logs its network in ``log``, unless NCCL's log is already configured.

    This is for the first rank on each node, because the others use the same network.
    """
    if environment.get("LOCAL_RANK") != "0" or "NCCL_DEBUG" in environment or "NCCL_DEBUG_FILE" in environment:
        return dict(environment)
    return {**environment, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": log}


def _other_than_slurm(environment: "dict[str, str]") -> bool:
    """Return whether a launcher other than srun started this rank, so that Slurm's variables are its daemon's.

    srun's PMI also sets PMI_RANK and PMIX_RANK, but then Slurm's number is the same.
    """
    for name in ("OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PMI_RANK", "PMIX_RANK"):
        if name in ("PMI_RANK", "PMIX_RANK") and environment.get(name) == environment.get("SLURM_PROCID"):
            continue
        if name in environment:
            return True
    return False
